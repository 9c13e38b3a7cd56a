"""``leasehold chaos``: break things under real workers on a real engine, and judge what happened."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasehold.cli import exits
from leasehold.cli.exits import Interrupted
from leasehold.cli.options import read_duration
from leasehold.cli.output import mask, say, write_json
from leasehold.errors import quoted

if TYPE_CHECKING:
    from types import FrameType

    from leasehold.chaos.running import Outcome, Plan
    from leasehold.chaos.schedule import How
    from leasehold.chaos.site import Server

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAYS: dict[str, How] = {"pairs": "pairs", "random": "random"}


def _complete(kind: str) -> Any:
    """Completes the names of one kind; those after a comma, too."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        from leasehold.cli.chaos_shown import names_of

        before, comma, begun = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names_of(kind) if name.startswith(begun)]

    return complete


@click.command(
    "chaos",
    short_help="Break things under real workers on your engine, and judge what happened.",
    epilog="""\b
Examples:
  leasehold chaos --on redis://localhost:6379/15 --report out/
  leasehold chaos --start postgresql --faults pause-in-gap,kill --for 1m
  leasehold chaos --on etcd://localhost --workload bank --faults random --seed 7
  leasehold chaos --list

\b
Exit codes:
  0   no violation was seen (which is not the same as: there is none)
  1   a claim was violated; the lines above say which, and the report shows it
  64  the arguments cannot be right        78  the engine could not be reached
  74  no violation was seen, but the report could not be written
""",
)
@click.option(
    "--on",
    metavar="URL",
    help="The engine, by default LEASEHOLD_URL. Locks are taken in a namespace of their own, and nothing else there is "
    "touched.",
)
@click.option("--start", metavar="ENGINE", shell_complete=_complete("servers"), help="Start a server of the run's own.")
@click.option("--members", type=click.IntRange(1, 9), default=1, show_default=True, help="How many servers to start.")
@click.option(
    "--workload",
    metavar="NAME",
    default="register",
    show_default=True,
    shell_complete=_complete("workloads"),
    help="What the workers do.",
)
@click.option(
    "--faults",
    metavar="LIST",
    default="all",
    show_default=True,
    shell_complete=_complete("faults"),
    help="Names with commas between them, 'all' or 'none'. One strikes at a time; 'pairs' has two, and 'random' up to "
    "three at a time, of all or of those named beside it.",
)
@click.option(
    "--subject",
    metavar="NAME",
    default="leasehold",
    show_default=True,
    shell_complete=_complete("subjects"),
    help="The library that is asked for locks: Leasehold, or a peer.",
)
@click.option("--seed", type=click.IntRange(min=0), help="What chance is drawn from; by default another each time.")
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    default="30",
    show_default=True,
    callback=read_duration,
    help="How long faults strike.",
)
@click.option("--workers", type=click.IntRange(2, 200), default=5, show_default=True, help="How many processes.")
@click.option(
    "--ttl", metavar="TIME", callback=read_duration, help="Of the locks; by default 2s, or the engine's least."
)
@click.option("--wait", metavar="TIME", callback=read_duration, help="How long a worker waits; by default two TTLs.")
@click.option("--permits", type=click.IntRange(1, 1000), default=2, show_default=True, help="For the workload permits.")
@click.option("--report", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Write a page there.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as a JSON object.")
@click.option("--list", "listing", is_flag=True, help="Show the workloads, faults and subjects, and do nothing else.")
def command(*, listing: bool, as_json: bool, **given: Any) -> int:
    """Run worker processes on a real engine, break things, and judge at the resource what came of it.

    The workers share a lock, and what it is to protect is kept twice: plain, as a lock alone protects it, and with a
    fence. Holders are frozen and killed, connections cut, servers restarted (if they are the run's own), all from a
    seed. Then the history is judged: who believed what when, which writes were stale, what was lost, who waited too
    long.
    """
    from leasehold.chaos.running import Run
    from leasehold.cli import chaos_shown

    if listing:
        chaos_shown.write_list(as_json=as_json)
        return exits.OK
    _check_report(given["report"])
    with (
        tempfile.TemporaryDirectory(prefix="leasehold-chaos-") as folder,
        _interruptible(),
        _engine(given, folder) as on,
    ):
        url, servers, own_file = on
        plan = _plan(given, url)
        run_folder = Path(folder) / "run"
        run_folder.mkdir()
        outcome = chaos_shown.run_and_show(Run(plan, run_folder, servers, own_file), plan, as_json=as_json)
    report = _write_report(given["report"], outcome)
    if as_json:
        write_json(chaos_shown.as_data(outcome, report))
    else:
        chaos_shown.write_outcome(outcome, report)
    if outcome.violated:
        return exits.NOTHING_DONE
    return exits.NOT_WRITTEN if given["report"] is not None and report is None else exits.OK


@contextlib.contextmanager
def _engine(given: dict[str, Any], folder: str) -> Iterator[tuple[str, Sequence[Server], Path | None]]:
    """The engine of the run: one that is there, servers of its own, or a file of its own."""
    if given["start"] and given["on"]:
        raise click.UsageError("give --on for an engine that is there, or --start for one of the run's own, not both")
    if given["members"] != 1 and not given["start"]:
        raise click.UsageError("--members is about the servers of --start")
    if given["start"]:
        from leasehold.chaos.faults import FAULTS
        from leasehold.chaos.faults.engine import DiskFault
        from leasehold.chaos.servers import NoServer, started

        servers_folder = Path(folder) / "servers"
        servers_folder.mkdir()
        try:
            disks = any(issubclass(FAULTS[name], DiskFault) for name in _faults(given["faults"])[0])
            with started(given["start"], servers_folder, members=given["members"], witness=disks) as (url, servers):
                yield url, servers, None
        except NoServer as missing:
            raise click.UsageError(str(missing)) from None
        return
    if given["on"] == "":
        raise click.UsageError("--on is empty; give an engine's URL, or leave it out")
    there = given["on"] or os.environ.get("LEASEHOLD_URL")
    own = None if there else Path(folder) / "leases.db"
    yield there or f"sqlite:///{own}", (), own


def _plan(given: dict[str, Any], url: str) -> Plan:
    from leasehold.chaos.running import Plan, facts_of

    ttl = given["ttl"] or max(2.0, facts_of(url).least_ttl)
    faults, how = _faults(given["faults"])
    seed = secrets.randbelow(1_000_000) if given["seed"] is None else given["seed"]
    wait = 2 * ttl if given["wait"] is None else given["wait"]
    settled = {**given, "seed": seed, "ttl": ttl, "wait": wait}
    return Plan(
        url,
        workload=given["workload"],
        faults=faults,
        how=how,
        subject=given["subject"],
        seed=seed,
        seconds=given["seconds"],
        ttl=ttl,
        wait=wait,
        workers=given["workers"],
        permits=given["permits"],
        command=_command(settled),
    )


def _faults(text: str) -> tuple[tuple[str, ...], How]:
    """The faults that are asked for, and how they strike."""
    from leasehold.chaos.faults import FAULTS

    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return (), "alone"
    ways = [word for word in words if word in _WAYS]
    if len(ways) > 1:
        raise click.BadParameter("'pairs' and 'random' are two ways; choose one", param_hint="--faults")
    names = [word for word in words if word not in _WAYS]
    known = ", ".join(FAULTS)
    for name in names:
        if name != "all" and name not in FAULTS:
            raise click.BadParameter(f"there is no fault {name!r}; there are {known}", param_hint="--faults")
    chosen = tuple(FAULTS) if not names or "all" in names else tuple(dict.fromkeys(names))
    return chosen, _WAYS[ways[0]] if ways else "alone"


def _command(given: dict[str, Any]) -> str:
    """The command that repeats a run. A password is not in it."""
    words = ["leasehold", "chaos"]
    for name in ("on", "start", "members", "workload", "faults", "subject", "seed", "for", "workers", "ttl", "wait"):
        value = given["seconds" if name == "for" else name]
        usual = {"members": 1, "subject": "leasehold"}.get(name)
        if value is not None and value != usual:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    if given["workload"] == "permits":
        words += ["--permits", str(given["permits"])]
    return shlex.join(map(mask, words))


def _check_report(folder: Path | None) -> None:
    """Find out before the run, which may take hours, whether its report can be written."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"cannot write into {quoted(str(folder))}: {error.strerror}"
        raise click.BadParameter(why, param_hint="--report") from None


def _write_report(folder: Path | None, outcome: Outcome) -> Path | None:
    """The report's page; None when there is none. What was judged is to be shown even if it cannot be written."""
    if folder is None:
        return None
    from leasehold.chaos.report import write

    try:
        with (folder / "history.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(event.line() + "\n" for event in outcome.history)
        return write(folder, outcome.history, outcome.info, outcome.verdicts).html
    except OSError as error:
        say(f"the report could not be written: {error.strerror}: {quoted(str(error.filename or folder))}")
        return None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let the first signal end the run in good order: what was started is ended before the command is."""
    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}

    def end(signum: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signum)

    for signum, handler in before.items():
        if handler != signal.SIG_IGN:  # our caller had us ignore it (``nohup``)
            signal.signal(signum, end)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
