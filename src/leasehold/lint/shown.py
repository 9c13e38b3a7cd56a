"""How a report is written: for people, as JSON, as SARIF 2.1.0, and as annotations of GitHub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from urllib.parse import quote

from leasehold.lint.finding import Finding, Problem
from leasehold.lint.rule import all_rules
from leasehold.lint.run import Report

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def visible(text: str) -> str:
    """Text that cannot steer a terminal; tabs become one space, so that marks below stand right."""
    text = text.replace("\t", " ")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


# For people


def as_text(report: Report, *, colour: bool, source: bool) -> str:
    """One line a finding; with `source` also the line of the file, with the place marked."""
    paint = _paint if colour else _plain
    out = []
    for one in report.findings:
        place = f"{paint(visible(one.path), '1')}:{one.line}:{one.column}:"
        out.append(f"{place} {paint(one.code, '1;31')} {visible(one.message)}{_fix_mark(one, colour)}")
        if source:
            out += _marked(one, colour)
    for problem in report.problems:
        at = f":{problem.line}" if problem.line else ""
        out.append(f"{paint(visible(problem.path), '1')}{at}: {paint('error', '1;33')}: {visible(problem.message)}")
    return "".join(f"{line}\n" for line in out)


def _fix_mark(one: Finding, colour: bool) -> str:
    return (" " + (_paint if colour else _plain)("[--fix]", "36")) if one.fixable else ""


def _marked(one: Finding, colour: bool) -> Iterator[str]:
    paint = _paint if colour else _plain
    number = str(one.line)
    line = one.source_line.rstrip()
    bar = paint("|", "34")
    start = len(visible(line[: one.column - 1]))
    width = max(1, len(visible(line[one.column - 1 : one.end_column - 1])))
    yield f"{paint(number.rjust(5), '34')} {bar} {visible(line)}"
    yield f"      {bar} {' ' * start}{paint('^' * width, '1;31')}"
    yield ""


def _paint(text: str, style: str) -> str:
    return f"\033[{style}m{text}\033[0m"


def _plain(text: str, _style: str) -> str:
    return text


def summary(report: Report, *, known: int, gone: int) -> str:
    """What was done, in one line."""
    parts = [f"{_count(len(report.findings), 'finding')} in {_count(report.files, 'file')}"]
    if report.fixed:
        parts.append(f"{report.fixed} fixed")
    fixable = sum(one.fixable for one in report.findings)
    if fixable:
        parts.append(f"{fixable} can be fixed with --fix")
    if known:
        parts.append(f"{known} known from the baseline")
    if gone:
        parts.append(f"{gone} of the baseline no longer there: write it anew")
    if report.tests_left_out:
        parts.append(f"{_count(report.tests_left_out, 'test file')} left out (--tests)")
    if report.problems:
        parts.append(f"{_count(len(report.problems), 'file')} could not be looked at")
    if report.findings:
        parts.append(f"why: leasehold explain {report.findings[0].code}")
    return "; ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# For programs


def as_json(report: Report) -> str:
    """One document with all findings and problems."""
    names = {one.code: one.name for one in all_rules()}
    document = {
        "version": 1,
        "files": report.files,
        "findings": [
            {
                "path": one.path,
                "line": one.line,
                "column": one.column,
                "end_line": one.end_line,
                "end_column": one.end_column,
                "code": one.code,
                "name": names[one.code],
                "message": one.message,
                "fixable": one.fixable,
            }
            for one in report.findings
        ],
        "problems": [{"path": one.path, "line": one.line, "message": one.message} for one in report.problems],
    }
    return json.dumps(document, indent=1) + "\n"


def as_sarif(report: Report, version: str) -> str:
    """One run in the format that code scanners exchange."""
    rules = all_rules()
    index = {one.code: number for number, one in enumerate(rules)}
    driver = {
        "name": "leasehold lint",
        "semanticVersion": version,
        "rules": [
            {
                "id": one.code,
                "name": "".join(word.capitalize() for word in one.name.split("-")),
                "shortDescription": {"text": one.title},
                "fullDescription": {"text": " ".join(one.section("Why").split())},
                "help": {"text": one.page, "markdown": one.page},
                "defaultConfiguration": {"level": "error", "enabled": one.by_default},
            }
            for one in rules
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.problems,
                "toolExecutionNotifications": [_notification(one) for one in report.problems],
            }
        ],
        "results": [
            {
                "ruleId": one.code,
                "ruleIndex": index[one.code],
                "level": "error",
                "message": {"text": one.message},
                "locations": [{"physicalLocation": _place(one)}],
                "partialFingerprints": {"line/v1": _fingerprint(one)},
            }
            for one in report.findings
        ],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _place(one: Finding) -> dict[str, object]:
    region = {
        "startLine": one.line,
        "startColumn": one.column,
        "endLine": one.end_line,
        "endColumn": max(one.end_column, one.column if one.end_line == one.line else 1),
    }
    return {"artifactLocation": {"uri": _uri(one.path)}, "region": region}


def _notification(one: Problem) -> dict[str, object]:
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(one.path)}}}
    return {"level": "error", "message": {"text": f"{one.path} {one.message}"}, "locations": [place]}


def _uri(path: str) -> str:
    return quote(path.replace(os.sep, "/").encode("utf-8", "surrogateescape"))


def _fingerprint(one: Finding) -> str:
    line = " ".join(one.source_line.split())
    return hashlib.sha256(f"{one.path}\0{one.code}\0{line}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def as_github(report: Report) -> str:
    """Commands that GitHub Actions turns into annotations of the changed lines."""
    names = {one.code: one.name for one in all_rules()}
    out = []
    for one in report.findings:
        where = f"file={_property(one.path)},line={one.line},endLine={one.end_line},col={one.column}"
        where += f",endColumn={one.end_column},title={_property(f'{one.code} {names[one.code]}')}"
        out.append(f"::error {where}::{_data(one.message)}")
    for problem in report.problems:
        line = f",line={problem.line}" if problem.line else ""
        out.append(f"::error file={_property(problem.path)}{line}::{_data(f'{problem.path} {problem.message}')}")
    return "".join(f"{line}\n" for line in out)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
