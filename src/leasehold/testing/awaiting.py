"""Runs a holder in asyncio with every task that comes from it, and stops all of it when one of them would go on.

A process that stalls stands still as a whole. So where one task is frozen, the others of the same holder wait as well
when they come to go on; the second holder, and the test, are not held up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any


class AsyncHolder:
    """One holder: a coroutine, and the tasks that it starts, and those that they start."""

    def __init__(self, point: int = 0) -> None:
        """It is frozen when one of its tasks would start, or go on after an await, for the `point`-th time."""
        self.point: str | None = None
        """Where it was frozen, once it is."""
        self.stopped = asyncio.Event()
        """Set when it is frozen, or at its end."""
        self.unfinished = 0
        """How many of its tasks did not end by themselves."""
        self._left, self._thawed = point, asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    def thaw(self) -> None:
        """Let it go on."""
        self._thawed.set()

    async def run(self, coroutine: Coroutine[Any, Any, Any], patience: float) -> None:
        """Run it to its end, and what it left running for a while longer: that may still write."""
        try:
            await _Stepped(coroutine, self)
        finally:
            _current.set(None)
            await self._end(patience)
            self.stopped.set()

    def task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any) -> asyncio.Task[Any]:
        """Start a task that is frozen with this holder."""
        # A task that starts eagerly runs inside of its creator, which nothing could hold up there.
        stepped = _Stepped(coroutine, self, at_start=not settings.get("eager_start"))
        task = asyncio.Task(stepped, loop=loop, **settings)
        self._tasks.append(task)
        return task

    def gate(self, where: Callable[[], str]) -> Generator[Any, Any, BaseException | None]:
        """Pass, or wait until it may go on; returns the cancellation that came meanwhile, to be told afterwards."""
        self._left -= 1
        if self._left == 0:
            self.point = where()
            self.stopped.set()
        cancelled: BaseException | None = None
        while self._frozen:
            try:
                yield from self._thawed.wait().__await__()
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    @property
    def _frozen(self) -> bool:
        return self.point is not None and not self._thawed.is_set()

    async def _end(self, patience: float) -> None:
        while running := [task for task in self._tasks if not task.done()]:
            ended, _ = await asyncio.wait(running, timeout=patience)
            if self._frozen:
                await self._thawed.wait()
            elif not ended:
                break
        self.unfinished = len(running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


_current: ContextVar[AsyncHolder | None] = ContextVar("leasehold_holder_under_test", default=None)


def holders_tasks(loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any) -> asyncio.Task[Any]:
    """A task factory: a task that a holder starts belongs to it, any other is as always."""
    holder = _current.get()
    if holder is None:
        return asyncio.Task(coroutine, loop=loop, **settings)
    return holder.task(loop, coroutine, **settings)


class _Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that comes to its holder's gate each time that it would go on."""

    def __init__(self, coroutine: Any, holder: AsyncHolder, *, at_start: bool = False) -> None:
        self._coroutine, self._holder, self._at_start = coroutine, holder, at_start
        self._begun, self._steps = False, self._run()

    def __getattr__(self, name: str) -> Any:
        """Look like the coroutine to those who ask in what state it is."""
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps

    def send(self, value: Any) -> Any:
        self._begun = True
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        if not self._begun:  # cancelled before its first step
            return self._coroutine.throw(*error)
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()
        self._coroutine.close()

    def _run(self) -> Generator[Any, Any, Any]:
        _current.set(self._holder)  # also where the task was given a context of its own
        raised: BaseException | None = None
        if self._at_start:
            raised = yield from self._holder.gate(lambda: f"before the start of the task{self._where()}")
        while True:
            try:
                waits_for = self._coroutine.send(None) if raised is None else self._coroutine.throw(raised)
            except StopIteration as end:
                return end.value
            raised = None
            try:
                yield waits_for
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 -- a cancellation, or what the awaited thing raised
                raised = error
            cancelled = yield from self._holder.gate(lambda: f"at the await{self._where()}")
            raised = cancelled or raised

    def _where(self) -> str:
        frame = getattr(self._coroutine, "cr_frame", None)
        return f" in line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}" if frame is not None else ""
