"""What a rule reports: a place, a sentence, and (where it is certain) the edits that put it right."""

from __future__ import annotations

from dataclasses import dataclass, field


class LintError(Exception):
    """The linter cannot do what it was asked to; the message says why and what to do."""


def quoted(value: object) -> str:
    """Show a foreign value in a message: escaped, on one line, and never more than 64 characters of it."""
    text = ascii(value)
    return text if len(text) <= 64 else f"{text[:63]}…"


@dataclass(frozen=True, order=True)
class Edit:
    """Replace what stands between two places; lines count from 1, columns are bytes from 0, as in `ast`."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True, order=True)
class Finding:
    """One dangerous place. Columns count characters from 1, as editors do."""

    path: str
    line: int
    column: int
    code: str
    message: str
    end_line: int = 0
    end_column: int = 0
    source_line: str = field(default="", compare=False)
    last_line: int = field(default=0, compare=False)
    """Where the expression ends; a ``noqa`` counts on each of its lines."""
    edits: tuple[Edit, ...] = field(default=(), compare=False)

    @property
    def fixable(self) -> bool:
        """Whether ``--fix`` puts it right."""
        return bool(self.edits)


@dataclass(frozen=True, order=True)
class Problem:
    """A file that could not be looked at, and why."""

    path: str
    message: str
    line: int = 0
