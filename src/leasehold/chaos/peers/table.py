"""One table, peers beside Leasehold: the same engine, the same workload, the same faults, the same seeds."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from leasehold.chaos.leasehold_subject import LeaseholdSubject
from leasehold.chaos.peers import PEERS
from leasehold.chaos.peers.data import Made
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
    failures: list[str] = field(default_factory=list)

    def add(self, made: Made) -> None:
        """Count one more run."""
        if made.failure:
            self.failures.append(made.failure)
            return
        self.strikes += made.strikes
        self.grants += made.grants
        self.fenced = self.fenced or made.fenced
        for column in COLUMNS:
            found, before = made.figures.get(column, 0.0), self.figures.get(column, 0.0)
            self.figures[column] = max(before, found) if column.endswith("(s)") else before + found

    def cells(self) -> list[str]:
        """As they are shown: no fence without a token, and no time where nobody died."""
        if self.failures and not self.grants:
            return [self.subject, self.fault, str(self.strikes), self.failures[0], *[""] * len(COLUMNS)]
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


def runs(terms: Terms, tell: Callable[[str], object]) -> Iterator[Made]:
    """Run everything, library by library within a fault, so that noise hits all alike; each has its own server."""
    for seed in terms.seeds:
        for fault in terms.faults:
            for subject in subjects_on(terms.engine):
                tell(f"{terms.engine}: {subject}, {fault}, seed {seed}")
                blank = Made(
                    terms.engine, subject, fault, seed, terms.seconds, version_of(subject), f"{datetime.now(UTC):%F}"
                )
                try:
                    yield counted(blank, _outcome(terms, subject, fault, seed))
                except LeaseholdError as error:
                    tell(str(error))
                    yield replace(blank, failure=type(error).__name__)


def counted(blank: Made, outcome: Outcome) -> Made:
    """The figures of one outcome."""
    grants = [event for event in outcome.history if event.kind == "granted"]
    verdicts = {verdict.name: verdict for verdict in outcome.verdicts}
    return replace(
        blank,
        strikes=sum(outcome.struck.values()),
        grants=len(grants),
        fenced=any(event.token is not None for event in grants),
        figures={
            column: round(sum(float(verdicts[name].figures.get(one, 0)) for one in figures), 3)
            for column, (name, figures) in COLUMNS.items()
        },
    )


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


def rows_of(made: Iterable[Made]) -> list[Row]:
    """Fault by fault, Leasehold first; runs of the same library and fault make one row."""
    rows: dict[tuple[str, str], Row] = {}
    order = {LeaseholdSubject.name: 0} | {name: number for number, name in enumerate(PEERS, 1)}
    for one in sorted(made, key=lambda one: (FAULTS.index(one.fault), order[one.subject], one.seed)):
        rows.setdefault((one.fault, one.subject), Row(one.subject, one.fault)).add(one)
    return list(rows.values())


def text_of(made: Sequence[Made], terms: Terms) -> str:
    """The table, and what was run, in Markdown. Of the terms, those count that a run does not remember itself."""
    heads = ["library", "fault", "strikes", "grants", *COLUMNS]
    lines = [heads, ["---"] * len(heads), *(row.cells() for row in rows_of(made))]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    minutes = sum(one.seconds for one in made) / 60
    said = (
        f"{len(made)} runs, {minutes:.0f} minutes of faults in all: workload {terms.workload}, "
        f"{terms.workers} workers, TTL {terms.ttl:g} s, wait {terms.wait:g} s, "
        f"faults for {_listed(f'{one.seconds:g}' for one in made)} s a run, "
        f"seeds {_listed(str(one.seed) for one in made)}, "
        f"on {_listed(one.on for one in made)}. "
        f"Versions: {_listed(f'{one.subject} {one.version}' for one in made)}."
    )
    return f"{said}\n\n{table}\n"


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(sorted(texts)))


def version_of(subject: str) -> str:
    """The version of what is installed here."""
    distribution = PEERS[subject].distribution.split()[0] if subject in PEERS else "leasehold"
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of the source"


def put_into(page: Path, engine: str, text: str) -> None:
    """Replace the table of one engine in a page, between its two marks."""
    begin, end = f"<!-- runs on {engine} -->", f"<!-- end of runs on {engine} -->"
    before = page.read_text(encoding="utf-8")
    after, count = re.subn(f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n\n{text}\n{end}", before)
    if count != 1:
        raise ValueError(f"{page} has {count} places between {begin!r} and {end!r}; it takes one")
    page.write_text(after, encoding="utf-8")
