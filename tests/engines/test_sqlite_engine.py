"""The embedded engine's operations as callers see them, beyond what the lease table says."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.engines.sqlite_help import opened, soon, want

from leasehold import Leasehold
from leasehold.core.engine import Busy, Engine, EngineFamily, Grant, Renewal, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine, open_engine
from leasehold.errors import EngineUnavailable
from leasehold.wires import sqlite_connection, sqlite_rows
from leasehold.wires.sqlite import MOST_IDLE


def take(engine: SqliteEngine, name: str, holder: str, ttl: float = 30.0) -> Grant | Busy:
    return run_blocking(engine.take(want(name, holder, ttl), until=soon(engine)))


def test_it_is_an_engine_and_a_family(tmp_path: Path) -> None:
    family: EngineFamily = open_engine(tmp_path / "l.db", namespace="", client_label="someone")
    engine: Engine = family.blocking()
    assert engine.facts is family.facts


def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path, namespace="a") as one, opened(path, namespace="a.b") as other, opened(path) as plain:
        for engine in (one, other, plain):
            assert isinstance(take(engine, "n", "h"), Grant)
            assert run_blocking(engine.names(after=None, limit=9, until=soon(engine))) == ["n"]
        assert run_blocking(other.release("n", "h", until=soon(other)))
        assert isinstance(take(one, "n", "w"), Busy)
        assert run_blocking(other.names(after=None, limit=9, until=soon(other))) == []


def test_names_differ_by_every_byte(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        names = ["a", "A", "a ", "ä", "a.b", "a/b", "%61", "\uff41", "x" * 255]
        for name in names:
            assert isinstance(take(engine, name, "h"), Grant)
        found = run_blocking(engine.names(after=None, limit=99, until=soon(engine)))
        assert found == sorted(names)


def test_names_come_in_pages(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        names = [f"name-{number:03}" for number in range(25)]
        for name in names:
            take(engine, name, "h")
        take(engine, "free", "h")
        run_blocking(engine.release("free", "h", until=soon(engine)))
        found: list[str] = []
        while page := run_blocking(engine.names(after=found[-1] if found else None, limit=10, until=soon(engine))):
            assert len(page) <= 10
            found += page
        assert found == names


def test_status_tells_who_holds_and_who_waits_but_no_secret(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        assert run_blocking(engine.status("n", until=soon(engine))) is None
        granted = run_blocking(engine.take(Want("n", "secret-1", 30.0, about="worker@a:1"), until=soon(engine)))
        assert isinstance(granted, Grant)
        waiter = Want("n", "secret-2", 30.0, about="worker@b:2")
        run_blocking(engine.take(waiter, until=soon(engine), patience=9.0))
        status = run_blocking(engine.status("n", until=soon(engine)))
        assert status is not None
        assert "secret" not in repr(status)
        [holder], [waiting] = status.holders, status.waiters
        assert (holder.token, holder.mode, holder.about) == (granted.token, "exclusive", "worker@a:1")
        assert 0 <= holder.held_for < 5
        assert 25 < holder.expires_in <= 30
        assert (waiting.mode, waiting.about) == ("exclusive", "worker@b:2")
        assert 4 < waiting.patience_left <= 9


def test_force_release_wakes_and_outbids(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        granted = take(engine, "n", "h")
        assert isinstance(granted, Grant)
        run_blocking(engine.take(want("n", "w"), until=soon(engine), patience=20.0))
        token = run_blocking(engine.force_release("n", until=soon(engine)))
        assert token > granted.token
        start = time.monotonic()
        run_blocking(engine.wait(want("n", "w"), engine.world.now() + 20))
        assert time.monotonic() - start < 10
        assert run_blocking(engine.renew([Renewal("n", "h", granted.token, 30.0)], until=soon(engine))) == [False]
        next_one = take(engine, "n", "w")
        assert isinstance(next_one, Grant)
        assert next_one.token > token


def test_a_free_name_is_kept_for_the_head_of_its_queue(tmp_path: Path) -> None:
    """Who comes back before the head does is told to wait, on the short way as on the long one."""
    with opened(tmp_path / "l.db") as engine:

        def asked(holder: str) -> Grant | Busy:
            return run_blocking(engine.take(want("n", holder), until=soon(engine), patience=20.0))

        held = asked("h")
        assert isinstance(held, Grant)
        assert isinstance(asked("first"), Busy)
        assert isinstance(asked("second"), Busy)
        assert run_blocking(engine.release("n", "h", until=soon(engine)))
        assert isinstance(asked("second"), Busy)
        first = asked("first")
        assert isinstance(first, Grant)
        assert first.token > held.token
        assert isinstance(asked("second"), Busy)


def test_renewals_come_in_any_number(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        renewals = []
        for number in range(250):
            granted = take(engine, f"n{number}", f"h{number}")
            assert isinstance(granted, Grant)
            token = granted.token if number % 3 else 1
            renewals.append(Renewal(f"n{number}", f"h{number}", token, 30.0))
        kept = run_blocking(engine.renew(renewals, until=soon(engine)))
        assert kept == [bool(number % 3) for number in range(250)]
        assert run_blocking(engine.renew([], until=soon(engine))) == []


def test_threads_share_an_engine(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        tokens: list[int] = []
        inside = threading.Lock()

        def work(number: int) -> None:
            for turn in range(25):
                wanted = want("n", f"t{number}-{turn}")
                while isinstance(granted := run_blocking(engine.take(wanted, until=soon(engine), patience=20.0)), Busy):
                    run_blocking(engine.wait(wanted, engine.world.now() + granted.ask_again))
                assert inside.acquire(blocking=False), "two held at once"
                tokens.append(granted.token)
                inside.release()
                assert run_blocking(engine.release("n", wanted.holder, until=soon(engine)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(tokens) == 150
        assert tokens == sorted(set(tokens))


def test_an_engine_can_be_used_after_it_was_closed(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        assert isinstance(take(engine, "n", "h"), Grant)
        run_blocking(engine.close())
        run_blocking(engine.close())
        assert not list(tmp_path.glob("*-wal")), "nothing is open"
        assert run_blocking(engine.release("n", "h", until=soon(engine)))


@pytest.mark.parametrize(("options", "level"), [("", 1), ("?synchronous=normal", 1), ("?synchronous=full", 2)])
def test_how_much_is_synced(tmp_path: Path, options: str, level: int) -> None:
    with opened(tmp_path / "l.db", options=options) as engine:
        take(engine, "n", "h")
        [found] = run_blocking(
            engine._database.carry_out(soon(engine), lambda c: c.execute("PRAGMA synchronous").fetchone())
        )
        assert found == level


# Somebody else is writing


@contextlib.contextmanager
def blocked(path: Path) -> Any:
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        yield blocker
    finally:
        blocker.close()


def test_a_busy_file_is_reported_in_time_and_nothing_was_done(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine:
        take(engine, "n", "h")
        with blocked(path):
            for operate in (
                lambda: engine.take(want("n", "w"), until=soon(engine, 0.3)),
                lambda: engine.take(want("m", "w"), until=soon(engine, 0.3)),
                lambda: engine.release("n", "h", until=soon(engine, 0.3)),
                lambda: engine.renew([Renewal("n", "h", 1, 1.0)], until=soon(engine, 0.3)),
                lambda: engine.force_release("n", until=soon(engine, 0.3)),
            ):
                start = time.monotonic()
                with pytest.raises(EngineUnavailable, match="keeps a transaction open"):
                    run_blocking(operate())
                assert 0.2 < time.monotonic() - start < 2
            status = run_blocking(engine.status("n", until=soon(engine)))  # who only looks is not in anybody's way
            assert status is not None
            assert len(status.holders) == 1
        assert run_blocking(engine.release("n", "h", until=soon(engine)))


def test_a_file_that_is_busy_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine:
        take(engine, "n", "h")
        with blocked(path) as blocker:
            timer = threading.Timer(0.3, lambda: blocker.execute("ROLLBACK"))
            timer.start()
            assert isinstance(take(engine, "m", "h"), Grant)
            timer.join()


# Interruptions


class _Interrupt:
    """Raises KeyboardInterrupt at the n-th line that is executed in the package."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if "/leasehold/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


