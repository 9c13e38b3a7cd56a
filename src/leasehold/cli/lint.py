"""``leasehold lint``: finds dangerous locking code; the work is done by `leasehold.lint`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from leasehold import __version__
from leasehold.cli.output import complain

CLEAN, FOUND, BROKEN = 0, 1, 2


def _codes(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(code.strip() for value in values for code in value.split(",") if code.strip())


@click.command(
    "lint",
    short_help="Find dangerous locking code, whatever library it uses.",
    epilog="""\b
Examples:
  leasehold lint src/                       look at a folder
  leasehold lint --select LH11 src/         only the rules about releasing
  leasehold lint --ignore LH131,LH133 .     all but these
  leasehold lint --diff src/                show what --fix would change
  leasehold lint --write-baseline .lint.json src/   accept what is there today
  leasehold lint --baseline .lint.json src/         and fail on what is new
  leasehold lint --format sarif src/ > locks.sarif
  leasehold explain LH110                   why a finding is dangerous, and what to write instead

\b
A line that is meant to be so:
  redis.delete(key)  # noqa: LH110

\b
Exit codes:
  0   nothing was found
  1   something was found
  2   a file could not be looked at, or the settings are wrong

Settings are read from [tool.leasehold.lint] in pyproject.toml: select, extend-select, ignore, exclude,
per-file-ignores, baseline, tests.
""",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--select", multiple=True, callback=_codes, metavar="CODES", help="Only these rules: LH110,LH12 or ALL.")
@click.option("--extend-select", multiple=True, callback=_codes, metavar="CODES", help="Also these rules.")
@click.option("--ignore", multiple=True, callback=_codes, metavar="CODES", help="Not these rules.")
@click.option("--exclude", multiple=True, callback=_codes, metavar="GLOBS", help="Files and folders to leave out.")
@click.option("--tests", is_flag=True, help="Also report test files, which break rules on purpose.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "sarif", "github"]), default="text", show_default=True
)
@click.option("--source/--no-source", default=None, help="Show the lines found; by default when a person looks.")
@click.option("--fix", is_flag=True, help="Put right what can be put right with certainty.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and change nothing.")
@click.option("--baseline", metavar="FILE", help="Do not report what this file knows.")
@click.option("--write-baseline", metavar="FILE", help="Write what is found into this file, and succeed.")
@click.option("--config", metavar="FILE", help="The pyproject.toml to read; by default the nearest one.")
@click.option("--jobs", type=click.IntRange(0, 256), default=0, help="Processes; by default one for each processor.")
def command(paths: tuple[str, ...], config: str | None, **options: object) -> int:
    """Look for dangerous locking code in Python files and folders (by default the current one; - is stdin).

    It reads source code and runs none of it. It knows redis-py, python-redis-lock, redlock-py, pottery, aioredlock,
    kazoo, etcd3, filelock, portalocker, fasteners, sherlock, SQLAlchemy, Django, advisory locks, threading, asyncio,
    and locks made by hand from commands of Redis or a cache.
    """
    from leasehold.lint.finding import LintError

    try:
        return _linted(list(paths) or ["."], config, _Options(options))
    except LintError as error:
        complain("leasehold lint", str(error))
        return BROKEN


class _Options:
    """The options of one call, by name."""

    def __init__(self, given: dict[str, object]) -> None:
        self._given = given

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(self._given[name])  # type: ignore[arg-type]

    def flag(self, name: str) -> bool:
        return bool(self._given[name])

    def text(self, name: str) -> str | None:
        value = self._given[name]
        return None if value is None else str(value)

    @property
    def jobs(self) -> int:
        return int(str(self._given["jobs"]))

    @property
    def source(self) -> bool:
        chosen = self._given["source"]
        return sys.stdout.isatty() if chosen is None else bool(chosen)


def _linted(paths: list[str], config_file: str | None, options: _Options) -> int:
    from leasehold.lint import baseline, config, run

    settings = config.read(Path(config_file) if config_file else config.nearest(Path.cwd()))
    settings = replace(
        settings,
        select=options.words("select") or settings.select,
        extend_select=(*settings.extend_select, *options.words("extend_select")),
        ignore=(*settings.ignore, *options.words("ignore")),
        exclude=(*settings.exclude, *options.words("exclude")),
        tests=settings.tests or options.flag("tests"),
    )
    if options.flag("fix") and "-" in paths:
        raise click.UsageError("--fix changes files; - (stdin) cannot be changed, but --diff shows what would be.")
    report = run.lint(paths, settings, jobs=options.jobs, fix=options.flag("fix"), diff=options.flag("diff"))
    written = options.text("write_baseline")
    if written is not None:
        baseline.write(Path(written), report.findings)
        report.findings = []
    known = gone = 0
    file = options.text("baseline") or (str(settings.root / settings.baseline) if settings.baseline else None)
    if file is not None and written is None:
        counts = baseline.read(Path(file))
        report.findings, known, gone = baseline.without_known(report.findings, counts, Path(file).parent)
    _show(report, options, known, gone)
    if report.problems:
        return BROKEN
    return FOUND if report.findings else CLEAN


def _show(report: object, options: _Options, known: int, gone: int) -> None:
    from leasehold.lint import shown
    from leasehold.lint.run import Report

    assert isinstance(report, Report)
    match options.text("form"):
        case "json":
            answer = shown.as_json(report)
        case "sarif":
            answer = shown.as_sarif(report, __version__)
        case "github":
            answer = shown.as_github(report)
        case _ if options.flag("diff"):
            answer = "".join(report.diffs)
        case _:
            answer = shown.as_text(report, colour=_wants_colour(), source=options.source)
    encoding, errors = ("utf-8", "replace") if _is_utf8() else ("ascii", "backslashreplace")
    sys.stdout.write(answer.encode(encoding, errors).decode(encoding))
    sys.stdout.flush()
    if options.text("form") == "text":
        click.echo(shown.summary(report, known=known, gone=gone), err=True)


def _is_utf8() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"


def _wants_colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
