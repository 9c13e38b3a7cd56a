"""``leasehold status``: who holds what, and who waits for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from leasehold.cli.options import client, complete_name, engine_options, read_duration, read_name
from leasehold.cli.output import say, write_json
from leasehold.cli.shown import as_data, console, details, overview, write_tables
from leasehold.core.engine import NameStatus
from leasehold.errors import EngineError

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions, RenderableType

    from leasehold import Leasehold

SHORTEST_INTERVAL = 0.1


@click.command(
    "status",
    short_help="Show who holds what, and who waits for it.",
    epilog="""\b
Examples:
  leasehold status
  leasehold status nightly-export deploy
  leasehold status --watch
  leasehold status --watch=5
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
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most so many names.",
)
def command(
    *, names: tuple[str, ...], on: str | None, namespace: str, as_json: bool, watch: float | None, limit: int
) -> None:
    """Show the NAMEs, or all names that are held or waited for: holders, tokens, time left, waiters."""
    if watch is not None and watch < SHORTEST_INTERVAL:
        raise click.UsageError(f"--watch takes an interval of at least {SHORTEST_INTERVAL:g} seconds")
    with client(on, namespace) as locks:
        look = _Look(locks, namespace, tuple(dict.fromkeys(names)), limit)
        if watch is None:
            _show_once(look, as_json=as_json)
            return
        try:
            if as_json or not sys.stdout.isatty() or console().is_dumb_terminal:
                _follow(look, watch, as_json=as_json)
            else:
                _watch(look, watch)
        except KeyboardInterrupt:
            return  # the usual way to end it


@dataclass(frozen=True)
class _Look:
    """What to look at."""

    locks: Leasehold
    namespace: str
    names: tuple[str, ...]
    limit: int

    def __call__(self) -> tuple[list[NameStatus], bool]:
        """The state of the names, and whether there are more than were asked for."""
        if self.names:
            return [self.locks.status(name) or NameStatus(name, 0, (), ()) for name in self.names], False
        known = list(islice(self.locks.names(), self.limit + 1))
        found = (self.locks.status(name) for name in sorted(known[: self.limit]))
        # A name may have been released since it was listed.
        return [status for status in found if status is not None], len(known) > self.limit

    @property
    def where(self) -> str:
        return f"{self.locks.facts.engine} at {self.locks.facts.address}"


def _show_once(look: _Look, *, as_json: bool) -> None:
    statuses, more = look()
    if as_json:
        write_json(_data(look, statuses, more))
    elif look.names:
        write_tables(console(), map(details, statuses))
    elif not statuses:
        click.echo(f"Nothing is held and nobody waits ({look.where}).")
    else:
        out = console()
        write_tables(out, [overview(statuses, width=out.width)])
        if more:
            say(f"there are more than {look.limit} names; --limit shows more of them, or give the names")


def _data(look: _Look, statuses: Sequence[NameStatus], more: bool) -> dict[str, Any]:
    facts = look.locks.facts
    return {
        "engine": facts.engine,
        "address": facts.address,
        "namespace": look.namespace,
        "names": [as_data(status) for status in statuses],
        "more": more,
    }


def _follow(look: _Look, interval: float, *, as_json: bool) -> None:
    """For a pipe: one picture after the other."""
    while True:
        try:
            _show_once(look, as_json=as_json)
        except EngineError as error:
            say(str(error))
        sys.stdout.flush()
        time.sleep(interval)


def _watch(look: _Look, interval: float) -> None:
    """For a person: the picture stays in place and never grows past the screen."""
    from rich.live import Live

    screen = console()
    with Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_picture(look, screen.size, interval), refresh=True)
            time.sleep(interval)


def _picture(look: _Look, size: ConsoleDimensions, interval: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    told = f"{time.strftime('%H:%M:%S')}, every {interval:g} s, {look.where}"
    title = Text(told, style="dim", no_wrap=True, overflow="ellipsis")
    room = max(size.height - 4, 1)  # title, blank line, heading, and the line at the bottom
    look = replace(look, limit=min(look.limit, room))  # names that nobody can see are not asked for
    try:
        statuses, more = look()
    except EngineError as error:
        return Group(title, Text(""), Text(str(error), style="red"))
    if look.names:
        return Group(title, Text(""), *(details(status, most_waiters=room) for status in statuses))
    if not statuses:
        return Group(title, Text(""), Text("Nothing is held and nobody waits."))
    note = Text(f"The first {look.limit} names; there are more.", style="dim") if more else Text("")
    return Group(title, Text(""), overview(statuses, width=size.width, most_rows=room), note)
