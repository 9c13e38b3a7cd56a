"""The baseline: findings that are known, so that only new ones fail.

A finding is known by its file, its rule and the text of its line, so that lines may move.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leasehold.lint.finding import Finding, LintError, quoted

VERSION = 1
Key = tuple[str, str, str]


def _key(finding: Finding, folder: Path) -> Key:
    path = os.path.relpath(finding.path, folder).replace(os.sep, "/")
    return path, finding.code, " ".join(finding.source_line.split())


def write(file: Path, findings: Sequence[Finding]) -> None:
    """Make these findings the known ones."""
    counts = Counter(_key(finding, file.parent) for finding in findings)
    document = {
        "version": VERSION,
        "findings": [
            {"path": path, "code": code, "line": line, "count": count}
            for (path, code, line), count in sorted(counts.items())
        ],
    }
    try:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise LintError(f"cannot write the baseline {quoted(str(file))}: {error.strerror}") from error


def read(file: Path) -> Counter[Key]:
    """The known findings, and how often each may occur."""
    try:
        document = json.loads(file.read_bytes())
        counts = _counts(document)
    except OSError as error:
        raise LintError(
            f"cannot read the baseline {quoted(str(file))}: {error.strerror}; --write-baseline makes one"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LintError(f"{quoted(str(file))} is no baseline; make it anew with --write-baseline") from error
    return counts


def _counts(document: Any) -> Counter[Key]:
    if document["version"] != VERSION:
        raise ValueError("another version")
    counts: Counter[Key] = Counter()
    for one in document["findings"]:
        if type(one["count"]) is not int:
            raise TypeError("count")
        counts[(str(one["path"]), str(one["code"]), str(one["line"]))] += one["count"]
    return counts


def without_known(findings: Sequence[Finding], known: Counter[Key], folder: Path) -> tuple[list[Finding], int, int]:
    """The findings that are new, how many are known, and how many known ones are no longer there."""
    left = known.copy()
    new = []
    for finding in findings:
        key = _key(finding, folder)
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(finding)
    return new, len(findings) - len(new), sum(count for count in left.values() if count > 0)
