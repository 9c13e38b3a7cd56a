"""The engines' own code before models of their servers: no history breaks a claim, and every planted bug does."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.sim.__main__ import main, replay_command
from leasehold.sim.engine_mutations import mutations_of
from leasehold.sim.history import Fault
from leasehold.sim.plan import TABLE
from leasehold.sim.runner import PROPERTIES, explore, first_caught, run
from leasehold.sim.simulation import Simulation
from leasehold.sim.sites import KINDS

ENGINES = [engine for engine in KINDS if engine != TABLE.engine]
BUGS = [(engine, bug) for engine in ENGINES for bug in mutations_of(engine)]
RARE = {
    ("mysql", "handed-to-whoever-waits"),
    ("postgresql", "handed-to-whoever-waits"),
    ("consul", "late-follower-not-reckoned-with"),
    ("postgresql+session", "old-answer-taken-for-a-new-one"),
}
"""Bugs that take hundreds of histories to be caught, and are looked for by night."""
HISTORIES = 150
MANY_HISTORIES = 3000
SEEDS = range(150)
MANY_SEEDS = range(1000)

CORPUS = [
    (line.split()[0], int(line.split()[1]))
    for line in (Path(__file__).parent / "engine_corpus.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("engine", "seed"), CORPUS)
def test_seed_that_once_failed(engine: str, seed: int) -> None:
    _, violations = run(seed, engine=engine)
    assert not violations, replay_command(seed, engine=engine)


def no_claim_is_broken(engine: str, histories: int) -> None:
    tally = explore(range(histories), engine=engine)
    found = dict(reversed(tally.violations))
    report = [f"{replay_command(seed, engine=engine)}   # {one.judge}: {one.text}" for seed, one in found.items()]
    assert not found, "\n".join(report[:10])
    assert tally.leases > 4 * histories, "histories in which hardly anybody gets a lease show nothing"
    assert tally.losses_told > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_no_claim_is_broken(engine: str) -> None:
    no_claim_is_broken(engine, HISTORIES)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_claim_is_broken_in_many_histories(engine: str) -> None:
    no_claim_is_broken(engine, MANY_HISTORIES)


@pytest.mark.parametrize(
    ("engine", "bug"), [pytest.param(*one, marks=[pytest.mark.nightly] if one in RARE else []) for one in BUGS]
)
def test_a_planted_bug_is_caught(engine: str, bug: str) -> None:
    # What once failed comes first: some of these bugs were ours, and rare.
    usual = MANY_SEEDS if (engine, bug) in RARE else SEEDS
    seeds = [*(seed for failed, seed in CORPUS if failed == engine), *usual]
    found = first_caught(bug, seeds, engine)
    assert found is not None, f"not caught in {len(seeds)} histories: {mutations_of(engine)[bug].bug}"
    print(f"{engine}: {bug} is caught at seed {found[0]} by {found[1].judge}: {found[1].text}")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_is_the_same_history(engine: str) -> None:
    for seed in range(4):
        assert Simulation(seed, engine).run().text() == Simulation(seed, engine).run().text()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_of_fault_happens(engine: str) -> None:
    kinds = KINDS[engine].traits.faults
    seen: set[str] = set()
    for seed in range(300):
        history = Simulation(seed, engine).run() if not kinds <= seen else None
        if history is None:
            return
        seen |= {event.kind for event in history.events if isinstance(event, Fault)}
        seen |= PROPERTIES & set(history.plan.kinds)
    assert kinds <= seen


def test_the_command_knows_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--engine", "etcd", "--histories", "3", "--jobs", "1"]) == 0
    assert "election" in capsys.readouterr().out
    assert main(["--engine", "etcd", "--seed", "2", "--mutation", "woken-is-enough"]) == 1
    assert "given" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--engine", "etcd", "--seed", "2", "--mutation", "no-drift-margin"])
    assert "is no bug of the engine etcd" in capsys.readouterr().err
