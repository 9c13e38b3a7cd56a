"""Real processes on one lease file: order, fairness, and what happens when they are killed, stopped or forked."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.engines.sqlite_help import Worker, eventually, opened, soon, want, workers

from leasehold.core.engine import Grant
from leasehold.core.table import TURN
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine
from leasehold.testing.processes import freeze

TAKE_TURNS = """
    for _ in range(int(sys.argv[2])):
        held = hold("hot")
        since = time.monotonic()
        until = time.monotonic()
        give_back(held)
        say(held.token, since, until)
"""

HOLD_UNTIL_TOLD = """
    held = hold("n", ttl=float(sys.argv[2]), holder=sys.argv[3])
    say("held", held.token, time.monotonic())
    sys.stdin.readline()
    give_back(held)
    say("released")
"""


def waiting(engine: SqliteEngine, name: str = "n") -> int:
    status = run_blocking(engine.status(name, until=soon(engine)))
    return len(status.waiters) if status else 0


def test_many_processes_on_one_name(tmp_path: Path) -> None:
    path, each, count = tmp_path / "l.db", 60, 6
    with opened(path) as engine:
        assert isinstance(run_blocking(engine.take(want("hot", "starter"), until=soon(engine))), Grant)
        with workers(path, TAKE_TURNS, count, each) as everybody:
            eventually(lambda: waiting(engine, "hot") == count)
            run_blocking(engine.release("hot", "starter", until=soon(engine)))
            grants = [
                (int(token), float(since), float(until), number)
                for number, worker in enumerate(everybody)
                for token, since, until in worker.lines()
            ]
    grants.sort()
    assert len({token for token, *_ in grants}) == each * count
    for (_, _, until, _), (_, since, _, _) in itertools.pairwise(grants):
        assert until <= since, "two held at once, or tokens do not follow the order of grants"
    served = Counter[int]()
    for *_, number in grants:
        served[number] += 1
        if served[number] == each:
            break
    assert min(served[number] for number in range(count)) >= each // 2, f"when the first was done: {served}"


def test_first_come_first_served(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine:
        assert isinstance(run_blocking(engine.take(want("n", "h"), until=soon(engine))), Grant)
        everybody = []
        try:
            for number in range(5):
                everybody.append(Worker(path, HOLD_UNTIL_TOLD, 30, f"w{number}"))
                eventually(lambda: waiting(engine) == len(everybody))
            run_blocking(engine.release("n", "h", until=soon(engine)))
            tokens = []
            for worker in everybody:
                said, token, _ = worker.line()
                assert said == "held"
                tokens.append(int(token))
                worker.tell()
            assert tokens == sorted(tokens)
        finally:
            for worker in everybody:
                worker.end()


def test_a_killed_holder_is_followed_when_its_ttl_is_over(tmp_path: Path) -> None:
    path, ttl = tmp_path / "l.db", 1.5
    with opened(path) as engine, workers(path, HOLD_UNTIL_TOLD, 1, ttl, "first") as [first]:
        granted = float(first.line()[2])
        with workers(path, HOLD_UNTIL_TOLD, 1, 30, "second") as [second]:
            eventually(lambda: waiting(engine) == 1)
            first.signal(signal.SIGKILL)
            taken_over = float(second.line()[2])
    assert ttl - 0.1 <= taken_over - granted <= ttl + 1.5


def test_a_killed_waiter_is_skipped_at_once(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine:
        assert isinstance(run_blocking(engine.take(want("n", "h", 300.0), until=soon(engine))), Grant)
        dead = [Worker(path, HOLD_UNTIL_TOLD, 30, f"dead-{number}") for number in range(3)]
        try:
            eventually(lambda: waiting(engine) == 3)
            with workers(path, HOLD_UNTIL_TOLD, 1, 30, "alive") as [alive]:
                eventually(lambda: waiting(engine) == 4)
                for worker in dead:
                    worker.signal(signal.SIGKILL)
                    worker.process.wait(10)
                released = time.monotonic()
                run_blocking(engine.release("n", "h", until=soon(engine)))
                granted = float(alive.line()[2])
                assert granted - released < TURN / 1e6, "it was not by waiting for their turns that it got through"
                wake = path.with_name("l.db-wake")
                assert len(list(wake.iterdir())) == 1, "mailboxes of the dead are removed"
        finally:
            for worker in dead:
                worker.end()


def test_a_stopped_waiter_costs_its_turn_and_queues_again(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine:
        assert isinstance(run_blocking(engine.take(want("n", "h"), until=soon(engine))), Grant)
        with workers(path, HOLD_UNTIL_TOLD, 1, 30, "stopped") as [stopped]:
            eventually(lambda: waiting(engine) == 1)
            with workers(path, HOLD_UNTIL_TOLD, 1, 30, "next") as [following]:
                eventually(lambda: waiting(engine) == 2)
                freeze(stopped.pid)
                freed = time.monotonic()
                run_blocking(engine.release("n", "h", until=soon(engine)))
                granted = float(following.line()[2])
                assert granted - freed <= 2 * TURN / 1e6 + 1.5, "its turn, and how long the next one sleeps at most"
                stopped.signal(signal.SIGCONT)
                eventually(lambda: waiting(engine) == 1)
                following.tell()
                assert stopped.line()[0] == "held"


def test_a_killed_process_leaves_a_file_that_works(tmp_path: Path) -> None:
    """Killed amid transactions, again and again: tokens go on, and nothing is stuck for longer than a TTL."""
    path = tmp_path / "l.db"
    code = """
        while True:
            held = hold("n", ttl=0.2)
            say(held.token)
            give_back(held)
    """
    highest = 0
    for round_ in range(5):
        with workers(path, code, 2) as everybody:
            for worker in everybody:
                for _ in range(20 + 7 * round_):
                    highest = max(highest, int(worker.line()[0]))
            for worker in everybody:
                worker.signal(signal.SIGKILL)
                rest, _ = worker.process.communicate(timeout=10)
                highest = max([highest, *map(int, rest.split("\n")[:-1])])
        with opened(path) as engine:
            eventually(lambda: isinstance(run_blocking(engine.take(want("n", "h"), until=soon(engine))), Grant))
            status = run_blocking(engine.status("n", until=soon(engine)))
            assert status is not None
            assert status.token > highest
            run_blocking(engine.release("n", "h", until=soon(engine)))


# Forks


def test_a_fork_leaves_the_parents_leases_connections_and_mailbox_alone(tmp_path: Path) -> None:
    code = """
        held = hold("parent")
        taken = run_blocking(engine.take(Want("queued", "other", 60.0), until=world.now() + 5))
        waiter = Want("queued", "waiter", 30.0)
        busy = run_blocking(engine.take(waiter, until=world.now() + 5, patience=30.0))
        child = os.fork()
        if child == 0:
            engine.forked()
            mine = hold("child")
            queued = run_blocking(engine.take(Want("parent", "child", 30.0), until=world.now() + 5, patience=9.0))
            assert isinstance(queued, Busy), queued
            run_blocking(engine.release("parent", "child", until=world.now() + 5))
            give_back(mine)
            run_blocking(engine.release("queued", "other", until=world.now() + 5))  # wakes the parent
            run_blocking(engine.close())
            sys.exit(7)
        start = time.monotonic()
        run_blocking(engine.wait(waiter, world.now() + 20))
        assert time.monotonic() - start < 15, "the parent was not woken"
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert isinstance(run_blocking(engine.take(waiter, until=world.now() + 5, patience=5.0)), Grant)
        give_back(held)
        other = hold("child")
        say("fine", len(list(path.with_name(path.name + "-wake").iterdir())))
        run_blocking(engine.close())
        say("closed", len(list(path.with_name(path.name + "-wake").iterdir())))
    """
    with workers(tmp_path / "l.db", code, 1) as [worker]:
        assert worker.lines() == [["fine", "1"], ["closed", "0"]]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at open files as Linux shows them")
def test_a_child_can_go_on_even_if_nobody_told_the_engine_of_the_fork(tmp_path: Path) -> None:
    code = """
        held = hold("n")
        if os.fork() == 0:
            to_be_used = len(engine._database._idle)
            descriptors = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            never_closed = descriptors.count(str(path))
            again = hold("other")
            say("child", again.token > 0, to_be_used, never_closed)
            os._exit(0)
        os.wait()
        give_back(held)
        say("parent")
    """
    with workers(tmp_path / "l.db", code, 1) as [worker]:
        assert worker.lines() == [["child", "True", "0", "1"], ["parent"]]


def test_forks_while_other_threads_are_amid_sqlite(tmp_path: Path) -> None:
    code = """
        import threading
        stop = False

        def hammer(name):
            while not stop:
                give_back(hold(name))

        threads = [threading.Thread(target=hammer, args=(f"thread-{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        failed = 0
        for number in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(15)  # a child that hangs is killed
                give_back(hold(f"child-{number}"))
                os._exit(0)
            failed += os.waitpid(child, 0)[1] != 0
        stop = True
        for thread in threads:
            thread.join()
        say("failed", failed)
    """
    with workers(tmp_path / "l.db", code, 1) as [worker]:
        assert worker.line() == ["failed", "0"]
