"""``leasehold run``: a program under a lease."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasehold.cli import exits, on_lost
from leasehold.cli.exits import Interrupted
from leasehold.cli.options import client, engine_options, read_duration, read_name
from leasehold.cli.output import HeldBack, say
from leasehold.cli.ticks import MOST_AT_ONCE, tick_options, ticks_of
from leasehold.errors import EngineError, LeaseholdError, LeaseLost, NotAcquired, quoted, seconds_text

if TYPE_CHECKING:
    from leasehold import Lease, Leasehold, Lock
    from leasehold.cli.guard import Guard
    from leasehold.cli.on_lost import Steps, Window
    from leasehold.cli.supervise import Ending, Supervisor
    from leasehold.cli.ticks import Ticks

_TELL_OF_WAIT_AFTER = 1.0
_ENDS_A_WAIT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _read_steps(_ctx: click.Context, param: click.Parameter, value: str) -> Steps:
    try:
        return on_lost.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


@click.command(
    "run",
    short_help="Run a program under a lease.",
    epilog="""\b
Examples:
  leasehold run nightly-export -- python export.py
  leasehold run deploy --ttl 60 --wait 10m -- ./deploy.sh production
  leasehold run report --shared -- ./report.sh
  leasehold run crawler --permits 3 --longest-hold 1h -- ./crawl
  leasehold run invoices --every 1d -- ./invoices.sh
  leasehold run closing --cron '30 2 * * *' --zone Europe/Berlin -- ./close.sh
  LEASEHOLD_URL=redis://db1/0 leasehold run nightly-export --quiet -- ./export.sh

\b
The program's environment:
  LEASEHOLD_TOKEN     the fencing token; send it along with every write
  LEASEHOLD_NAME      the name
  LEASEHOLD_TTL       how many seconds the lease lasts from each renewal
  LEASEHOLD_DEADLINE  until when the lease is valid without any renewal, on the
                      system's clock since boot (first number in /proc/uptime)
  LEASEHOLD_TICK      with --every or --cron: the tick, such as
                      2026-03-01T00:00:00.000000+00:00

\b
Exit codes:
  the program's own; 128+n when signal n ended it
  64   the arguments cannot be right
  75   the name was not free within --wait, or a tick that failed is to be tried
       later; the program did not run
  76   with --every or --cron: the tick was done before; the program did not run
  77   the lease was lost, and the program was ended
  78   the engine could not be reached; the program did not run (or, with --every
       and --cron, that it did could not be noted)
  126  the program cannot be executed       127  the program was not found
