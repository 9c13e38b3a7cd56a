"""Many leases and many waiting tasks: how many were reached, what is said of fewer, and what a failure leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold import AsyncLeasehold, Leasehold, Lock
from leasehold.bench import main, many
from leasehold.bench.effort import QUICK, Run, Steps
from leasehold.bench.places import ENGINES, Place, fresh_namespace, private_places, private_redis
from leasehold.bench.report import BEGIN, END, markdown
from leasehold.bench.results import Finding, Results, Row, Table

TINY = dataclasses.replace(
    QUICK,
    name="tiny",
    leases=100,
    leases_ttl=1.0,
    async_waiters=60,
    async_idle=0.2,
    reached_within=20.0,
    stuck_after=5.0,
)
NOWHERE = "redis://127.0.0.1:1"


@pytest.fixture
def sqlite() -> Iterator[Place]:
    with private_places(["sqlite"]) as (places, _missing):
        yield places[0]


def rows(table: Table) -> dict[str, Row]:
    return {row.who: row for row in table.rows}


@pytest.mark.parametrize("engine", ["postgresql+session", "etcd"])
def test_what_was_measured_of_less_says_of_how_many_and_why(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "IN_CONNECTIONS", 10)
    with private_places([engine]) as (places, missing):
        assert not missing, missing
        finding = many.measure(Run(places, TINY, Steps()))
    assert finding.failed == []
    leases, waiters = (rows(table)[f"Leasehold on {engine}"] for table in finding.tables)
    assert leases.figures[many.LOST].value == 0
    assert leases.figures[many.KEEPERS].value == 1
    if engine == "etcd":
        assert (leases.remark, waiters.remark) == ("", "")
        assert waiters.figures[many.CONNECTIONS].value < 10, "waiters share connections"
    else:
        assert leases.remark.startswith("10 of 100 leases: each has a connection of its own")
        assert waiters.remark.startswith("10 of 60 waiting tasks: each has a connection of its own")
        assert waiters.figures[many.CONNECTIONS].value >= 10
        assert any("leases lost, of 10 on" in aim.what for aim in finding.aims), "aims are of as many as there were"


def test_time_that_runs_out_leaves_fewer_leases_and_is_told(sqlite: Place) -> None:
    run = Run([sqlite], dataclasses.replace(TINY, leases=10**6, reached_within=0.5), Steps())
    figures, reached = many._held_leases(run, sqlite, trace=False)
    assert 0 < reached.count < 10**6
    assert figures[many.LOST].value == 0
    assert reached.remark("leases") == f"{reached.count:,} of 1,000,000 leases: so many within 0.5 s"


def test_a_queue_that_stands_still_is_given_up(sqlite: Place) -> None:
    run = Run([sqlite], dataclasses.replace(TINY, reached_within=30.0, stuck_after=0.2), Steps())
    with Leasehold(sqlite.on, namespace=sqlite.namespace) as locks:
        assert many._come_to_wait(run, locks, "nobody waits", 5) == 0


def test_tasks_of_which_none_comes_to_wait_are_a_failure(sqlite: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_come_to_wait", lambda *_: 0)
    with pytest.raises(RuntimeError, match="none of 6 tasks came to wait"):
        many._waiting_tasks(Run([sqlite], TINY, Steps()), sqlite, trace=False)


def test_tasks_that_were_granted_the_name_are_a_failure(sqlite: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def given_up(_run: Run, locks: Leasehold, name: str, _waiters: int) -> int:
        locks.force_release(name, because="the test says so")
        return 60

    monkeypatch.setattr(many, "_come_to_wait", given_up)
    monkeypatch.setattr(Lock, "__exit__", lambda *_: None)
    reached = many.Reached(60, 60)
    with pytest.raises(RuntimeError, match=r"of 60 tasks ceased to wait: it was granted the name"):
        many._tasks_in_queue(Run([sqlite], TINY, Steps()), sqlite, reached, trace=False)


def test_an_engine_that_breaks_down_under_many_is_measured_with_fewer(
    sqlite: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    come = many._come_to_wait

    def broken_by_many(run: Run, locks: Leasehold, name: str, waiters: int) -> int:
        if waiters > 6:
            raise OSError("first\nit broke down\n")
        return come(run, locks, name, waiters)

    monkeypatch.setattr(many, "_come_to_wait", broken_by_many)
    figures, reached = many._waiting_tasks(Run([sqlite], TINY, Steps()), sqlite, trace=False)
    assert figures[many.RESIDENT].value > 0
    assert reached.remark("waiting tasks") == "6 of 60 waiting tasks: with 60, it broke down"


def test_an_engine_that_fails_does_not_take_the_others_along(sqlite: Place, tmp_path: Path) -> None:
    gone = Place("redis", NOWHERE, fresh_namespace(), tmp_path)
    finding = many.measure(Run([gone, sqlite], TINY, Steps()))
    leases, waiters = finding.tables
    assert [list(rows(table)) for table in (leases, waiters)] == [["Leasehold on sqlite"], ["Leasehold on sqlite"]]
    assert "cannot be reached" in finding.failed[0], "the reason, not the way that led there"
    assert [one.partition(":")[0] for one in finding.failed] == [
        "many leases on redis",
        "many waiting tasks on redis",
    ]


def test_remarks_and_failed_parts_are_kept_and_shown(tmp_path: Path) -> None:
    remark = many.Reached(50, 10_000, "each has a connection").remark("leases")
    table = Table("many", "Leases", ["lost"], [Row("Leasehold on x", {}, remark), Row("Leasehold on y", {})], ["Held."])
    results = Results("full", {"": "2 cores"}, {"Redis": "7"})
    results.add(Finding([table], [], ["many leases on z: WorkerFailed: it fell\nasleep"]))
    assert Results.from_json(results.to_json()) == results
    text = markdown(results)
    assert "\nLeasehold on x: 50 of 10,000 leases: each has a connection.\n" in text
    assert "Leasehold on y:" not in text
    assert "\nFailed: many leases on z: WorkerFailed: it fell\n" in text
    file, page = tmp_path / "results.json", tmp_path / "page.md"
    file.write_text(results.to_json(), encoding="utf-8")
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    assert main(["--render", str(file), "--into", str(page), "--plots", str(tmp_path)]) == 0
    assert text in page.read_text(encoding="utf-8")


def test_a_task_keeps_no_request_while_it_comes_to_wait_on_redis() -> None:
    """Thousands come to wait at once, and what each of them needs for a moment is never given back to the system."""
    count = 300

    async def bytes_each(url: str) -> float:
        locks = AsyncLeasehold(url, most_waiters=count + 1)
        await locks.status("n")
        lock = locks.lock("n", wait=60.0)
        gc.collect()
        tracemalloc.start()
        try:
            tasks = [asyncio.create_task(lock.acquire()) for _ in range(count)]
            await asyncio.sleep(0)  # all have asked, and nobody was answered
            return tracemalloc.get_traced_memory()[0] / count
        finally:
            tracemalloc.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await locks.close()

    with private_redis() as url, Leasehold(url) as locks, locks.lock("n"):
        assert asyncio.run(bytes_each(url)) < 3000


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if not engine.endswith("+session")])
def test_a_task_that_waits_takes_little_memory(engine: str) -> None:
    """A session lock has a connection for each who waits, and is not for crowds."""
    tasks, client_itself = 500, 250_000
    crowd = dataclasses.replace(TINY, async_waiters=tasks * many.TRACED_LESS, reached_within=60.0)
    with private_places([engine]) as (places, missing):
        assert not missing, missing
        figures, reached = many._waiting_tasks(Run(places, crowd, Steps()), places[0], True)
    assert reached.count == tasks
    assert figures[many.OBJECTS].value * tasks <= many.MOST_BYTES_A_WAITER * tasks + client_itself
