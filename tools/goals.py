"""The goals with numbers: measure those that can be measured in minutes, and make the page of all.

    python tools/goals.py --measure L3,C3      measure these on servers of its own; the others stay as they were
    python tools/goals.py --from-results       take over what the benchmark and the table of peers have found
    python tools/goals.py                      only make the page

Goals, what shows them, and what was seen last are in `docs/data/goals.json`; the page is `docs/goals.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from goal_measures import MEASURES, Seen
from leasehold.bench.results import Aim, Results
from leasehold.chaos.peers import data as peers

ROOT = Path(__file__).parents[1]
DATA, PAGE = ROOT / "docs" / "data" / "goals.json", ROOT / "docs" / "goals.md"
BENCH, PEERS = ROOT / "docs" / "data" / "benchmark.json", ROOT / "docs" / "data" / "peers.json"
KINDS = {"R": "Safety", "L": "Liveness", "C": "Cost", "F": "Bad input"}
AFTER_DEATH = {"etcd": 3.0, "zookeeper": 1.5}
TTL = 2.0
OF_ITS_OWN = "and one for each adds some 300 bytes"
PAUSES = ("pause", "pause-in-gap")
HEAD = """\
# Goals, with numbers

What Leasehold sets out to reach, each with what shows it and what was seen last. "Met" means that nothing to the
contrary was seen in what was run; where a goal is missed, the last column says by how much. Figures come from machines
with two cores that other programs kept busy, so times are upper bounds.

A test that is named here runs with `make test`, or with `make nightly` where it takes long; those of the contract suite
run on every engine. This page is made of [one file](data/goals.json) by `python tools/goals.py`, which also measures
what can be measured in minutes (`--measure`). A run of [`leasehold chaos`](chaos-report.md#the-goals) checks those that
can be asked of your own engine.
"""


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked, and make the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", default="", metavar="IDS", help=f"comma-separated, of {', '.join(MEASURES)}")
    parser.add_argument("--from-results", action="store_true", help="take over what other runs have found")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    os.environ.setdefault("LEASEHOLD_SERVERS", str(ROOT / ".servers"))
    goals = json.loads(DATA.read_text(encoding="utf-8"))
    by_id = {goal["id"]: goal for goal in goals}
    for name in filter(None, asked.measure.split(",")):
        note(by_id[name], both(MEASURES[name](), never_told()) if name == "R4" else MEASURES[name]())
    if asked.from_results:
        for name, seen in from_results():
            note(by_id[name], seen)
    DATA.write_text(json.dumps(goals, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(goals), encoding="utf-8")
    return 0


def note(goal: dict[str, Any], seen: Seen) -> None:
    """Keep what was seen."""
    sys.stderr.write(f"{goal['id']}: {seen.text}\n")
    goal |= {"seen": seen.text, "met": seen.met, "missed_by": seen.missed_by, "on": f"{datetime.now(UTC):%F}"}


def page(goals: list[dict[str, Any]]) -> str:
    """The page of the documentation."""
    return "\n".join([HEAD, *_lines(goals)]) + "\n"


def _lines(goals: list[dict[str, Any]]) -> Iterator[str]:
    missed = [goal["id"] for goal in goals if goal["met"] is False]
    unknown = [goal["id"] for goal in goals if goal["met"] is None]
    met = len(goals) - len(missed) - len(unknown)
    missed_text, open_text = ", ".join(missed) or "none", ", ".join(unknown) or "none"
    yield f"Of {len(goals)} goals, {met} are met; missed: {missed_text}; not measured in full: {open_text}."
    for letter, kind in KINDS.items():
        yield from ("", f"## {kind}", "", "| | goal | shown by | seen last | |", "|---|---|---|---|---|")
        for goal in goals:
            if goal["id"].startswith(letter):
                yield f"| {' | '.join(_cells(goal))} |"


def _cells(goal: dict[str, Any]) -> list[str]:
    met = {True: "met", False: f"**missed** by {goal['missed_by']}", None: "open"}[goal["met"]]
    shown = "<br>".join(f"`{one.replace('::', '` `')}`" for one in goal["shown_by"])
    seen = f"{goal['seen']} ({goal['on']})" if goal["on"] else goal["seen"]
    return [goal["id"], goal["goal"], shown, seen, met]


def from_results() -> Iterator[tuple[str, Seen]]:
    """What the benchmark and the runs beside peers say about goals."""
    aims = Results.read(BENCH).aims
    yield "C1", _aims(aims, "a lease, of", "leases lost", "keeper threads", "% of a core to keep")
    waiting = _aims(aims, "bytes of memory a waiting task", "waiting tasks on")
    yield "C2", waiting._replace(text=f"{waiting.text}; all tasks share one lock object, {OF_ITS_OWN}")
    ours = _our_runs()
    yield "R1", _none(ours, "lost, fenced", "updates lost at the fence")
    yield "R3", _none([one for one in ours if one.fault not in PAUSES], "both believed", "pairs that both believed")
    yield "L1", _after_death([one for one in ours if one.fault in ("kill", "host-death")])
    yield "L4", _none(ours, "hung", "workers hung")


def never_told() -> Seen:
    """The half of R4 that the runs beside peers show."""
    return _none(_our_runs(), "never told", "holders never told")


def both(one: Seen, other: Seen) -> Seen:
    """Two halves of a goal."""
    missed = "; ".join(filter(None, (one.missed_by, other.missed_by)))
    return Seen(f"{one.text}; {other.text}", not missed, missed)


def _our_runs() -> list[peers.Made]:
    return [one for one in peers.read(PEERS) if one.subject == "leasehold" and not one.failure]


def _aims(aims: list[Aim], *parts: str) -> Seen:
    chosen = [aim for aim in aims if any(part in aim.what for part in parts)]
    said = [f"{aim.what}: {aim.seen.text} ({aim.bound_text})" for aim in chosen]
    missed = [f"{abs(aim.seen.value - aim.bound):,.0f} ({aim.what})" for aim in chosen if not aim.met]
    return Seen("; ".join(said), not missed, "; ".join(missed))


def _none(runs: list[peers.Made], column: str, what: str) -> Seen:
    count = int(sum(one.figures[column] for one in runs))
    engines = sorted({one.engine for one in runs})
    strikes, grants = sum(one.strikes for one in runs), sum(one.grants for one in runs)
    text = f"{count} {what}, in {len(runs)} runs on {', '.join(engines)}: {strikes} faults, {grants:,} grants"
    return Seen(text, count == 0, str(count or ""))


def _after_death(runs: list[peers.Made]) -> Seen:
    worst: dict[str, float] = {}
    for one in runs:
        worst[one.engine] = max(worst.get(one.engine, 0.0), one.figures["after a death (s)"])
    over = {engine: seconds - TTL - AFTER_DEATH.get(engine, 0.5) for engine, seconds in worst.items()}
    text = ", ".join(f"{engine} {seconds:.1f}" for engine, seconds in worst.items())
    missed = [f"{seconds:.1f} s on {engine}" for engine, seconds in over.items() if seconds > 0]
    return Seen(f"TTL {TTL:g} s, at worst: {text} s", not missed, ", ".join(missed))


if __name__ == "__main__":
    sys.exit(main())