# What was just being opened or closed is left to the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("crowded", [False, True])
def test_an_interruption_at_any_line_leaves_no_transaction_open(tmp_path: Path, crowded: bool) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine, opened(path) as other:
        take(other, "warm", "up")
        line = 0
        finished = False
        while not finished:
            line += 3 if crowded else 1
            name = f"n{line}"
            if crowded:
                take(other, name, "previous")
                run_blocking(other.take(want(name, "behind"), until=soon(other), patience=30.0))
                run_blocking(other.release(name, "previous", until=soon(other)))
            sys.settrace(_Interrupt(line))
            try:
                run_blocking(engine.take(want(name, "h"), until=soon(engine), patience=20.0))
                run_blocking(engine.release(name, "h", until=soon(engine)))
                finished = sys.gettrace() is not None
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            # Neither the other engine nor this one finds the file locked, and what was half done can be given back.
            for one in (other, engine):
                run_blocking(one.release(name, "h", until=one.world.now() + 1.0))
            behind = run_blocking(other.take(want(name, "behind"), until=other.world.now() + 1.0))
            assert isinstance(behind, Grant), f"interrupted at line {line}"
        assert line > 30, "the interruptions went through the whole operation"
    gc.collect()


def test_an_interrupted_transaction_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine, opened(path) as other:
        take(engine, "n", "h")

        def interrupted(self: sqlite_rows.Record) -> None:
            self._execute("DELETE FROM lease")
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(sqlite_rows.Record, "save", interrupted)
            with pytest.raises(KeyboardInterrupt) as caught:
                take(engine, "n", "w")
        assert isinstance(take(other, "n", "w"), Busy), "the lease is still there"
        assert caught.value.__traceback__ is not None  # it is alive, and still does not keep the transaction open


def test_a_waiter_that_cannot_be_woken_does_not_undo_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "l.db") as engine:
        take(engine, "n", "h")
        run_blocking(engine.take(want("n", "w"), until=soon(engine), patience=20.0))

        def broken(address: str, holder: str) -> None:
            raise EngineUnavailable("no mail today")

        monkeypatch.setattr(engine._post, "send", broken)
        assert run_blocking(engine.release("n", "h", until=soon(engine))) is True
        assert "no mail today" in caplog.text
        assert "'n'" in caplog.text


def test_many_idle_connections_are_not_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        take(engine, "n", "h")
        start = threading.Barrier(40)

        def once(number: int) -> None:
            start.wait(20)
            take(engine, f"n{number}", "h")

        threads = [threading.Thread(target=once, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(engine._database._open) == len(engine._database._idle) <= MOST_IDLE


def test_a_python_that_takes_numbers_for_names_is_given_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12.0 to 3.12.3 does; which would be a warning for each statement."""
    monkeypatch.setattr(sqlite_connection, "NUMBERS_WARN", True)
    with Leasehold(f"sqlite:///{tmp_path}/leases.db") as locks, locks.lock("a", ttl=10) as lease:
        lease.extend(20)
        assert locks.lock("a", ttl=10).try_acquire() is None
        assert list(locks.names()) == ["a"]
        with locks.shared("b", ttl=10), locks.shared("b", ttl=10):
            assert sorted(locks.names()) == ["a", "b"]
