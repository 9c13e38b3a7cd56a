"""Which files to look at, and how to read one. Links to folders are not followed, so that no loop can trap it."""

from __future__ import annotations

import io
import os
import stat
import tokenize
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from leasehold.lint.finding import Problem

MOST_BYTES = 4_000_000
"""A longer file was made by a program; looking at it would take all the time and memory there is."""

LEFT_OUT = frozenset(
    {
        "__pycache__", "__pypackages__", "build", "dist", "node_modules", "site-packages", "venv", "_build", "buck-out",
    }
)  # fmt: skip
"""Folders that hold nobody's own source; so do those that begin with a dot."""


class Unreadable(Exception):
    """A file cannot be looked at; the message says why."""


def find(paths: Sequence[str], exclude: Sequence[str], root: Path) -> tuple[list[str], list[Problem]]:
    """The Python files in these files and folders, each once, in a stable order, and what could not be found."""
    found: dict[str, None] = {}
    problems: list[Problem] = []
    for path in paths:
        if path == "-":
            found[path] = None
            continue
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 -- hundreds of thousands of Path objects take seconds
        except (OSError, ValueError) as error:
            problems.append(Problem(path, f"cannot be read: {getattr(error, 'strerror', None) or error}"))
            continue
        if stat.S_ISDIR(mode):
            for one in _walk(path, exclude, root, problems):
                found[one] = None
        elif stat.S_ISREG(mode):
            found[path] = None
        else:
            problems.append(Problem(path, "is neither a file nor a folder"))
    return list(found), problems


def _walk(folder: str, exclude: Sequence[str], root: Path, problems: list[Problem]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Problem(folder, f"cannot be listed: {error.strerror}"))
        return
    for entry in listed:
        path = os.path.normpath(entry.path)
        if exclude and is_excluded(path, exclude, root):
            continue
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in LEFT_OUT and not entry.name.startswith("."):
                yield from _walk(path, exclude, root, problems)
        elif entry.name.endswith((".py", ".pyw")) and _is_file(entry):
            yield path


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def is_excluded(path: str, patterns: Sequence[str], root: Path) -> bool:
    """Whether a pattern fits the name of a file or folder, or its path from the folder of the settings."""
    relative = os.path.relpath(path, root).replace(os.sep, "/")
    name = relative.rpartition("/")[2]
    return any(
        fnmatch(name, pattern) or fnmatch(relative, pattern) or relative.startswith(pattern.rstrip("/*") + "/")
        for pattern in patterns
    )


def read(path: str) -> tuple[bytes, str]:
    """A file's bytes, and its text by the encoding that it declares."""
    import sys

    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with open(path, "rb") as file:  # noqa: PTH123
                raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    if len(raw) > MOST_BYTES:
        raise Unreadable(f"is longer than {MOST_BYTES // 1_000_000} MB: was it made by a program? exclude it")
    return raw, decoded(raw)


def decoded(raw: bytes) -> str:
    """The text of a source file."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, LookupError) as error:
        raise Unreadable(f"declares an encoding that cannot be used: {error}") from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not {error.encoding} text (byte {error.start}); is it Python?") from error
    except ValueError as error:
        raise Unreadable(f"cannot be decoded: {error}") from error
    if "\0" in text:
        raise Unreadable("contains null bytes; is it Python?")
    return text
