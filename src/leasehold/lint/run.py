"""Looks at files, in as many processes as pay off."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.lint import files, fixing, noqa
from leasehold.lint.config import Config
from leasehold.lint.finding import Finding, Problem
from leasehold.lint.module import Module
from leasehold.lint.rule import Rule, all_rules, selected

_LOCKING = re.compile(
    r"(?<![bc])lock|(?<!re)(?<!p)lease|mutex|semaphore|setnx|\bnx\s*=|select_for_update|for update|set local|token"
    r"|redis|cache\.|idempoten|event_id|message_id|request_id|dedup|delivery_id|\.objects\."
)
"""A file without any of these has nothing to do with locks; most files need no closer look."""
WORTH_PROCESSES = 600_000
"""So many bytes of source take longer to look at than a second process takes to start."""
PORTIONS = 8
"""Portions of work for each process: enough that none ends long before the others."""


@dataclass
class Report:
    """What was found in some files."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    tests_left_out: int = 0
    diffs: list[str] = field(default_factory=list)
    fixed: int = 0

    def add(self, other: Report) -> None:
        """Take over what another report has."""
        self.findings += other.findings
        self.problems += other.problems
        self.diffs += other.diffs
        self.files += other.files
        self.lines += other.lines
        self.tests_left_out += other.tests_left_out
        self.fixed += other.fixed


@dataclass(frozen=True)
class Task:
    """How to look at files; codes instead of rules, because it travels to other processes."""

    codes: tuple[str, ...]
    tests: bool = False
    fix: bool = False
    diff: bool = False
    stdin_path: str = "-"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules themselves."""
        return tuple(one for one in all_rules() if one.code in self.codes)


def lint(paths: Sequence[str], config: Config, *, jobs: int = 0, fix: bool = False, diff: bool = False) -> Report:
    """Look at all Python files in these files and folders."""
    report = Report()
    found, report.problems = files.find(paths, config.exclude, config.root)
    rules = selected(config.select, config.extend_select, config.ignore)
    task = Task(tuple(one.code for one in rules), tests=config.tests, fix=fix, diff=diff)
    for part in _carried_out(found, task, jobs or _processors()):
        report.add(part)
    report.findings = [one for one in report.findings if not _is_ignored(one, config)]
    report.findings.sort()
    report.problems.sort()
    report.diffs.sort()
    return report


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _carried_out(paths: list[str], task: Task, jobs: int) -> list[Report]:
    sizes = {path: _size(path) for path in paths}
    if jobs < 2 or len(paths) < 2 or sum(sizes.values()) < WORTH_PROCESSES:
        return [_look_at_all(paths, task)]
    # The largest files first, dealt out in turn: the portions take about the same time.
    paths = sorted(paths, key=lambda path: -sizes[path])
    count = min(len(paths), jobs * PORTIONS)
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(_look_at_all, [paths[number::count] for number in range(count)], [task] * count))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0


def _look_at_all(paths: list[str], task: Task) -> Report:
    report = Report()
    rules = task.rules
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the parser thinks of other people's escapes
        for path in paths:
            report.add(_look_at(path, task, rules))
    return report


def _look_at(path: str, task: Task, rules: tuple[Rule, ...]) -> Report:
    try:
        raw, source = files.read(path)
    except files.Unreadable as error:
        return Report(problems=[Problem(path, str(error))], files=1)
    shown = task.stdin_path if path == "-" else path
    report = look_at_source(shown, source, rules, tests=task.tests)
    if (task.fix or task.diff) and any(one.fixable for one in report.findings):
        _fix(path, raw, report, task, rules)
    return report


def _fix(path: str, raw: bytes, report: Report, task: Task, rules: tuple[Rule, ...]) -> None:
    source = after = files.decoded(raw)
    findings = report.findings
    while any(one.fixable for one in findings):
        changed = fixing.fixed(after, findings)
        if changed == after:
            break
        after, before = changed, len(findings)
        findings = look_at_source(path, after, rules, tests=task.tests).findings
        if len(findings) >= before:
            break
    if after == source:
        return
    if task.diff:
        report.diffs.append(fixing.diff(path, source, after))
        return
    try:
        fixing.write(Path(path), _encoded(after, raw))
    except OSError as error:
        report.problems.append(Problem(path, f"cannot be fixed: {error.strerror}"))
        return
    report.fixed += len(report.findings) - len(findings)
    report.findings[:] = findings


def _encoded(text: str, raw: bytes) -> bytes:
    import io
    import tokenize

    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    return text.encode(encoding)


def look_at_source(path: str, source: str, rules: Sequence[Rule], *, tests: bool = True) -> Report:
    """Look at the source of one file."""
    report = Report(files=1, lines=source.count("\n"))
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        report.problems.append(Problem(path, f"is not Python that can be parsed: {error.msg}", error.lineno or 0))
        return report
    except (ValueError, RecursionError, MemoryError) as error:
        report.problems.append(Problem(path, f"cannot be parsed: {type(error).__name__}: {error}"))
        return report
    folded = source.lower()
    wanted = [one for one in rules if any(word in folded for word in one.words)] if _LOCKING.search(folded) else []
    if not wanted:
        return report
    try:
        module = Module(path, source, tree)
    except RecursionError:
        report.problems.append(Problem(path, "is nested too deeply to be looked at"))
        return report
    if module.is_test and not tests:
        report.tests_left_out = 1
        return report
    for one in wanted:
        _apply(one, module, report)
    return report


def _apply(one: Rule, module: Module, report: Report) -> None:
    try:
        found = {finding: finding for finding in one.check(module)}
    except RecursionError:
        report.problems.append(Problem(module.path, f"is nested too deeply for {one.code} to look at"))
    except Exception as error:  # noqa: BLE001 -- a defect of one rule must not end the others
        report.problems.append(
            Problem(module.path, f"{one.code} failed here ({type(error).__name__}: {error}); please report it")
        )
    else:
        report.findings += [finding for finding in found.values() if not noqa.is_silenced(finding, module.lines)]


def _is_ignored(finding: Finding, config: Config) -> bool:
    return any(
        files.is_excluded(finding.path, [pattern], config.root)
        and any(code.upper() == "ALL" or finding.code.startswith(code.upper()) for code in codes)
        for pattern, codes in config.per_file_ignores.items()
    )
