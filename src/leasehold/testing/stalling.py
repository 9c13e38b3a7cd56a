"""Freezes a holder at each of its steps, lets the next one in, thaws the first, and judges what it did.

The critical section under test is a function of its lease. It runs once for each place where it can be frozen: before
every line of the file it is in, at every ``await`` of it and of its tasks if it is async, or by a real SIGSTOP in a
process of its own.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import pytest

from leasehold.errors import LeaseLost, Misuse
from leasehold.testing.awaiting import AsyncHolder, holders_tasks
from leasehold.worlds import boot_clock

Work = Callable[[Any], Any]
State = Callable[[], Any]

MOST_POINTS = 200
PATIENCE = 0.5
"""So long the second holder may be kept waiting by the frozen one before it is taken to be locked out."""
ENDS_WITHIN = 30.0
TTL = 30.0
_FIRST, _SECOND = 1_000, 2_000


class StallLease:
    """Stands for a lease: a name, a token, and a deadline on a clock that the test moves."""

    ttl, holder, released = TTL, "a holder under test", False

    def __init__(self, name: str, token: int, now: Callable[[], float], ttl: float = TTL) -> None:
        self.name, self.token, self._now = name, token, now
        self.valid_until = now() + ttl

    @property
    def remaining(self) -> float:
        """Seconds for which it may still be believed."""
        return max(self.valid_until - self._now(), 0.0)

    @property
    def lost(self) -> bool:
        """Whether it may no longer be held."""
        return self.remaining == 0

    def check(self, need: float = 0.0) -> None:
        """Raise `LeaseLost` unless it may be believed now, and for `need` more seconds."""
        if self.remaining <= need:
            raise LeaseLost(self.name, "its TTL ran out while the holder stood still", token=self.token)


@dataclass
class Course:
    """What happened in one run."""

    point: str | None
    """Where the first holder was frozen; None when it came to its end before that."""
    at_freeze: Any = None
    after_second: Any = None
    locked_out: bool = False
    """Whether the second holder could go on only after the first."""
    at_end: Any = None
    error: str | None = None
    """How the first holder noticed."""


class _Clock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Stall:
    """What the fixture `stall` gives to a test."""

    def prove(
        self,
        work: Work,
        *,
        state: State,
        setup: Callable[[], object] = lambda: None,
        process: bool = False,
        also: Sequence[object] = (),
        most: int = MOST_POINTS,
        name: str = "lock-under-test",
        patience: float = PATIENCE,
    ) -> int:
        """Fail the test if a holder that stalled could still write, or never noticed; return how often it was frozen.

        `work(lease)` is the critical section, blocking or async. It must open its connections itself, and use
        `lease.token` for its fence. `setup()` brings the resource into its first state before each run, and `state()`
        returns something to compare that tells everything that `work` writes. With `process=True` the holder is a
        child process that is really stopped (SIGSTOP); `state` must then look at something that processes share.

        Blocking code is frozen before each line of the file that `work` is written in. `also` names further modules or
        functions, whose files count as well: where `work` is a lambda around your code, or calls another module of
        yours. Async code is frozen at each ``await``, and where a task of its own starts. A test that would need more
        than `most` runs fails, rather than leave out the rest; of code in threads of its own it warns.
        """
        bench = _Bench(work, state, setup, name, patience, also)
        run = bench.in_process if process else bench.in_task if inspect.iscoroutinefunction(work) else bench.in_thread
        if process and inspect.iscoroutinefunction(work):
            raise Misuse("process=True takes a blocking function; wrap yours: lambda lease: asyncio.run(work(lease))")
        expected = bench.alone()
        for left_out in bench.untried:
            warnings.warn(left_out, stacklevel=2)
        unnoticed: str | None = None
        for point in range(1, most + 2):
            if point > most:
                pytest.fail(f"there are more than {most} places to freeze it at; give a smaller part, or most=…")
            setup()
            course = run(point)
            if course.point is None:
                break
            if not _noticed(course, expected):
                unnoticed = unnoticed or course.point
        if point == 1:
            pytest.fail("the critical section could not be frozen anywhere; is it written in Python?")
        if unnoticed is not None:
            _fail(unnoticed, "the first holder wrote nothing stale, but never noticed: it ended without an error")
        return point - 1


@dataclass(frozen=True)
class _Expected:
    """The states that good order leads to."""

    first: Any
    both: Any
    second: Any


def _noticed(course: Course, expected: _Expected) -> bool:
    """Whether the first holder noticed, where it had to; fails at once if it wrote what it must not."""
    where = str(course.point)
    if course.locked_out:
        # The first stood inside of its own step: it was carried out before the second's, or it gave up.
        right = expected.both if course.error is None else expected.second
        if course.at_end != right:
            _fail(where, f"the second holder had to wait, and the end is {course.at_end!r}, not {right!r}")
        return True
    if course.at_end != course.after_second:
        _fail(
            where,
            f"a stale write got through: it was {course.after_second!r} after the second holder, and is "
            f"{course.at_end!r} after the first one went on",
        )
    return course.error is not None or course.at_freeze == expected.first


def _fail(where: str, what: str) -> NoReturn:
    __tracebackhide__ = True
    pytest.fail(f"frozen {where}: {what}. Check the token where the write lands: see leasehold.fences", pytrace=False)


class _Bench:
    """Runs the critical section in each of the three ways."""

    def __init__(
        self,
        work: Work,
        state: State,
        setup: Callable[[], object],
        name: str,
        patience: float,
        also: Sequence[object],
    ) -> None:
        self.work, self.state, self.setup, self.name, self.patience = work, state, setup, name, patience
        self.files = frozenset(file for one in (work, *also) for file in _files_of(one))
        self.untried: dict[str, None] = {}
        """What the test cannot show, for people: each once, in the order in which it was found."""

    def alone(self) -> _Expected:
        """What the state is after the first holder alone, after both in good order, and after the second alone."""
        clock = _Clock()
        states = []
        for tokens in ((_FIRST,), (_FIRST, _SECOND), (_SECOND,)):
            self.setup()
            for token in tokens:
                self._call(StallLease(self.name, token, clock))
            states.append(self.state())
        return _Expected(*states)

    def _call(self, lease: StallLease) -> None:
        others = _OtherThreads(self.files)
        with others:
            result = self.work(lease)
            if inspect.iscoroutine(result):
                asyncio.run(self._call_in_task(result))
        for place in others.places[:1]:
            self.untried[
                f"{place} runs in a thread that the critical section starts, where it was frozen nowhere; give the "
                "function that runs there to a prove() of its own"
            ] = None

    async def _call_in_task(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        loop, holder = asyncio.get_running_loop(), AsyncHolder()
        loop.set_task_factory(holders_tasks)
        await holder.run(coroutine, self.patience)
        if loop.get_task_factory() is not holders_tasks:
            pytest.fail(
                "the critical section sets a task factory of its own, so that the awaits of its tasks cannot be tried; "
                "leave that to who calls it"
            )
        if holder.unfinished:
            self.untried[
                f"tasks of the critical section were still running {self.patience:g} s after its end, and what they do "
                "later was not tried; await them in it"
            ] = None

    # In a thread, frozen before a line

    def in_thread(self, point: int) -> Course:
        """Freeze a thread before the `point`-th line that it runs."""
        clock, course = _Clock(), Course(None)
        frozen, thaw = threading.Event(), threading.Event()
        lease = StallLease(self.name, _FIRST, clock)

        def freeze(where: str) -> None:
            course.point = where
            frozen.set()
            thaw.wait(ENDS_WITHIN)

        def first() -> None:
            try:
                with _Lines(self.files, point, freeze):
                    self.work(lease)
            except Exception as error:  # noqa: BLE001 -- whatever it is, the holder noticed
                course.error = repr(error)
            finally:
                frozen.set()

        thread = threading.Thread(target=first, name="first-holder", daemon=True)
        thread.start()
        _await_or_fail(frozen.wait(ENDS_WITHIN), "the first holder neither ended nor came to the next line")
        if course.point is not None:
            clock.now += 2 * TTL
            self._second(course, clock, thaw.set)
        thread.join(ENDS_WITHIN)
        _await_or_fail(not thread.is_alive(), "the first holder did not end after it went on")
        course.at_end = self.state()
        return course

    def _second(self, course: Course, now: Callable[[], float], thaw: Callable[[], object]) -> None:
        """Let the second holder work while the first stands still; go on with the first, at the latest when needed."""
        course.at_freeze = self.state()
        failure: list[BaseException] = []

        def second() -> None:
            try:
                self.work(StallLease(self.name, _SECOND, now))
            except BaseException as error:  # noqa: BLE001 -- raised again below, in the test's own thread
                failure.append(error)

        thread = threading.Thread(target=second, name="second-holder", daemon=True)
        thread.start()
        thread.join(self.patience)
        course.locked_out = thread.is_alive()
        if not course.locked_out:
            course.after_second = self.state()
        thaw()
        thread.join(ENDS_WITHIN)
        _await_or_fail(not thread.is_alive(), "the second holder did not end, though the first went on")
        if failure:
            raise failure[0]

    # As a task, frozen at an await

    def in_task(self, point: int) -> Course:
        """Freeze a coroutine and its tasks when one of them would go on for the `point`-th time."""
        return asyncio.run(self._in_task(point))

    async def _in_task(self, point: int) -> Course:
        asyncio.get_running_loop().set_task_factory(holders_tasks)
        clock, course, holder = _Clock(), Course(None), AsyncHolder(point)

        async def first() -> None:
            try:
                await holder.run(self.work(StallLease(self.name, _FIRST, clock)), self.patience)
            except Exception as error:  # noqa: BLE001 -- whatever it is, the holder noticed
                course.error = repr(error)

        task = asyncio.create_task(first())
        try:
            await asyncio.wait_for(holder.stopped.wait(), ENDS_WITHIN)
            course.point = holder.point
            if course.point is not None:
                clock.now += 2 * TTL
                await self._second_in_task(course, clock, holder.thaw)
        finally:
            holder.thaw()
        await asyncio.wait_for(task, ENDS_WITHIN)
        course.at_end = self.state()
        return course

    async def _second_in_task(self, course: Course, now: Callable[[], float], thaw: Callable[[], object]) -> None:
        course.at_freeze = self.state()
        lease = StallLease(self.name, _SECOND, now)
        second = asyncio.create_task(AsyncHolder().run(self.work(lease), self.patience))
        await asyncio.wait({second}, timeout=self.patience)
        course.locked_out = not second.done()
        if not course.locked_out:
            course.after_second = self.state()
        thaw()
        await asyncio.wait_for(second, ENDS_WITHIN)

    # As a process, stopped before a line

    def in_process(self, point: int) -> Course:
        """Stop a child process before the `point`-th line that it runs."""
        reader, writer = os.pipe()
        ttl = 0.05
        with warnings.catch_warnings():
            # Python warns of a fork beside threads; the child runs the critical section and nothing else.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            self._as_child(point, writer, ttl)
        os.close(writer)
        course = Course(None)
        with os.fdopen(reader, "rb") as told:
            _, status = os.waitpid(child, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                time.sleep(2 * ttl)
                course.point = "by SIGSTOP"
                self._second(course, boot_clock, lambda: os.kill(child, signal.SIGCONT))
                _, status = os.waitpid(child, 0)
            *said, error = told.read().decode().split("\0")
        if course.point is not None and said:
            course.point = f"by SIGSTOP {said[0]}"
        course.error = error or (None if os.waitstatus_to_exitcode(status) == 0 else "its process failed")
        course.at_end = self.state()
        return course

    def _as_child(self, point: int, writer: int, ttl: float) -> NoReturn:
        """Be the first holder, and leave without the clean-up that is the parent's."""
        code = 1
        try:

            def freeze(where: str) -> None:
                os.write(writer, where.encode() + b"\0")
                os.kill(os.getpid(), signal.SIGSTOP)

            try:
                with _Lines(self.files, point, freeze):
                    self.work(StallLease(self.name, _FIRST, boot_clock, ttl))
            except Exception as error:  # noqa: BLE001 -- whatever it is, the holder noticed
                os.write(writer, repr(error)[:500].encode())
            code = 0
        finally:
            os._exit(code)


