"""Waking waiters: mailboxes, in both worlds; nothing is missed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import socket
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from tests.engines.sqlite_help import MovableClock, eventually, family, opened, soon, want

from leasehold.core import table
from leasehold.core.acquire import Attempt, acquire
from leasehold.core.engine import Busy, Capability, Grant
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine, SqliteFamily
from leasehold.errors import EngineUnavailable, InvalidURL
from leasehold.wires import local_wake
from leasehold.wires.local_wake import BlockingWaiting, Post
from leasehold.wires.local_wake_asyncio import AsyncWaiting
from leasehold.wires.sqlite_file import lease_file


def mailboxes(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.glob(f"{path.name}-wake/*"))


def queue(engine: SqliteEngine, holder: str, patience: float = 20.0) -> Busy:
    answer = run_blocking(engine.take(want("n", holder), until=soon(engine), patience=patience))
    assert isinstance(answer, Busy)
    return answer


def seconds_waited(engine: SqliteEngine, holder: str, at_most: float) -> float:
    start = time.monotonic()
    run_blocking(engine.wait(want("n", holder), engine.world.now() + at_most))
    return time.monotonic() - start


# Blocking


def test_a_wake_up_between_the_take_and_the_wait_is_not_missed(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine, opened(tmp_path / "l.db") as other:
        run_blocking(other.take(want("n", "h"), until=soon(other)))
        queue(engine, "w")
        run_blocking(other.release("n", "h", until=soon(other)))
        assert seconds_waited(engine, "w", 20.0) < 10
        assert seconds_waited(engine, "w", 0.05) >= 0.05, "one wake-up wakes once"


@pytest.mark.parametrize(("ttl", "told"), [(1.0, ["behind"]), (90.0, [])])
def test_who_comes_first_now_is_told_if_it_would_sleep_past_the_end_of_the_lease(
    tmp_path: Path, ttl: float, told: list[str]
) -> None:
    clock = MovableClock()
    with opened(tmp_path / "l.db", clock) as engine:
        run_blocking(engine.take(want("n", "h"), until=soon(engine)))
        between = [f"w{number}" for number in range(table.NEAR)]
        for holder in ("head", *between, "behind"):
            run_blocking(engine.take(want("n", holder), until=soon(engine), patience=100.0))
        for holder in ("h", *between):
            run_blocking(engine.release("n", holder, until=soon(engine)))
        assert isinstance(engine._waiting, BlockingWaiting)
        mailbox = engine._waiting._local.mailbox
        assert mailbox.read()[0] == ["head"]
        clock.wall += 1_000_000  # a higher token, so that one statement would do
        assert isinstance(run_blocking(engine.take(want("n", "head", ttl), until=soon(engine), patience=10.0)), Grant)
        assert mailbox.read()[0] == told


def test_a_waiting_thread_is_woken(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine, opened(tmp_path / "l.db") as other:
        run_blocking(other.take(want("n", "h"), until=soon(other)))
        waited: list[float] = []

        def wait_in_thread() -> None:
            queue(engine, "w")
            waited.append(seconds_waited(engine, "w", 20.0))

        thread = threading.Thread(target=wait_in_thread)
        thread.start()
        eventually(lambda: len(mailboxes(tmp_path / "l.db")) == 1)
        time.sleep(0.1)
        run_blocking(other.release("n", "h", until=soon(other)))
        thread.join(20)
        assert waited[0] < 10
        gc.collect()
        assert mailboxes(tmp_path / "l.db") == [], "a thread that ended leaves no mailbox"


def test_closing_the_engine_wakes_its_waiters_and_removes_mailboxes(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        run_blocking(engine.take(want("n", "h"), until=soon(engine)))
        waited: list[float] = []

        def wait_in_thread() -> None:
            queue(engine, "w")
            waited.append(seconds_waited(engine, "w", 20.0))

        thread = threading.Thread(target=wait_in_thread)
        thread.start()
        eventually(lambda: len(mailboxes(tmp_path / "l.db")) == 1)
        time.sleep(0.1)
        run_blocking(engine.close())
        thread.join(20)
        assert waited[0] < 10
        assert mailboxes(tmp_path / "l.db") == []
        queue(engine, "w")  # the engine can be used again
        assert len(mailboxes(tmp_path / "l.db")) == 1


def test_a_deep_folder_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    with opened(folder / "l.db") as engine, opened(folder / "l.db") as other:
        run_blocking(other.take(want("n", "h"), until=soon(other)))
        queue(engine, "w")
        run_blocking(other.release("n", "h", until=soon(other)))
        assert seconds_waited(engine, "w", 20.0) < 10


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine, opened(path) as other:
        run_blocking(other.take(want("n", "h"), until=soon(other)))
        queue(engine, "w")
        shutil.rmtree(tmp_path / "l.db-wake")
        run_blocking(engine.release("n", "w", until=soon(engine)))
        run_blocking(engine.close())
        queue(engine, "v")
        run_blocking(other.release("n", "h", until=soon(other)))
        assert seconds_waited(engine, "v", 20.0) < 10


def test_the_folder_must_be_private(tmp_path: Path) -> None:
    wake = tmp_path / "l.db-wake"
    wake.mkdir()
    wake.chmod(0o755)
    with opened(tmp_path / "l.db") as engine:
        run_blocking(engine.take(want("n", "h"), until=soon(engine)))
        with pytest.raises(InvalidURL, match="chmod 700"):
            queue(engine, "w")
        wake.rmdir()
        wake.symlink_to(tmp_path)
        with pytest.raises(EngineUnavailable, match="cannot be used"):
            queue(engine, "w")


def test_mailboxes_of_the_dead_are_swept_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    post = Post(path)
    alive = post.open_mailbox()
    wake = tmp_path / "l.db-wake"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(wake / ("ab" * 8)))
    (wake / ("ab" * 8 + ".lost")).touch()
    (wake / "something else").touch()
    for file in wake.iterdir():
        os.utime(file, (1, 1), follow_symlinks=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as too_young:
        too_young.bind(str(wake / ("cd" * 8)))
    second = post.open_mailbox()
    assert mailboxes(path) == sorted([alive.address, second.address, "cd" * 8, "something else"])
    for mailbox in (alive, second):
        mailbox.close()
    post.close()


def test_a_wake_up_for_which_there_is_no_room_wakes_everybody(tmp_path: Path) -> None:
    """A process that did not read its mail for long finds more wake-ups than its mailbox holds."""
    post = Post(tmp_path / "l.db")
    mailbox = post.open_mailbox()
    sent = [post.send(mailbox.address, f"w{number}") for number in range(1000)]
    assert "full" in sent
    held = sent.index("full")
    woken, more = mailbox.read()
    assert (len(woken), more) == (held, False), "nobody gave up, so nothing is known to be lost"
    for number in range(held):
        assert post.send(mailbox.address, f"w{number}") == "sent"
    post.mark_lost(mailbox.address, "late")
    woken, more = mailbox.read()
    assert (len(woken), more) == (held, True)
    assert mailbox.read() == ([], False)
    mailbox.close()
    assert post.send(mailbox.address, "w") == "nobody"
    assert mailboxes(tmp_path / "l.db") == []
    post.close()


def test_a_releaser_does_not_hang_on_a_waiter_that_does_not_read(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine, opened(tmp_path / "l.db") as other:
        run_blocking(other.take(want("n", "h"), until=soon(other)))
        queue(engine, "w")
        assert isinstance(engine._waiting, BlockingWaiting)
        address = engine._waiting.address()
        while other._post.send(address, "noise") == "sent":
            pass
        start = time.monotonic()
        assert run_blocking(other.release("n", "h", until=soon(other)))
        assert time.monotonic() - start < 2
        assert seconds_waited(engine, "w", 20.0) < 10


def test_early_wake_ups_do_not_pile_up(tmp_path: Path) -> None:
    post = Post(tmp_path / "l.db")
    mailbox = post.open_mailbox()
    for number in range(3 * local_wake.MOST_EARLY):
        mailbox.keep([f"w{number}"])
    assert len(mailbox.early) == local_wake.MOST_EARLY
    assert f"w{3 * local_wake.MOST_EARLY - 1}" in mailbox.early
    mailbox.close()
    post.close()


def test_an_address_that_is_not_ours_is_nobodys(tmp_path: Path) -> None:
    post = Post(tmp_path / "l.db")
    for address in ("../l.db", "/etc/passwd", "ab", "AB" * 8, "ab" * 8):
        assert post.send(address, "w") == "nobody"
    assert post.send("", "w") == "sent"
    post.close()


def test_where_nobody_can_be_woken_waiters_ask_again(tmp_path: Path) -> None:
    there = SqliteFamily(lease_file(tmp_path / "l.db"), "", push=False)
    assert Capability.PUSH_WAIT not in there.facts.capabilities
    engine = there.blocking()
    assert isinstance(engine, SqliteEngine)
    run_blocking(engine.take(want("n", "h"), until=soon(engine)))
    release = threading.Timer(0.5, lambda: run_blocking(engine.release("n", "h", until=soon(engine))))
    release.start()
    start = time.monotonic()
    held = run_blocking(acquire(engine, Attempt(want("n", "w")), wait=20.0, request_timeout=5.0))
    assert not held.lost
    assert 0.4 < time.monotonic() - start < 10
    release.join()
    assert not (tmp_path / "l.db-wake").exists()
    run_blocking(engine.close())


# Asyncio


def engine_of(path: Path) -> SqliteEngine:
    engine = family(path).asyncio()
    assert isinstance(engine, SqliteEngine)
    return engine


def test_thousands_of_tasks_share_one_mailbox_and_are_served_in_order(tmp_path: Path) -> None:
    path, count, served_of_them = tmp_path / "l.db", 2000, 100

    async def everybody() -> None:
        engine = engine_of(path)
        served: list[int] = []
        await engine.take(want("n", "h"), until=soon(engine))

        async def one(number: int) -> None:
            wanted = want("n", f"w{number}")
            while isinstance(await engine.take(wanted, until=soon(engine, 60), patience=100.0), Busy):
                await engine.wait(wanted, engine.world.now() + 100)
            served.append(number)
            await engine.release("n", wanted.holder, until=soon(engine))

        tasks = [asyncio.create_task(one(number)) for number in range(count)]
        assert isinstance(engine._waiting, AsyncWaiting)
        while len(engine._waiting._sleepers) < count:  # noqa: ASYNC110 -- the engine tells nobody
            await asyncio.sleep(0.05)
        assert len(mailboxes(path)) == 1
        await engine.release("n", "h", until=soon(engine))
        while len(served) < served_of_them:  # noqa: ASYNC110 -- as short as an event
            await asyncio.sleep(0.01)
        assert served == list(range(len(served)))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not engine._waiting._sleepers, "a cancelled wait leaves nothing"
        await engine.close()

    asyncio.run(everybody())
    assert mailboxes(path) == []


def test_a_wake_up_before_the_wait_is_not_missed_in_asyncio(tmp_path: Path) -> None:
    async def both() -> None:
        engine, other = engine_of(tmp_path / "l.db"), engine_of(tmp_path / "l.db")
        await other.take(want("n", "h"), until=soon(other))
        wanted = want("n", "w")
        assert isinstance(await engine.take(wanted, until=soon(engine), patience=20.0), Busy)
        await other.release("n", "h", until=soon(other))
        await asyncio.sleep(0.05)  # the loop reads the mail before anybody waits for it
        start = time.monotonic()
        await engine.wait(wanted, engine.world.now() + 20)
        assert time.monotonic() - start < 10
        assert isinstance(await engine.take(wanted, until=soon(engine)), Grant)
        for one in (engine, other):
            await one.close()

    asyncio.run(both())


def test_an_engine_may_be_used_in_one_loop_after_another(tmp_path: Path) -> None:
    engine = engine_of(tmp_path / "l.db")

    async def once(holder: str) -> None:
        await engine.take(want("n", "h"), until=soon(engine))
        assert isinstance(await engine.take(want("n", holder), until=soon(engine), patience=20.0), Busy)
        await engine.release("n", "h", until=soon(engine))
        start = time.monotonic()
        await engine.wait(want("n", holder), engine.world.now() + 20)
        assert time.monotonic() - start < 10
        await engine.release("n", holder, until=soon(engine))

    asyncio.run(once("v"))
    asyncio.run(once("w"))
    asyncio.run(engine.close())


def test_the_loop_runs_on_while_somebody_else_keeps_the_file_busy(tmp_path: Path) -> None:
    path = tmp_path / "l.db"

    async def try_for_a_while() -> int:
        engine = engine_of(path)
        await engine.take(want("n", "h"), until=soon(engine))
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        start = time.monotonic()
        with pytest.raises(EngineUnavailable, match="keeps a transaction open"):
            await engine.take(want("other", "h"), until=engine.world.now() + 0.5)
        assert 0.4 < time.monotonic() - start < 5
        ticking.cancel()
        blocker.close()
        assert isinstance(await engine.take(want("other", "h"), until=soon(engine)), Grant)
        await engine.close()
        return ticks

    assert asyncio.run(try_for_a_while()) >= 5


def test_the_log_does_not_grow_although_the_loop_never_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "l.db"

    async def many() -> None:
        engine = engine_of(path)
        for number in range(4000):
            await engine.take(want(f"n{number % 7}", "h"), until=soon(engine))
            await engine.release(f"n{number % 7}", "h", until=soon(engine))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        # Each commit adds a page of 2 KiB to the log: 16 MB, had it not been used again from its start.
        assert path.with_name("l.db-wal").stat().st_size < 8_000_000
        await engine.close()

    asyncio.run(many())
    assert not path.with_name("l.db-wal").exists(), "the last to close puts everything into the file"
