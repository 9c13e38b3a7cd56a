"""The benchmark: Leasehold beside its peers and the raw cost of each engine, interleaved in one run.

Everything is measured in rounds in which all contestants take their turn, and told as ratios with their spread, so that
figures from noisy machines can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from leasehold.errors import EngineError, Misuse, quoted

if TYPE_CHECKING:
    from leasehold.bench.effort import Effort, Measure, Steps
    from leasehold.bench.results import Results

GOT_WORSE = 3
"""The exit code when anything got worse than in earlier results."""
NOT_WRITTEN = 74
"""The exit code when all is well, except that the results could not be written to the file."""
SECTIONS = {
    "uncontended": "take + release of a free name, beside the floor of the engine and peers",
    "contended": "eight processes want one name: holder changes, fairness, hand-off",
    "idle": "what 64 idle waiters cost the server and this machine",
    "many": "10,000 leases on one keeper, 10,000 waiting tasks: memory, processor, none lost",
    "imports": "`import leasehold` beside `import redis`",
    "fencing": "a write with a fence beside the same write without",
    "patterns": "each pattern beside the library that people use today for it",
    "watching": "what metrics cost, and that they cost nothing while nobody watches",
}

EXAMPLES = """
examples:
  leasehold bench                             a private Redis server and a temporary SQLite file; about five minutes
  leasehold bench --quick                     the same in half a minute, with less certainty
  leasehold bench --only uncontended,imports
  leasehold bench --on redis://10.0.0.5       your own engine; only a fresh namespace is touched, and cleared
  leasehold bench --engines all               a private server of every engine that is on this machine
  leasehold bench --engines 'zookeeper*3'     a private cluster of three; all ask the same member, which does not lead
  leasehold bench --json results.json         also for programs; with --add, to what the file holds already
  leasehold bench --against results.json      says what got worse than in those, and exits with 3 if anything did
  leasehold bench --render results.json       those results as Markdown, or with --plots FOLDER as pictures
"""


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code: 0 when all of it ran, whether or not the aims were met."""
    options = _parser().parse_args(argv)
    if options.render is not None:
        return _render(options.render, options.into, options.plots)
    from leasehold.bench.effort import FULL, QUICK

    signal.signal(signal.SIGTERM, _exit_on_signal)  # what was started is ended on the way out
    try:
        earlier = None if options.against is None else _read(options.against)
        _check_output(options.json, adds=options.add)
        results = run(options.on, options.only, QUICK if options.quick else FULL, engines=options.engines)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    except Misuse as error:
        sys.stderr.write(f"{error}\n")
        return 64
    except (EngineError, OSError) as error:
        is_about_a_file = isinstance(error, OSError) and error.filename is not None
        sys.stderr.write(
            f"{'it cannot be measured here' if is_about_a_file else 'the engine cannot be reached'}: {error}\n"
        )
        return 78
    code = _told(results, earlier)
    return code if _written(options.json, results, adds=options.add) else code or NOT_WRITTEN


def _read(path: Path) -> Results:
    from leasehold.bench.results import NotAResult, Results

    try:
        return Results.read(path)
    except OSError as error:
        raise Misuse(f"cannot read {quoted(str(path))}: {error.strerror}") from None
    except ValueError as error:
        why = error if isinstance(error, NotAResult) else "not a file of results"
        raise Misuse(f"{quoted(str(path))}: {why}") from None


def _check_output(path: Path | None, *, adds: bool) -> None:
    """Find out before minutes are spent whether the results can be written, and added to those that are there."""
    if path is None:
        return
    try:
        if not path.exists():
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        elif path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif adds:
            _read(path)
    except OSError as error:
        raise Misuse(f"cannot write {quoted(str(path))}: {error.strerror}") from None


def _written(path: Path | None, results: Results, *, adds: bool) -> bool:
    """Write the results to the file that was asked for; says why, if that cannot be done."""
    if path is None:
        return True
    try:
        whole = _read(path).followed_by(results) if adds and path.exists() else results
        path.write_text(whole.to_json(), encoding="utf-8")
    except (OSError, Misuse) as error:
        why = error.strerror if isinstance(error, OSError) else error
        sys.stderr.write(f"the results could not be written to {quoted(str(path))}: {why}\n")
        return False
    return True


