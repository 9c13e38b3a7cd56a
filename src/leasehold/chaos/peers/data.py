"""What came of each run, kept in a file: a large sample takes several sittings, and the page is made of the file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1


class NotRuns(ValueError):
    """A file that does not hold runs of peers."""


@dataclass(frozen=True, slots=True)
class Made:
    """One run of one library under one fault, in figures."""

    engine: str
    subject: str
    fault: str
    seed: int
    seconds: float
    """For how long faults struck."""
    version: str
    """The library's own."""
    on: str
    """The day."""
    strikes: int = 0
    grants: int = 0
    fenced: bool = False
    """Whether a grant came with a token."""
    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    """Why there is no run to show, where there is none."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Of two with the same, the later one counts."""
        return self.engine, self.fault, self.subject, self.seed


def read(path: Path) -> list[Made]:
    """All runs of a file; none where there is no file yet."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise NotRuns(f"{path.name} is of format {content['format']!r}, but format {FORMAT} is read here")
        return [_made(entry) for entry in content["runs"]]
    except NotRuns:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise NotRuns(f"{path.name} holds no runs of peers: {type(error).__name__}: {error}") from None


def _made(entry: dict[str, Any]) -> Made:
    return Made(**(entry | {"figures": {str(name): float(value) for name, value in entry["figures"].items()}}))


def add(path: Path, runs: Iterable[Made]) -> None:
    """Put more runs into a file; each takes the place of an earlier one of the same library, fault and seed."""
    kept = {one.key: one for one in [*read(path), *runs]}
    entries = ",\n".join(json.dumps(asdict(kept[key]), ensure_ascii=False) for key in sorted(kept))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"format": {FORMAT}, "runs": [\n{entries}\n]}}\n', encoding="utf-8")
