"""The options of `convlog state`."""

from __future__ import annotations

from typing import Annotated

import typer

Open = Annotated[
    bool,
    typer.Option(
        "--open",
        help="All that is unresolved: calls, requests, proposals, approvals, effects, conflicts.",
        show_default=False,
    ),
]
Projection = Annotated[
    str | None,
    typer.Option(
        "--projection",
        "-p",
        metavar="NAME",
        show_default=False,
        help="state, open, tasks, agents, plans, calls, effects, threads or approvals. Default: state.",
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option("--rebuild", help="Fold every event anew, and keep the result.", show_default=False),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="FILE|-",
        show_default=False,
        help="Compare with a JSON object of state keys and values, and print each difference.",
    ),
]
