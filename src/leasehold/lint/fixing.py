"""Safe fixes: applies the edits of findings, and makes sure that the result is still Python."""

from __future__ import annotations

import ast
import difflib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from leasehold.lint.finding import Edit, Finding

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def fixed(source: str, findings: Sequence[Finding]) -> str:
    """The source with the edits of these findings; of two that overlap only the first."""
    lines = [line.encode("utf-8", "surrogatepass") for line in _LINES.findall(source)]
    taken: list[Edit] = []
    for finding in findings:
        if finding.edits and not any(_overlap(edit, other) for edit in finding.edits for other in taken):
            taken += finding.edits
    for edit in sorted(taken, reverse=True):
        before = lines[edit.line - 1][: edit.column]
        after = lines[edit.end_line - 1][edit.end_column :] if edit.end_line <= len(lines) else b""
        lines[edit.line - 1 : edit.end_line] = [before + edit.text.encode() + after]
    result = b"".join(lines).decode("utf-8", "surrogatepass")
    return result if _is_python(result) else source


def _overlap(one: Edit, other: Edit) -> bool:
    start, end = (one.line, one.column), (one.end_line, one.end_column)
    return start < (other.end_line, other.end_column) and (other.line, other.column) < end


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def diff(path: str, before: str, after: str) -> str:
    """The change as a patch."""
    old, new = (_LINES.findall(text) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(ended)


def write(path: Path, raw: bytes) -> None:
    """Replace a file as a whole; whoever reads it meanwhile sees the old or the new one."""
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        Path(name).chmod(path.stat().st_mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