def _files_of(one: object) -> list[str]:
    """The file that a module, a function, a method, or what is wrapped in a `partial` is written in."""
    while isinstance(one, functools.partial):
        one = one.func
    if isinstance(one, ModuleType):
        return [one.__file__] if one.__file__ else []
    plain: Any = inspect.unwrap(getattr(one, "__func__", one))  # type: ignore[arg-type]
    return [plain.__code__.co_filename] if hasattr(plain, "__code__") else []


def _await_or_fail(reached: bool, what: str) -> None:
    if not reached:
        pytest.fail(f"{what} within {ENDS_WITHIN:g} s", pytrace=False)


class _Lines:
    """Calls `freeze` before the n-th line that this thread runs of some files."""

    def __init__(self, files: frozenset[str], point: int, freeze: Callable[[str], None]) -> None:
        self._files, self._left, self._freeze = files, point, freeze

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._left -= 1
            if self._left == 0:
                self._freeze(f"before line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}")
        return self._line


class _OtherThreads:
    """Notes where code of some files runs in threads that are started meanwhile."""

    def __init__(self, files: frozenset[str]) -> None:
        self._files = files
        self.places: list[str] = []

    def __enter__(self) -> None:
        self._before = threading.gettrace()
        threading.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        threading.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code.co_filename in self._files:
            self.places.append(f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}")
