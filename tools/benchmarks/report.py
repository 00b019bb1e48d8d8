"""The table for people and the file for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.figures import Group, Recorder, Series, difference, ratio, ratios

_HEAD: Final = (
    "| what | who | median | p95 | p99 | a second | times the first | beyond the first |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|"
)


def table(recorder: Recorder, facts: dict[str, Any], settings: dict[str, Any]) -> str:
    """Markdown: where it was measured, the figures, and how to read them."""
    lines = [_where(facts), "", _HEAD]
    lines += [row for group in recorder.groups for row in _rows(group)]
    lines += ["", *(f"- {label}: {number:.2f}" for label, number in recorder.numbers.items())]
    lines += [_how(settings), *(f"- {note}" for note in recorder.notes)]
    return "\n".join(lines)


def _where(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return (
        f"{facts['processor']} ({facts['machine']}), {facts['cpus']} CPUs, load {facts['load']:.1f} at the start; "
        f"{facts['system']}, {facts['filesystem']}, {facts['sync']}; {versions}."
    )


def _how(settings: dict[str, Any]) -> str:
    return (
        f"- {settings['payload_bytes']:,}-byte payloads, seed {settings['seed']}, {settings['rounds']} rounds in turn. "
        "Times are those of one event where the first column says so, else of one call. The first row of a group "
        "is what the others are compared with: round by round, median with median, and of that the median."
    )


def _rows(group: Group) -> Iterator[str]:
    for number, series in enumerate(group.series):
        compared = ["", ""]
        if group.base is not None and series is not group.base:
            compared = [f"{ratio(series, group.base):.2f}", _signed(difference(series, group.base))]
        cells = [
            group.title if number == 0 else "",
            series.label,
            _time(series.median),
            _quantile(series, 0.95),
            _quantile(series, 0.99),
            f"{series.rate:,.0f}" if group.rated else "",
            *compared,
        ]
        yield "| " + " | ".join(cells) + " |"


def _quantile(series: Series, share: float) -> str:
    found = series.quantile(share)
    return "" if found is None else _time(found)


def _time(microseconds: float) -> str:
    if microseconds < 10:
        return f"{microseconds:.1f} µs"
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    milliseconds = microseconds / 1000
    return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"


def _signed(microseconds: float) -> str:
    return ("+" if microseconds >= 0 else "-") + _time(abs(microseconds))


def raw(recorder: Recorder, facts: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Every sample, in microseconds, and what was made of them."""
    return {
        "settings": settings,
        "where": facts,
        "groups": [
            {
                "title": group.title,
                "base": None if group.base is None else group.base.label,
                "series": [_series(series, group.base) for series in group.series],
            }
            for group in recorder.groups
        ],
        "numbers": recorder.numbers,
        "notes": recorder.notes,
    }


def _series(series: Series, base: Series | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "label": series.label,
        "events_per_sample": series.per,
        "median": series.median,
        "p95": series.quantile(0.95),
        "p99": series.quantile(0.99),
        "events_per_second": series.rate,
        "rounds": series.rounds,
    }
    if base is not None:
        found |= {
            "ratios": ratios(series, base),
            "ratio": ratio(series, base),
            "beyond": difference(series, base),
        }
    return found
