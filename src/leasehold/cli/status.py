"""``leasehold status``: who holds what, and who waits for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from leasehold.cli.options import client, complete_name, engine_options, read_duration, read_name
from leasehold.cli.output import say, write_json
from leasehold.cli.shown import console, details, overview, write_tables
from leasehold.core.engine import NameStatus
from leasehold.errors import EngineError
from leasehold.roster import ORDERS, Roster, Scout, View, as_data

if TYPE_CHECKING:
    from leasehold import Leasehold

SHORTEST_INTERVAL = 0.1
MOST_LOOKED_AT = 10_000
"""So many names are looked at once, at most, to find those that matter most; more only when more are to be shown."""


@click.command(
    "status",
    short_help="Show who holds what, and who waits for it.",
    epilog="""\b
Examples:
  leasehold status
  leasehold status nightly-export deploy
  leasehold status --watch
  leasehold status --watch=5 --only 'export*'
  leasehold status --json | jq '.names[] | select(.waiters != [])'
""",
)
@click.argument("names", nargs=-1, callback=read_name, shell_complete=complete_name, metavar="[NAME]...")
@engine_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts (with --watch, one a line).")
@click.option(
    "--watch",
    callback=read_duration,
    is_flag=False,
    flag_value="1",
    metavar="[SECONDS]",
    help="Show it again and again, each second or at this interval, until Ctrl-C.",
)
@click.option(
    "--only",
    "text",
    default="",
    metavar="TEXT",
    help="Only names that contain this text, in whatever case; with a * at its end, names that begin with it.",
)
@click.option("--waited", is_flag=True, help="Only names that somebody waits for.")
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="attention",
    show_default=True,
    help="What comes first: names that somebody waits for, or in the order of the name, of the number of waiters, of "
    "the time left or of how long they have been held.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most so many names (the live view of a terminal shows them page by page).",
)
def command(
    *,
    names: tuple[str, ...],
    on: str | None,
    namespace: str,
    as_json: bool,
    watch: float | None,
    text: str,
    waited: bool,
    order: Any,
    limit: int,
) -> None:
    """Show the NAMEs, or all names that are held or waited for: holders, tokens, time left, waiters.

    On a terminal, --watch has keys to search, to sort, to move and to see details; its last line names them.
    """
    if watch is not None and watch < SHORTEST_INTERVAL:
        raise click.UsageError(f"--watch takes an interval of at least {SHORTEST_INTERVAL:g} seconds")
    view = View(text, "waited" if waited else "all", order)
    with client(on, namespace) as locks:
        look = _Look(locks, namespace, tuple(dict.fromkeys(names)), view, limit)
        if watch is None:
            _show(look, look.once(), as_json=as_json)
            return
        try:
            if as_json or not sys.stdout.isatty() or console().is_dumb_terminal:
                _follow(look, watch, as_json=as_json)
            else:
                from leasehold.cli.live import Screen

                Screen(look.scout, view, interval=watch, where=look.where, names=look.names).run()
        except KeyboardInterrupt:
            return  # the usual way to end it


@dataclass(frozen=True)
class _Seen:
    """What there was to be seen."""

    statuses: Sequence[NameStatus]
    matching: int
    """How many names match, of which the statuses are a part."""
    more: bool
    """Whether there are more than were looked at, or more than are shown."""


@dataclass(frozen=True)
class _Look:
    """What to look at."""

    locks: Leasehold
    namespace: str
    names: tuple[str, ...]
    view: View
    limit: int
    roster: Roster = field(default_factory=Roster)

    @property
    def scout(self) -> Scout:
        return Scout(self.locks)

    def once(self) -> _Seen:
        """The state of the names now."""
        if self.names:
            return self._named()
        found = self.scout.look_at_all(self.view.shows_name, most=max(MOST_LOOKED_AT, self.limit))
        self.roster.note(found)
        return self._seen(more=not found.listing_ended)

    def again(self, scout: Scout, within: float) -> _Seen:
        """The state of the names as far as one round that is light on the engine can tell."""
        if self.names:
            return self._named()
        now = time.monotonic()
        shown = [row.status.name for row in self.view.page(self.roster, limit=self.limit).rows]
        rest = self.roster.due(self.view, now=now)
        self.roster.note(scout.look(shown, rest, known=self.roster.known, within=within))
        return self._seen(more=self.roster.more)

    def _named(self) -> _Seen:
        statuses = [self.locks.status(name) or NameStatus(name, 0, (), ()) for name in self.names]
        return _Seen(statuses, len(statuses), more=False)

    def _seen(self, *, more: bool) -> _Seen:
        now = time.monotonic()
        page = self.view.page(self.roster, limit=self.limit)
        shown = [row.at(now) for row in page.rows]
        return _Seen(shown, page.matching, more=more or page.matching > len(shown))

    @property
    def where(self) -> str:
        return f"{self.locks.facts.engine} at {self.locks.facts.address}"


def _show(look: _Look, seen: _Seen, *, as_json: bool) -> None:
    if as_json:
        write_json(_data(look, seen))
    elif look.names:
        write_tables(console(), map(details, seen.statuses))
    elif not seen.statuses:
        filtered = look.view.text or look.view.only != "all"
        click.echo("No name matches." if filtered else f"Nothing is held and nobody waits ({look.where}).")
    else:
        out = console()
        write_tables(out, [overview(seen.statuses, width=out.width)])
        if seen.more:
            say(f"there are more than {look.limit} names; --limit shows more of them, --only those that you look for")


def _data(look: _Look, seen: _Seen) -> dict[str, Any]:
    facts = look.locks.facts
    return {
        "engine": facts.engine,
        "address": facts.address,
        "namespace": look.namespace,
        "names": [as_data(status) for status in seen.statuses],
        "matching": seen.matching,
        "more": seen.more,
    }


def _follow(look: _Look, interval: float, *, as_json: bool) -> None:
    """For a pipe: one picture after the other."""
    from leasehold.cli.live import SHARE

    scout = look.scout
    while True:
        try:
            _show(look, look.again(scout, interval * SHARE), as_json=as_json)
        except EngineError as error:
            say(str(error))
        sys.stdout.flush()
        time.sleep(interval)
