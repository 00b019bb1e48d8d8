"""The options by which a verb reads through a view, and the slice that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from convlog_sqlite import Event, Moment, NotAuthorized, Session

if TYPE_CHECKING:
    from convlog_sqlite import Slice

View = Annotated[
    str | None,
    typer.Option(
        "--view",
        metavar="VIEW",
        show_default=False,
        rich_help_panel="View",
        help="Through this view; see `convlog view list`. Default with --as: that of the agent's role.",
    ),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="AGENT",
        show_default=False,
        rich_help_panel="View",
        help="As this agent: what its view shows. `tail` notes that the agent has read it.",
    ),
]
Purpose = Annotated[
    str | None,
    typer.Option(
        "--purpose",
        metavar="NAME",
        show_default=False,
        rich_help_panel="View",
        help="For this purpose: what is limited to others stays out.",
    ),
]


@dataclass(frozen=True, slots=True)
class Through:
    """What the options say of a view."""

    view: str | None
    reader: str | None
    purpose: str | None

    @property
    def is_given(self) -> bool:
        """Whether anything of it was asked for."""
        return any(given is not None for given in (self.view, self.reader, self.purpose))

    @property
    def name(self) -> str | None:
        """The view that was named; with a purpose alone, `everything`, for that."""
        return "everything" if self.view is None and self.reader is None and self.is_given else self.view

    def slice_of(self, session: Session | Moment) -> Slice:
        """The session as the view shows it."""
        return session.through(self.name, reader=self.reader, purpose=self.purpose)

    def event(self, session: Session | Moment, event: Event) -> Event:
        """The event as the view shows it. Raises NotAuthorized, with the rule that keeps it out."""
        found = self.slice_of(session)
        shown = found.shown(event)
        if shown is None:
            because = "; ".join(found.explain(event).because)
            raise NotAuthorized(
                self.reader or found.label, f"{found.label} does not show {event.id}: {because}"
            )
        return shown
