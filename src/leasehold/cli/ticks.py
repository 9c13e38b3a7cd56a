"""``leasehold run --every``: the ticks of a schedule, each of which is done once by whoever comes first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from leasehold.cli import exits
from leasehold.cli.output import say, tick_text, visible
from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, Misuse, StaleToken, quoted

if TYPE_CHECKING:
    from leasehold import Leasehold
    from leasehold.cli.supervise import Ending
    from leasehold.patterns.jobs.book import CatchUp, Step
    from leasehold.patterns.jobs.ledger import Begun, Ledger
    from leasehold.patterns.jobs.schedules import Schedule

F = TypeVar("F", bound=Callable[..., Any])

MOST_AT_ONCE = 100
"""Ticks that one call catches up with."""
_UNTIL_TAKEN_FOR_CRASHED = 7 * 86400.0
"""The lease tells who is at work, and is over much sooner; this is for those who only look."""


def tick_options(function: F) -> F:
    """``--every`` and what belongs to it."""
    options = (
        click.option(
            "--every",
            metavar="PERIOD",
            help="Run the program once for each period, such as 15m or 1d, on whichever host comes first; exit code 76 "
            "when that was done before. Call it as often as you like, on as many hosts as you like.",
        ),
        click.option(
            "--cron", metavar="EXPR", help="The same for each tick of a cron expression, such as '30 2 * * *'."
        ),
        click.option("--zone", metavar="ZONE", help="The time zone of --cron, such as Europe/Berlin.  [default: UTC]"),
        click.option(
            "--catch-up",
            type=click.Choice(["latest", "all", "skip"]),
            help="After ticks were missed: run for the latest one only, for all of them in their order, or not at all "
            "when it is more than a minute late.  [default: latest]",
        ),
        click.option(
            "--attempts",
            type=click.IntRange(1, 1_000_000),
            metavar="N",
            help="Give a tick up, and report it as missed, when the program has failed for it so often.  [default: 10]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


class Ticks:
    """What is due for one job, and what became of it."""

    def __init__(self, ledger: Ledger, *, catches_up: bool, quiet: bool, verbose: bool) -> None:
        self._ledger, self.catches_up, self._quiet, self._verbose = ledger, catches_up, quiet, verbose
        self._begun: Begun | None = None
        self.key = ""

    def begin(self, token: int) -> int | None:
        """Begin the tick that is due, under the lease of this token; or the exit code, when there is none."""
        # Who holds the lease knows that nobody else is at work, whatever the book says.
        run_blocking(self._ledger.take_from(f"the lease went on to token {token}"))
        step, self._begun = run_blocking(self._ledger.begin())
        self.key = step.about
        if self._begun is not None:
            return None
        # Hosts that come second say nothing: cron would make a mail of it. People at a terminal are told.
        if not self._quiet and (step.state != "done before" or self._verbose or sys.stderr.isatty()):
            say(f"tick {tick_text(step.about)} of {quoted(self._ledger.name)}: {_told(step)}")
        return exits.BUSY if step.state in ("waiting", "under way") else exits.DONE_BEFORE

    def end(self, ending: Ending) -> int | None:
        """Note what became of the tick, while the lease is still held; an exit code when that was not possible."""
        is_well = ending.code == 0 and ending.lost is None
        return self._note(None if is_well else ending.lost or f"exit code {ending.code}")

    def not_started(self) -> None:
        """The program could not be started at all."""
        self._note("the program could not be started")

    def _note(self, failure: str | None) -> int | None:
        assert self._begun is not None
        try:
            if failure is None:
                run_blocking(self._ledger.finish(self._begun, "jnull"))
            else:
                run_blocking(self._ledger.fail(self._begun, failure))
        except StaleToken as stale:
            say(f"tick {self.key} was taken over by somebody else: {stale}")
            return exits.LOST
        except EngineError as error:
            say(f"what became of tick {self.key} could not be noted, so it will be run again: {error}")
            return exits.UNREACHABLE
        return None


def _told(step: Step) -> str:
    tried = step.book.open
    if step.state != "waiting" or tried is None:
        return step.state
    again = datetime.fromtimestamp(tried.not_before, UTC).isoformat(timespec="seconds")
    return f"waiting, as attempt {tried.attempt} failed ({visible(tried.error)}): try again after {again}"


def ticks_of(
    locks: Leasehold, name: str, terms: dict[str, Any], *, namespace: str, quiet: bool, verbose: bool
) -> Ticks | None:
    """The ticks that were asked for; None when the program is to run in any case."""
    schedule = _schedule(terms)
    if schedule is None:
        return None
    from leasehold.patterns.jobs.book import Terms
    from leasehold.patterns.jobs.ledger import Ledger
    from leasehold.patterns.jobs.shelves import notes_with

    catch_up: CatchUp = terms["catch_up"] or "latest"
    settings = Terms(catch_up=catch_up, at_most_for=_UNTIL_TAKEN_FOR_CRASHED, attempts=terms["attempts"] or 10)
    notes = notes_with(locks._family, "leasehold-jobs")
    ledger = Ledger(notes, name, namespace=namespace, schedule=schedule, terms=settings)
    return Ticks(ledger, catches_up=catch_up == "all", quiet=quiet, verbose=verbose)


def _schedule(terms: dict[str, Any]) -> Schedule | None:
    every, cron, zone = terms["every"], terms["cron"], terms["zone"]
    if every is None and cron is None:
        for option in ("zone", "catch_up", "attempts"):
            if terms[option] is not None:
                raise click.UsageError(f"--{option.replace('_', '-')} goes with --every or --cron")
        return None
    if every is not None and cron is not None:
        raise click.UsageError("--every and --cron exclude each other")
    if terms["shared"] or terms["permits"] is not None:
        raise click.UsageError("a tick is for one holder alone; leave out --shared and --permits")
    from leasehold.patterns.jobs.schedules import Cron, Every

    try:
        if cron is None:
            if zone is not None:
                raise click.UsageError("--zone goes with --cron; periods are counted in UTC")
            return Every(every)
        return Cron(cron, _zone(zone or "UTC"))
    except Misuse as error:
        raise click.UsageError(str(error)) from None


def _zone(name: str) -> Any:
    from datetime import UTC
    from zoneinfo import ZoneInfo

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError):
        raise click.UsageError(f"there is no time zone {quoted(name)} here; one is Europe/Berlin") from None
