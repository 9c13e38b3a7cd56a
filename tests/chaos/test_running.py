"""Runs on real engines with real faults; and the parts that a run is made of."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from tests.cli.tool import lives, wait_for

from leasehold.chaos.addresses import addresses, no_proxies, with_addresses
from leasehold.chaos.crew import Crew, WorkerEnded
from leasehold.chaos.faults import FAULTS as KNOWN_FAULTS
from leasehold.chaos.marks import Marks
from leasehold.chaos.running import Plan, Run, run
from leasehold.chaos.schedule import strikes
from leasehold.chaos.worker import Settings
from leasehold.errors import EngineUnavailable, Misuse, NotSupported

TTL = 1.0


@pytest.mark.parametrize(
    ("url", "robs"),
    [
        ("postgresql+session://127.0.0.1/app", True),
        ("mysql+session://app@127.0.0.1/app", True),
        ("postgresql://127.0.0.1/app", False),
        ("redis://127.0.0.1", False),
        ("zookeeper://127.0.0.1", False),
    ],
)
def test_a_reset_robs_only_leases_that_live_in_a_connection(url: str, tmp_path: Path, *, robs: bool) -> None:
    going = Run(Plan(url, faults=("resets", "pause")), tmp_path)
    assert going._robs(KNOWN_FAULTS["resets"]) is robs
    assert going._robs(KNOWN_FAULTS["pause"])
    assert not going._robs(KNOWN_FAULTS["latency"])


def test_what_was_started_is_ended_when_a_run_is_interrupted(tmp_path: Path) -> None:
    going = Run(Plan(f"sqlite:///{tmp_path}/leases.db", faults=("pause",), ttl=TTL, workers=2), tmp_path)

    class Enough(BaseException):
        pass

    def interrupt(news: str) -> None:
        if "strikes" in news:
            pids.extend(worker.pid for worker in going._crew.workers)  # type: ignore[union-attr]
            raise Enough

    pids: list[int] = []
    going.tell = interrupt
    with pytest.raises(Enough):
        going.go()
    assert len(pids) == 2
    assert not any(lives(pid) for pid in pids)


def settings(folder: Path, **other: object) -> Settings:
    usual: dict[str, object] = {
        "name": "w1",
        "number": 0,
        "life": 0,
        "folder": str(folder),
        "began": time.monotonic(),
        "parent": os.getpid(),
        "workers": 1,
        "url": f"sqlite:///{folder}/leases.db",
        "namespace": "chaos",
        "subject": "leasehold",
        "workload": "register",
        "ttl": TTL,
        "wait": TTL,
        "permits": 1,
        "seed": 0,
    }
    return Settings(**{**usual, **other})  # type: ignore[arg-type]


def test_a_worker_that_ends_by_itself_is_an_error_that_shows_its_last_words(tmp_path: Path) -> None:
    crew = Crew(Marks(tmp_path / "marks", 1))
    crew.add(settings(tmp_path, workload="no such workload"), {})
    try:
        wait_for(crew.workers[0].has_ended, "the worker has ended")
        with pytest.raises(WorkerEnded, match="no such workload"):
            crew.check()
        crew.check(struck=crew.workers)  # unless a fault has done it
    finally:
        crew.kill()


def test_a_worker_ends_with_the_run_that_started_it(tmp_path: Path) -> None:
    crew = Crew(Marks(tmp_path / "marks", 1))
    crew.add(settings(tmp_path, parent=1), {})
    try:
        wait_for(crew.workers[0].has_ended, "the worker has noticed that its run is another one")
        assert "is gone" in crew.workers[0].last_words()
    finally:
        crew.kill()


def test_an_engine_that_is_not_there_is_told_before_any_worker_is_started(tmp_path: Path) -> None:
    going = Run(Plan("redis://127.0.0.1:1/0", ttl=TTL), tmp_path)
    with pytest.raises(EngineUnavailable):
        going.go()
    assert going.grants == {}


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan("redis://127.0.0.1", workload="nothing"), "there are register"),
        (Plan("redis://127.0.0.1", faults=("nothing",)), "there are pause"),
        (Plan("redis://127.0.0.1", subject="nothing"), "there are leasehold"),
        (Plan("redis://127.0.0.1", workers=1), "two workers"),
        (Plan("etcd://localhost", ttl=0.5), "at least 1 s"),
    ],
)
def test_a_plan_that_cannot_be_right_is_refused_at_once(plan: Plan, says: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=says):
        Run(plan, tmp_path)


def test_a_workload_that_the_engine_or_the_subject_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="permits"):
        Run(Plan("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", workload="permits"), tmp_path)
    with pytest.raises(NotSupported, match="pattern of Leasehold"):
        Run(Plan("redis://localhost", workload="election", subject="redis-py"), tmp_path)
    with pytest.raises(NotSupported, match="runs on redis"):
        Run(Plan("sqlite://", subject="redis-py"), tmp_path)


def test_faults_that_cannot_be_made_are_left_out_with_the_reason(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    outcome = run(Plan(url, faults=("kill", "partition"), seconds=0.1, ttl=TTL, workers=2), tmp_path)
    assert outcome.info.faults == ("kill",)
    assert "is a file" in outcome.info.left_out["partition"]


def test_a_run_whose_faults_are_all_left_out_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with pytest.raises(Misuse, match="partition: the engine is a file"):
        run(Plan(url, faults=("partition",), ttl=TTL, workers=2), tmp_path)


# The schedule


FAULTS = ("a", "b", "c", "d")


@pytest.mark.parametrize("how", ["alone", "pairs", "random"])
def test_the_same_seed_gives_the_same_strikes(how: str) -> None:
    first, again, other = (
        list(itertools.islice(strikes(FAULTS, how, seed=seed, ttl=2.0), 20))  # type: ignore[arg-type]
        for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


def test_every_pair_has_its_turn_before_any_comes_again() -> None:
    drawn = [strike.faults for strike in itertools.islice(strikes(FAULTS, "pairs", seed=1, ttl=2.0), 6)]
    assert {frozenset(pair) for pair in drawn} == {frozenset(pair) for pair in itertools.combinations(FAULTS, 2)}


def test_one_fault_has_no_pair() -> None:
    assert next(strikes(["a"], "pairs", seed=1, ttl=2.0)).faults == ("a",)


def test_at_random_up_to_three_strike_together() -> None:
    drawn = [len(strike.faults) for strike in itertools.islice(strikes(FAULTS, "random", seed=1, ttl=2.0), 100)]
    assert set(drawn) == {1, 2, 3}


def test_without_faults_nothing_strikes() -> None:
    assert list(strikes([], "random", seed=1, ttl=2.0)) == []


# Addresses


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://localhost", [("localhost", 6379)]),
        ("redis://user:p%40ss@host:1/0?x=1", [("host", 1)]),
        ("postgresql://u:p@db.example/app", [("db.example", 5432)]),
        ("etcd://a:1,b,[::1]:3", [("a", 1), ("b", 2379), ("::1", 3)]),
        ("zookeeper://[::1]", [("::1", 2181)]),
        ("redlock://a,b,c", [("a", 6379), ("b", 6379), ("c", 6379)]),
    ],
)
def test_the_addresses_of_a_url(url: str, found: list[tuple[str, int]]) -> None:
    assert no_proxies(url) is None
    assert addresses(url) == found


def test_a_proxy_takes_the_place_of_a_server_in_a_url() -> None:
    assert with_addresses("redis://user:p@host:1/0?x=1", ["127.0.0.1:5"]) == "redis://user:p@127.0.0.1:5/0?x=1"
    assert with_addresses("etcd://a,b", ["127.0.0.1:5", "127.0.0.1:6"]) == "etcd://127.0.0.1:5,127.0.0.1:6"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////tmp/x.db",
        "rediss://host",
        "redis+unix:///run/redis.sock",
        "redis+sentinel://a,b/main",
        "postgresql:///app",
        "postgresql:///app?host=/run",
        "postgresql://%2Frun%2Fpostgresql/app",
        "nonsense",
    ],
)
def test_where_no_proxy_can_stand_between(url: str) -> None:
    assert no_proxies(url)


# Marks


def test_marks_are_seen_by_everybody_who_maps_them(tmp_path: Path) -> None:
    mine, theirs = Marks(tmp_path / "marks", 3), Marks(tmp_path / "marks", 3)
    mine.note(1, "gap")
    mine.count_grant(2)
    mine.count_grant(2)
    assert [theirs.doing(number) for number in range(3)] == ["idle", "gap", "idle"]
    assert [theirs.grants(number) for number in range(3)] == [0, 0, 2]
    theirs.stop()
    assert mine.stopping
    mine.close()
    theirs.close()
