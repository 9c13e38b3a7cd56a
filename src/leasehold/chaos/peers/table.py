"""One table, peers beside Leasehold: the same engine, the same workload, the same faults, the same seeds."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from leasehold.chaos.leasehold_subject import LeaseholdSubject
from leasehold.chaos.peers import PEERS
from leasehold.chaos.running import Outcome, Plan, run
from leasehold.chaos.servers import started
from leasehold.errors import LeaseholdError

FAULTS: Final = ("none", "pause", "pause-in-gap", "kill", "host-death", "partition", "late-replies", "engine-restart")
"""What each library is put to, one at a time; "none" is how it does when nothing is broken."""
MEMORY: Final = Path("/dev/shm")  # noqa: S108  servers sync each write, and nobody here pulls the plug
COLUMNS: Final = {
    "both believed": ("exclusive", ("overlaps", "overlaps after a stop")),
    "lost, plain": ("lost updates", ("lost (plain)",)),
    "lost, fenced": ("lost updates", ("lost (fenced)",)),
    "never told": ("told", ("never told",)),
    "beyond its wait (s)": ("wait overrun", ("furthest beyond its wait (s)",)),
    "after a death (s)": ("recovery", ("slowest after a death (s)",)),
    "hung": ("liveness", ("hung",)),
}
"""What is shown, and where it is found: a verdict, and those of its figures that are added up."""


@dataclass(frozen=True)
class Terms:
    """How each run is made."""

    engine: str = "redis"
    workload: str = "register"
    faults: tuple[str, ...] = FAULTS
    seeds: tuple[int, ...] = (1,)
    seconds: float = 15.0
    ttl: float = 2.0
    wait: float = 4.0
    workers: int = 4


@dataclass
class Row:
    """One library under one fault, over all seeds."""

    subject: str
    fault: str
    strikes: int = 0
    grants: int = 0
    fenced: bool = False
    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    """Why there is no run to show, where there is none."""

    def add(self, outcome: Outcome) -> None:
        """Count one more run."""
        self.strikes += sum(outcome.struck.values())
        grants = [event for event in outcome.history if event.kind == "granted"]
        self.grants += len(grants)
        self.fenced = self.fenced or any(event.token is not None for event in grants)
        verdicts = {verdict.name: verdict for verdict in outcome.verdicts}
        for column, (name, figures) in COLUMNS.items():
            found = sum(float(verdicts[name].figures.get(one, 0)) for one in figures)
            before = self.figures.get(column, 0.0)
            self.figures[column] = max(before, found) if column.endswith("(s)") else before + found

    def cells(self) -> list[str]:
        """As they are shown: no fence without a token, and no time where nobody died."""
        if self.failure:
            return [self.subject, self.fault, str(self.strikes), self.failure, *[""] * len(COLUMNS)]
        return [self.subject, self.fault, str(self.strikes), str(self.grants), *map(self._cell, COLUMNS)]

    def _cell(self, column: str) -> str:
        value = self.figures.get(column, 0.0)
        if column == "lost, fenced" and not self.fenced:
            return "no token"
        if column == "after a death (s)" and self.fault not in ("kill", "host-death"):
            return "-"
        return f"{value:.1f}" if column.endswith("(s)") else f"{value:.0f}"


def subjects_on(engine: str) -> list[str]:
    """Leasehold, and the peers that run there and are installed here."""
    return [
        LeaseholdSubject.name,
        *(name for name, kind in PEERS.items() if engine in kind.engines and kind.installed()),
    ]


def rows(terms: Terms, tell: Callable[[str], object]) -> Iterator[Row]:
    """Run everything; each run has a server of its own."""
    for fault in terms.faults:
        for subject in subjects_on(terms.engine):
            row = Row(subject, fault)
            for seed in terms.seeds:
                tell(f"{subject}, {fault}, seed {seed}")
                try:
                    row.add(_outcome(terms, subject, fault, seed))
                except LeaseholdError as error:
                    row.failure = type(error).__name__
                    tell(str(error))
            yield row


def _outcome(terms: Terms, subject: str, fault: str, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as path:
        folder = Path(path)
        (folder / "run").mkdir()
        with started(terms.engine, folder) as (url, servers):
            plan = Plan(
                url=url,
                workload=terms.workload,
                faults=() if fault == "none" else (fault,),
                subject=subject,
                seed=seed,
                seconds=terms.seconds,
                ttl=terms.ttl,
                wait=terms.wait,
                workers=terms.workers,
            )
            return run(plan, folder / "run", servers)


def text_of(terms: Terms, made: Sequence[Row]) -> str:
    """The table, and what was run, in Markdown."""
    heads = ["library", "fault", "strikes", "grants", *COLUMNS]
    lines = [heads, ["---"] * len(heads), *(row.cells() for row in made)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    runs = len(made) * len(terms.seeds)
    said = (
        f"{runs} runs on {terms.engine}: workload {terms.workload}, {terms.workers} workers, TTL {terms.ttl:g} s, "
        f"wait {terms.wait:g} s, faults for {terms.seconds:g} s a run, seeds {', '.join(map(str, terms.seeds))}. "
        f"Versions: {', '.join(_versions(terms.engine))}."
    )
    return f"{said}\n\n{table}\n"


def _versions(engine: str) -> Iterator[str]:
    for name in subjects_on(engine):
        distribution = PEERS[name].distribution.split()[0] if name in PEERS else "leasehold"
        try:
            yield f"{distribution} {version(distribution)}"
        except PackageNotFoundError:
            yield distribution


def put_into(page: Path, engine: str, text: str) -> None:
    """Replace the table of one engine in a page, between its two marks."""
    begin, end = f"<!-- runs on {engine} -->", f"<!-- end of runs on {engine} -->"
    before = page.read_text(encoding="utf-8")
    after, count = re.subn(f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{text}\n{end}", before)
    if count != 1:
        raise ValueError(f"{page} has {count} places between {begin!r} and {end!r}; it takes one")
    page.write_text(after, encoding="utf-8")
