"""The fixture `stall`: it finds code that a stall can break, and passes code that it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import Misuse
from leasehold.fences import SqliteFence
from leasehold.testing.stalling import Stall

pytest_plugins = ["pytester"]


class Ledger:
    """An account with a balance; the critical sections below charge it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def new(self) -> None:
        self.path.unlink(missing_ok=True)
        with self.open() as database:
            database.execute("CREATE TABLE charge (token INTEGER)")
            SqliteFence(database).create()

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=20, isolation_level=None)) as database:
            yield database

    def state(self) -> list[Any]:
        with self.open() as database:
            return database.execute("SELECT token FROM charge").fetchall()


@pytest.fixture
def stall() -> Stall:
    """As the plugin gives it, whether it is installed here or not."""
    return Stall()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def fenced(ledger: Ledger) -> Callable[[Any], None]:
    def charge(lease: Any) -> None:
        with ledger.open() as database:
            fence = SqliteFence(database)
            with fence.writing("account", lease):
                database.execute("INSERT INTO charge VALUES (?)", (lease.token,))
                database.execute("UPDATE charge SET token = token")

    return charge


def trusting(ledger: Ledger) -> Callable[[Any], None]:
    def charge(lease: Any) -> None:
        with ledger.open() as database:
            lease.check()  # good, until it is not
            database.execute("INSERT INTO charge VALUES (?)", (lease.token,))

    return charge


def heedless(ledger: Ledger) -> Callable[[Any], None]:
    def charge(lease: Any) -> None:
        with (
            ledger.open() as database,
            contextlib.suppress(Exception),
            SqliteFence(database).writing("account", lease),
        ):
            database.execute("INSERT INTO charge VALUES (?)", (lease.token,))

    return charge


@pytest.mark.parametrize("process", [False, True], ids=["thread", "SIGSTOP"])
def test_fenced_code_passes(ledger: Ledger, stall: Stall, process: bool) -> None:
    points = stall.prove(fenced(ledger), state=ledger.state, setup=ledger.new, process=process)
    assert points > 5, "it was frozen in the open, before its fence, and inside of its transaction"


@pytest.mark.parametrize("process", [False, True], ids=["thread", "SIGSTOP"])
def test_code_that_trusts_its_lease_is_found(ledger: Ledger, stall: Stall, process: bool) -> None:
    with pytest.raises(pytest.fail.Exception, match="a stale write got through") as found:
        stall.prove(trusting(ledger), state=ledger.state, setup=ledger.new, process=process)
    assert "of test_plugin.py" in str(found.value), "it names the line"


def test_code_that_never_notices_is_found(ledger: Ledger, stall: Stall) -> None:
    with pytest.raises(pytest.fail.Exception, match="never noticed"):
        stall.prove(heedless(ledger), state=ledger.state, setup=ledger.new)


# Async code


def test_async_code_is_frozen_at_each_await(stall: Stall) -> None:
    kept: list[int] = []
    floor = 0

    async def trusting_charge(lease: Any) -> None:
        await asyncio.sleep(0)
        lease.check()
        await asyncio.sleep(0)
        kept.append(lease.token)

    async def fenced_charge(lease: Any) -> None:
        nonlocal floor
        await asyncio.sleep(0)
        lease.check()
        await asyncio.sleep(0)
        if lease.token < floor:  # no await from here on: one step
            raise PermissionError
        floor = lease.token
        kept.append(lease.token)

    def setup() -> None:
        nonlocal floor
        floor = 0
        kept.clear()

    with pytest.raises(pytest.fail.Exception, match="a stale write got through") as found:
        stall.prove(trusting_charge, state=lambda: list(kept), setup=setup)
    assert "at the await in line" in str(found.value)
    assert stall.prove(fenced_charge, state=lambda: list(kept), setup=setup) == 2
    with pytest.raises(Misuse, match="process=True takes a blocking function"):
        stall.prove(fenced_charge, state=lambda: list(kept), setup=setup, process=True)


PAYMENTS = """
import sqlite3

def charge(path, lease):
    database = sqlite3.connect(path, timeout=20, isolation_level=None)
    try:
        lease.check()
        database.execute("INSERT INTO charge VALUES (?)", (lease.token,))
    finally:
        database.close()
"""


def test_code_of_another_module_is_frozen_when_it_is_named(
    ledger: Ledger, stall: Stall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lambda around it hides its lines, so that nothing is found; a partial does not."""
    (tmp_path / "payments_elsewhere.py").write_text(PAYMENTS)
    monkeypatch.syspath_prepend(tmp_path)
    payments = importlib.import_module("payments_elsewhere")
    around: Callable[[Any], None] = lambda lease: payments.charge(ledger.path, lease)  # noqa: E731
    assert stall.prove(around, state=ledger.state, setup=ledger.new) == 1
    for also in ([payments], [payments.charge]):
        with pytest.raises(pytest.fail.Exception, match=r"line 8 of payments_elsewhere.py: a stale write got through"):
            stall.prove(around, state=ledger.state, setup=ledger.new, also=also)
    with pytest.raises(pytest.fail.Exception, match="a stale write got through"):
        stall.prove(functools.partial(payments.charge, ledger.path), state=ledger.state, setup=ledger.new)


def test_places_that_are_too_many_are_not_left_out_without_a_word(ledger: Ledger, stall: Stall) -> None:
    with pytest.raises(pytest.fail.Exception, match="more than 2 places"):
        stall.prove(fenced(ledger), state=ledger.state, setup=ledger.new, most=2)


def test_a_second_holder_that_fails_is_an_error_of_its_own(stall: Stall) -> None:
    def work(lease: Any) -> None:
        if threading.current_thread().name == "second-holder":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stall.prove(work, state=lambda: None)


def test_code_that_cannot_be_frozen_is_said_so(stall: Stall) -> None:
    with pytest.raises(pytest.fail.Exception, match="could not be frozen anywhere"):
        stall.prove(print, state=lambda: None)


# As users have it


def test_the_plugin_is_there_once_leasehold_is_installed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        kept = []

        def pay(lease):
            lease.check()
            kept.append(lease.token)

        def test_pay(stall):
            stall.prove(pay, state=lambda: list(kept), setup=kept.clear)
        """
    )
    installed = any(one.value == "leasehold.testing.plugin" for one in entry_points(group="pytest11"))
    by_hand = [] if installed else ["-p", "leasehold.testing.plugin"]
    result = pytester.runpytest_subprocess(*by_hand, "-q")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a stale write got through*"])
