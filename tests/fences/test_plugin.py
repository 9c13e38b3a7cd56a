"""The fixture `stall`: it finds code that a stall can break, and passes code that it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import importlib
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import anyio
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


class Charges:
    """What async critical sections write to: a list with a floor."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.floor = 0

    def new(self) -> None:
        self.kept, self.floor = [], 0

    def state(self) -> list[int]:
        return list(self.kept)

    async def trusting(self, lease: Any) -> None:
        lease.check()
        await asyncio.sleep(0)
        self.kept.append(lease.token)

    async def fenced(self, lease: Any) -> None:
        lease.check()
        await asyncio.sleep(0)
        await self.write(lease)

    async def write(self, lease: Any) -> None:
        if lease.token < self.floor:  # no await from here on: one step
            raise PermissionError
        self.floor = lease.token
        self.kept.append(lease.token)

    async def blind(self, lease: Any) -> None:
        self.kept.append(lease.token)


Charge = Callable[[Any], Coroutine[Any, Any, None]]


async def gathered(charge: Charge, lease: Any) -> None:
    await asyncio.gather(charge(lease))


async def grouped(charge: Charge, lease: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(charge(lease))


async def timed(charge: Charge, lease: Any) -> None:
    await asyncio.wait_for(charge(lease), 20)


async def nested(charge: Charge, lease: Any) -> None:
    await asyncio.create_task(gathered(charge, lease), context=contextvars.Context())


async def in_anyio(charge: Charge, lease: Any) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(charge, lease)


async def from_a_callback(charge: Charge, lease: Any) -> None:
    loop = asyncio.get_running_loop()
    started: asyncio.Future[asyncio.Task[None]] = loop.create_future()
    loop.call_soon(lambda: started.set_result(loop.create_task(charge(lease))))
    await (await started)


async def left_running(charge: Charge, lease: Any) -> None:
    running = asyncio.create_task(charge(lease))
    await asyncio.sleep(0)
    assert not running.cancelled()


STARTED_BY = [gathered, grouped, timed, nested, in_anyio, from_a_callback]


@pytest.mark.parametrize("started_by", [*STARTED_BY, left_running])
def test_the_awaits_of_tasks_are_tried_as_well(started_by: Any, stall: Stall) -> None:
    charges = Charges()
    work = functools.partial(started_by, charges.trusting)
    with pytest.raises(pytest.fail.Exception, match="a stale write got through"):
        stall.prove(work, state=charges.state, setup=charges.new)


@pytest.mark.parametrize("started_by", STARTED_BY)
def test_fenced_code_in_tasks_passes(started_by: Any, stall: Stall) -> None:
    charges = Charges()
    assert stall.prove(functools.partial(started_by, charges.fenced), state=charges.state, setup=charges.new) >= 1


@pytest.mark.parametrize("started_by", [gathered, grouped, nested])
def test_a_task_is_frozen_before_it_starts(started_by: Any, stall: Stall) -> None:
    """Its first step comes later than the check of who started it."""
    charges = Charges()

    async def checked(charge: Charge, lease: Any) -> None:
        lease.check()
        await started_by(charge, lease)

    with pytest.raises(pytest.fail.Exception, match=r"before the start of the task in line .* stale write got through"):
        stall.prove(functools.partial(checked, charges.blind), state=charges.state, setup=charges.new)
    assert stall.prove(functools.partial(checked, charges.write), state=charges.state, setup=charges.new) >= 1


def test_all_tasks_of_a_holder_stand_still_with_the_one_that_is_frozen(stall: Stall) -> None:
    charges, at_work, seen = Charges(), set[int](), set[tuple[int, ...]]()

    async def ticking() -> None:
        while True:
            await asyncio.sleep(0)
            seen.add(tuple(at_work))

    async def work(lease: Any) -> None:
        ticks = asyncio.create_task(ticking()) if lease.token == 1_000 else None
        if ticks is None:
            at_work.add(lease.token)
        for _ in range(5):
            await asyncio.sleep(0)
        at_work.discard(lease.token)
        try:
            await charges.fenced(lease)
        finally:
            if ticks is not None:
                ticks.cancel()

    assert stall.prove(work, state=charges.state, setup=charges.new) > 10
    assert seen == {()}, "no task of the first holder went on while the second was at work"


def test_a_cancellation_that_comes_while_it_is_frozen_is_told_when_it_goes_on(stall: Stall) -> None:
    """As by a timer that ran out while a process stood still: the code gets to clean up."""
    charges, first, cleaned = Charges(), list[Any](), list[int]()

    async def work(lease: Any) -> None:
        if lease.token == 1_000:
            first[:] = [asyncio.current_task()]
        else:
            for task in first:
                task.cancel()
        try:
            await charges.fenced(lease)
        except asyncio.CancelledError:
            cleaned.append(lease.token)
            raise PermissionError from None

    assert stall.prove(work, state=charges.state, setup=charges.new) == 1
    assert cleaned == [1_000]


def test_a_task_that_is_cancelled_before_it_starts_is_as_always(stall: Stall) -> None:
    charges = Charges()

    async def work(lease: Any) -> None:
        never = asyncio.create_task(charges.blind(lease))
        never.cancel()
        await asyncio.wait({never})
        assert never.cancelled()
        await charges.fenced(lease)

    stall.prove(work, state=charges.state, setup=charges.new)


def test_tasks_that_do_not_end_are_said(stall: Stall) -> None:
    charges = Charges()

    async def work(lease: Any) -> None:
        running = asyncio.create_task(asyncio.sleep(60))
        await charges.fenced(lease)
        assert not running.done()

    with pytest.warns(UserWarning, match="tasks of the critical section were still running .* await them in it"):
        stall.prove(work, state=charges.state, setup=charges.new, patience=0.05)


def test_a_task_factory_of_ones_own_is_refused(stall: Stall) -> None:
    async def work(lease: Any) -> None:
        asyncio.get_running_loop().set_task_factory(None)

    with pytest.raises(pytest.fail.Exception, match="sets a task factory of its own"):
        stall.prove(work, state=lambda: None)


def test_lines_that_run_in_threads_of_the_work_are_said(stall: Stall) -> None:
    charges = Charges()

    def write(lease: Any) -> None:
        asyncio.run(charges.write(lease))

    async def in_a_thread(lease: Any) -> None:
        await asyncio.to_thread(write, lease)

    def in_a_pool(lease: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(write, lease).result()

    for work in (in_a_thread, in_a_pool):
        with pytest.warns(UserWarning, match=r"line \d+ of test_plugin.py runs in a thread .* a prove\(\) of its own"):
            stall.prove(work, state=charges.state, setup=charges.new)


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
