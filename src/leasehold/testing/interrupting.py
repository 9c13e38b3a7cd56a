"""Interrupts the library at a chosen point: a Ctrl-C before its n-th bytecode, or a cancellation at its n-th await.

Every point is tried in turn, until a run gets through without meeting it: no luck is involved, and no point is missed.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import sys
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

import leasehold

T = TypeVar("T")
LIBRARY = str(Path(leasehold.__file__).parent)
TESTS = str(Path(__file__).parent)
Moment = Literal["before", "with"]


class CtrlC:
    """Runs a function in this thread, and raises `KeyboardInterrupt` before the library's n-th bytecode in it.

    Points at which no signal can arrive are left out: the interpreter looks for signals only at calls, loops and
    function starts, so what happens between two of those is one step to a signal. That matters where a protected part
    of the code begins or ends: in ``with lock:`` no signal gets between the last call of the block and the release.
    """

    def __init__(self, at: int | None) -> None:
        """Interrupt at this bytecode, or only count them."""
        self.at = at
        self.seen = 0
        self.where = ""
        self._frames: dict[FrameType, _Progress] = {}

    @property
    def struck(self) -> bool:
        """Whether the run got as far as the chosen point."""
        return bool(self.where)

    def run(self, function: Callable[[], T]) -> T:
        """Run the function; the interruption is raised as the function's own."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(before)
            self._frames.clear()

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        caller = self._frames.get(frame.f_back) if frame.f_back is not None else None
        if caller is not None:
            caller.calls(frame.f_code)
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARY) or file.startswith(TESTS) or _is_finalizer(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._frames[frame] = _Progress(frame.f_code)
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if event == "opcode" and self._frames[frame].reaches(frame.f_lasti):
            if self.seen == self.at and not self.struck:
                code = frame.f_code
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}+{frame.f_lasti}"
                raise KeyboardInterrupt(f"planted at bytecode {self.at}, {self.where}")
            self.seen += 1
        elif event == "return":
            self._frames.pop(frame, None)
        return self._step


def _is_finalizer(frame: FrameType | None) -> bool:
    """Whether this runs while an object is being thrown away: Python itself drops what is raised there."""
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARY):
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


class _Progress:
    """How far a frame has come, and whether a signal can arrive before its next bytecode."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._protection = _protection(code)
        self._protected_by: int | None = None
        self._certain = True

    def calls(self, code: CodeType) -> None:
        """Call a function written in Python: no signal is looked for when it returns (as it is from a class)."""
        self._certain = code.co_name == "__init__"

    def reaches(self, offset: int) -> bool:
        """Go on to this bytecode; whether an interruption before it could be a signal's."""
        protected_by = self._protection.get(offset)
        if protected_by != self._protected_by:
            self._protected_by, self._certain = protected_by, False
        possible = self._certain
        if _looks_for_signals(self._code, offset):
            self._certain = True
        return possible


@functools.cache
def _protection(code: CodeType) -> dict[int, int]:
    """For each bytecode that an exception handler protects: where that handler is."""
    handlers: dict[int, int] = {}
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        handlers.update(dict.fromkeys(range(entry.start, entry.end, 2), entry.target))
    return handlers


@functools.cache
def _looks_for_signals(code: CodeType, offset: int) -> bool:
    name = dis.opname[code.co_code[offset]]
    return name.startswith("CALL") or name in ("RESUME", "JUMP_BACKWARD")


class Cancellation:
    """Awaits a coroutine in this task, and has the task cancelled at the coroutine's n-th suspension.

    ``before`` cancels as soon as it is suspended. ``with`` cancels at the moment at which what it waits for is there,
    so that an answer which has already arrived is thrown away.
    """

    def __init__(self, at: int, moment: Moment) -> None:
        """Cancel at this suspension."""
        self.at, self.moment = at, moment
        self.struck = False

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine; the cancellation is raised as its own."""
        result: T = await _Watched(coroutine, self._suspended)
        return result

    def _suspended(self, number: int, awaited: object) -> None:
        if number != self.at or self.struck:
            return
        self.struck = True
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a cancellation needs a task")
        if self.moment == "with" and asyncio.isfuture(awaited):
            # Added before the task's own callback, so the task is cancelled after the answer and before it sees it.
            awaited.add_done_callback(lambda _future: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


class _Watched:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], suspended: Callable[[int, object], None]) -> None:
        self._coroutine, self._suspended = coroutine, suspended

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, number = self._coroutine.__await__(), 0
        send: Callable[[], Any] = lambda: steps.send(None)  # noqa: E731 -- replaced by what is to be thrown in
        while True:
            try:
                awaited = send()
            except StopIteration as stop:
                return stop.value
            self._suspended(number, awaited)
            number += 1
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 -- thrown into the coroutine instead
                send = _thrower(steps, error)
            else:
                send = _thrower(steps, None)


def _thrower(steps: Generator[Any, Any, Any], error: BaseException | None) -> Callable[[], Any]:
    return (lambda: steps.send(None)) if error is None else (lambda: steps.throw(error))
