"""The views that every store has. What each shows, and why, stands beside it, and `convlog view show` prints it."""

from __future__ import annotations

from typing import Final

from convlog_sqlite.views.definition import Select, View
from convlog_sqlite.vocabulary import ANY_PURPOSE

SHIPPED: Final = {
    "everything": (
        View(name="everything", purpose=ANY_PURPOSE),
        "The whole session, for who answers for it.",
    ),
    "orchestrator": (
        View(
            name="orchestrator",
            selects=(
                Select(types=("message", "mutation")),
                Select(types=("tool_result",), own=True),
                Select(addressed=True),
                Select(authored=True),
                Select(effects=True),
            ),
            max_sensitivity="confidential",
            roles=("orchestrator",),
        ),
        "What was said and decided, and its own work: not what tools gave to others, which is long and theirs.",
    ),
    "worker": (
        View(
            name="worker",
            selects=(
                Select(own=True),
                Select(dependencies=True, types=("mutation",)),
                Select(addressed=True),
                Select(authored=True),
            ),
            max_sensitivity="confidential",
            roles=("worker",),
        ),
        "Its own tasks, how those they wait for stand, and what is addressed to it: what the work takes, no more.",
    ),
    "verifier": (
        View(
            name="verifier",
            selects=(
                Select(kinds=("decision-made", "plan-set", "task-done", "task-failed")),
                Select(effects=True),
                Select(performatives=("propose", "accept-proposal", "agree", "reject-proposal", "refuse")),
                Select(addressed=True),
            ),
            max_sensitivity="internal",
            people=False,
            unlabelled=False,
            links=("evidence", "authorized_by"),
            roles=("verifier",),
        ),
        "Decisions, effects and the evidence for them: nothing about a person, nothing imported that nobody labelled.",
    ),
    "auditor": (
        View(name="auditor", purpose=ANY_PURPOSE, payload=(), roles=("auditor",)),
        "Every envelope and no content: who did what, when, and on whose authority.",
    ),
}


def describe_view(view: View) -> str:
    """What a view that ships with convlog shows, and why; of one that was defined here, how it is put together."""
    shipped = SHIPPED.get(view.name)
    if shipped is not None and view.version == 0:
        return shipped[1]
    selects = f"{len(view.selects)} selects" if view.selects else "every event"
    payload = "all content" if "*" in view.payload else ", ".join(view.payload) or "no content"
    return f"{selects}, up to {view.max_sensitivity}, {payload}"