def _told(results: Results, earlier: Results | None) -> int:
    from rich.console import Console

    from leasehold.bench.against import compared
    from leasehold.bench.report import show

    show(results, Console())
    comparison = None if earlier is None else compared(earlier, results)
    if comparison is not None:
        sys.stdout.write(comparison.text)
    if results.failed:
        return 1
    return GOT_WORSE if comparison is not None and comparison.worse else 0


def _parser() -> argparse.ArgumentParser:
    described = "\n".join(f"  {name:12} {what}" for name, what in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="leasehold bench",
        description=f"Measure Leasehold beside its peers and the raw cost of the engine.\n\nsections:\n{described}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--on", metavar="URL", help="measure this engine instead of private ones")
    where.add_argument(
        "--engines", metavar="NAMES", type=_engines, default=None, help="private ones of these; comma-separated, or all"
    )
    parser.add_argument("--only", metavar="SECTIONS", type=_sections, default=list(SECTIONS), help="comma-separated")
    parser.add_argument("--quick", action="store_true", help="half a minute; figures are less certain")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to a file, for programs")
    parser.add_argument("--add", action="store_true", help="with --json: keep what the file holds of other tables")
    parser.add_argument("--against", metavar="FILE", type=Path, help="tell what got worse than in earlier results")
    parser.add_argument("--render", metavar="FILE", type=Path, help="only print earlier results as Markdown")
    parser.add_argument("--into", metavar="PAGE", type=Path, help="with --render: put them between the page's markers")
    parser.add_argument("--plots", metavar="FOLDER", type=Path, help="with --render: draw them as SVG in this folder")
    return parser


def _engines(text: str) -> list[str]:
    from leasehold.bench.places import CLUSTERS, ENGINES

    chosen, known = list(ENGINES) if text == "all" else text.split(","), (*ENGINES, *CLUSTERS)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no engine {unknown[0]!r}; there are {', '.join(known)}")
    return chosen


def _sections(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in chosen]


def run(
    on: str | None, sections: list[str], effort: Effort, *, engines: Sequence[str] | None = None, quiet: bool = False
) -> Results:
    """Measure the sections on the engine that is named, or on private ones."""
    from leasehold.bench.effort import Run
    from leasehold.bench.machine import machine, versions
    from leasehold.bench.places import USUAL, private_places, users_place
    from leasehold.bench.results import Results

    with contextlib.ExitStack() as stack:
        places, missing = stack.enter_context(private_places(engines or USUAL) if on is None else users_place(on))
        steps = stack.enter_context(_progress(quiet=quiet))
        results = Results(effort.name, machine(), versions(places), skipped=missing)
        for section in sections:
            # Imported only now: `leasehold --help` needs none of it.
            measure: Measure = importlib.import_module(f"leasehold.bench.{section}").measure
            try:
                results.add(measure(Run(places, effort, steps)))
            except Exception as error:  # noqa: BLE001 -- what the other sections found must not be lost
                results.failed.append(f"{section}: {type(error).__name__}: {error}")
        return results


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Steps]:
    from rich.console import Console
    from rich.progress import Progress

    from leasehold.bench.effort import Steps

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield Steps()
        return
    with Progress(console=console, transient=True) as progress:
        yield Steps(progress)


def _render(path: Path, page: Path | None, plots: Path | None) -> int:
    from leasehold.bench.plots import write_all
    from leasehold.bench.report import markdown, write_into
    from leasehold.bench.results import NotAResult, Results

    try:
        results = Results.read(path)
        if plots is not None:
            write_all(plots, results)
        if page is not None:
            write_into(page, results)
        elif plots is None:
            sys.stdout.write(markdown(results))
    except (OSError, NotAResult) as error:
        sys.stderr.write(f"cannot render {path.name}: {error}\n")
        return 1
    return 0


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)