""",
)
@click.argument("name", callback=read_name, metavar="NAME")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENT]...")
@engine_options
@click.option(
    "--ttl",
    callback=read_duration,
    default="30",
    show_default=True,
    metavar="SECONDS",
    help="How long the lease lasts without a renewal. It is renewed at a third of it.",
)
@click.option(
    "--wait",
    callback=read_duration,
    default="0",
    show_default="0: try once",
    metavar="SECONDS",
    help="How long to wait for the name.",
)
@click.option(
    "--on-lost",
    "steps",
    callback=_read_steps,
    default=on_lost.DEFAULT,
    show_default=True,
    metavar="STEPS",
    help="How to end the program when the lease cannot be kept: signals and the seconds to wait after each, "
    "counted back from the deadline. SIGKILL always comes in time.",
)
@click.option(
    "--longest-hold",
    callback=read_duration,
    metavar="SECONDS",
    help="End the program after so long, so that a hung one does not hold the name for ever.",
)
@click.option(
    "--purpose",
    type=click.Choice(["efficiency", "correctness"]),
    default="efficiency",
    show_default=True,
    help="With correctness, an engine that cannot keep tokens increasing is refused.",
)
@tick_options
@click.option("--shared", is_flag=True, help="Hold the name together with other --shared holders.")
@click.option("--permits", type=int, metavar="N", help="Let up to N hold the name at once.")
@click.option("--label", metavar="TEXT", help="Who holds it, for people; by default the program's name.")
@click.option(
    "-q", "--quiet", is_flag=True, help="Say nothing of a busy name or of the deployment; tell of errors only."
)
@click.option("-v", "--verbose", is_flag=True, help="Say what happens to the lease.")
def command(
    *,
    name: str,
    program: tuple[str, ...],
    on: str | None,
    namespace: str,
    steps: Steps,
    label: str | None,
    quiet: bool,
    verbose: bool,
    **terms: Any,
) -> int:
    """Run PROGRAM while holding the lease on NAME, and return its exit code.

    The program never runs without the lease: when the lease cannot be kept, the program and everything in its process
    group is ended before the lease is over. Its standard streams and signals are its own.
    """
    from leasehold.cli.on_lost import Window

    _check(program, terms, quiet=quiet, verbose=verbose)
    missing = _why_not_executable(program[0])
    if missing is not None:
        say(missing[1])
        return missing[0]
    # A crontab calls this on every host, again and again: what is always the same is told when the program runs, not
    # each time that there is nothing to do.
    remarks = HeldBack(for_good=quiet)
    if verbose or sys.stderr.isatty():
        remarks.tell()
    with client(on, namespace, label=label or _label(program[0])) as locks:
        ticks = ticks_of(locks, name, terms, namespace=namespace, quiet=quiet, verbose=verbose)
        lock = _lock(locks, name, terms)
        window = Window(terms["ttl"], terms["longest_hold"])
        fitted = steps.fitted(window)
        _tell_of_shortening(steps, fitted, quiet=quiet, verbose=verbose)
        for number in range(MOST_AT_ONCE):
            run = _Run(program, lock, fitted, window, ticks=ticks, verbose=verbose, remarks=remarks)
            code = run.call(locks, quiet=quiet, wait=terms["wait"])
            if number and code == exits.DONE_BEFORE:
                return exits.OK  # all is caught up with
            if ticks is None or not ticks.catches_up or code != exits.OK:
                return code
        return exits.OK


class _Run:
    """One call: guard, lease, program, in this order, and back."""

    def __init__(
        self,
        program: Sequence[str],
        lock: Lock,
        steps: Steps,
        window: Window,
        *,
        ticks: Ticks | None,
        verbose: bool,
        remarks: HeldBack,
    ) -> None:
        self.program, self.lock, self.steps, self.window = program, lock, steps, window
        self._ticks, self._verbose, self._remarks = ticks, verbose, remarks
        self._supervisor: Supervisor | None = None

    def call(self, locks: Leasehold, *, quiet: bool, wait: float) -> int:
        from leasehold.cli.guard import Guard
        from leasehold.cli.wakeups import interruptible

        guard, lease = Guard(self.steps, self.window), None
        try:
            # Until the supervisor makes signals the program's, one of these ends the call.
            with interruptible(_ENDS_A_WAIT):
                lease = self._acquire(locks, wait)
                self._tell(f"holds {quoted(lease.name)} with token {lease.token}")
                resting = self._begin_tick(lease)
                return self._under(lease, guard) if resting is None else resting
        except NotAcquired as busy:
            if not quiet:
                say(str(busy))
            return exits.BUSY
        except Interrupted:
            if lease is not None and not (self._supervisor is not None and self._supervisor.started):
                with contextlib.suppress(LeaseholdError):
                    lease.release()
            raise
        finally:
            guard.dismiss()

    def _acquire(self, locks: Leasehold, wait: float) -> Lease:
        patience = threading.Timer(_TELL_OF_WAIT_AFTER, _tell_of_wait, [locks, self.lock.name, wait])
        patience.daemon = True
        if wait > _TELL_OF_WAIT_AFTER and (self._verbose or sys.stderr.isatty()):
            patience.start()
        try:
            return self.lock.acquire()
        finally:
            patience.cancel()

    def _begin_tick(self, lease: Lease) -> int | None:
        """Find out whether there is a tick to run for; the exit code when there is none."""
        if self._ticks is None:
            return None
        try:
            code = self._ticks.begin(lease.token)
        except BaseException:
            lease.release()
            raise
        if code is not None:
            lease.release()
        return code

    def _under(self, lease: Lease, guard: Guard) -> int:
        from leasehold.cli.supervise import NotStarted, Supervisor

        self._remarks.tell()
        self._supervisor = Supervisor(lease, self.steps, self.window, guard)
        try:
            ending = self._supervisor.run(self.program, _environment(lease, self._ticks))
        except NotStarted as failure:
            if self._ticks is not None:
                self._ticks.not_started()
            lease.release()
            code, message = _not_started(self.program[0], failure.cause)
            say(message)
            return code
        not_noted = self._ticks.end(ending) if self._ticks is not None else None
        lost = self._give_back(lease, ending)
        if not_noted is not None and ending.code == exits.OK and not lost:
            return not_noted
        if lost:
            say(f"exit code {exits.LOST}, because the lease was lost; the program's own was {ending.code}")
            return exits.LOST
        if ending.interrupted:
            raise Interrupted(signal.SIGINT, group=ending.had_terminal)
        return ending.code

    def _give_back(self, lease: Lease, ending: Ending) -> bool:
        """Release what is still held; returns whether the lease was lost."""
        if not ending.gone:
            say(f"some of the program cannot be ended; the lease on {quoted(lease.name)} is left to run out")
            return ending.lost is not None
        try:
            lease.release()
            self._tell(f"released {quoted(lease.name)}")
        except LeaseLost as loss:
            if ending.lost is None:
                say(str(loss))
            return True
        except EngineError as error:
            if ending.lost is None:
                say(f"{quoted(lease.name)} could not be released and ends by itself in {lease.ttl:g} s: {error}")
        return ending.lost is not None

    def _tell(self, message: str) -> None:
        if self._verbose:
            say(message)


def _check(program: Sequence[str], terms: dict[str, Any], *, quiet: bool, verbose: bool) -> None:
    if not hasattr(os, "fork"):
        raise click.UsageError("needs a system with process groups (Linux, macOS)")
    if not program or not program[0]:
        raise click.UsageError("say which program to run, after --, as in: leasehold run nightly-export -- ./export.sh")
    if any("\0" in word for word in program):
        raise click.UsageError("an argument of the program contains a NUL character, which no program can be given")
    if terms["shared"] and terms["permits"] is not None:
        raise click.UsageError("--shared and --permits exclude each other: a name is one or the other")
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")


def _lock(locks: Leasehold, name: str, terms: dict[str, Any]) -> Lock:
    common = {key: terms[key] for key in ("ttl", "wait", "longest_hold", "purpose")}
    if terms["shared"]:
        return locks.shared(name, **common)
    if terms["permits"] is not None:
        return locks.permits(name, of=terms["permits"], **common)
    return locks.lock(name, **common)


def _label(program: str) -> str:
    return "".join(c for c in Path(program).name if c.isalnum() or c in "._-")[:32] or "program"


def _environment(lease: Lease, ticks: Ticks | None) -> dict[str, str]:
    return {
        **os.environ,
        **({} if ticks is None else {"LEASEHOLD_TICK": ticks.key}),
        "LEASEHOLD_NAME": lease.name,
        "LEASEHOLD_TOKEN": str(lease.token),
        "LEASEHOLD_TTL": f"{lease.ttl:g}",
        "LEASEHOLD_DEADLINE": f"{lease.valid_until - 0.001:.3f}",  # never rounded up
    }


def _tell_of_wait(locks: Leasehold, name: str, wait: float) -> None:
    try:
        status = locks.status(name)
    except LeaseholdError as error:
        say(f"waiting up to {seconds_text(wait)} for {quoted(name)}: {error}")
        return
    holders = [holder.about for holder in status.holders] if status is not None else []
    by = f", held by {holders[0]}" + (f" and {len(holders) - 1} more" if len(holders) > 1 else "") if holders else ""
    say(f"waiting up to {seconds_text(wait)} for {quoted(name)}{by}")


def _tell_of_shortening(asked: Steps, fitted: Steps, *, quiet: bool, verbose: bool) -> None:
    if quiet or fitted is asked or not (verbose or asked != on_lost.parse(on_lost.DEFAULT)):
        return
    say(
        f"the steps of --on-lost take {fitted.total:.3g} s instead of {asked.total:.3g} s: they must fit into two "
        "fifths of the TTL (or of the longest hold); raise --ttl to give the program longer"
    )


# Programs that cannot be started


def _why_not_executable(program: str) -> tuple[int, str] | None:
    """Look before taking the lease: a typing error should be told at once, however long the queue is."""
    found = False
    for path in [Path(program)] if "/" in program else [Path(folder) / program for folder in os.get_exec_path()]:
        try:
            if path.is_file() and os.access(path, os.X_OK):
                return None
            found = found or path.exists()
        except OSError:
            continue
    return _not_started(program, PermissionError() if found else FileNotFoundError())


def _not_started(program: str, error: OSError) -> tuple[int, str]:
    if isinstance(error, FileNotFoundError):
        where = "" if "/" in program else " on PATH"
        return exits.NOT_FOUND, f"the program {quoted(program)} was not found{where}"
    if error.errno == errno.ENOEXEC:
        why = "it is neither a binary nor a script with an interpreter line (#!)"
    else:
        why = error.strerror or "it is not an executable file"
    return exits.NOT_EXECUTABLE, f"the program {quoted(program)} cannot be executed: {why}"
