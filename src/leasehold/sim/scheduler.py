"""Virtual time, and coroutines that are resumed by it.

No event loop: a heap of calls to be made, in the order of their time. A task parks itself after it has arranged who
resumes it; the first who does wins, and all the others find that its turn has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any

MOST_STEPS_AT_ONE_TIME = 2000
"""More steps than this without time going by is a loop that spins."""


class Interrupted(BaseException):
    """Thrown into a task at an await, as the cancellation of a task or a signal is."""


class Spinning(Exception):
    """Somebody runs in circles without letting time go by."""


class Park:
    """What a task awaits; its value is what the task is resumed with."""

    __slots__ = ()

    def __await__(self) -> Generator[None, Any, Any]:
        """Suspend until resumed."""
        return (yield)


PARK = Park()


class Process:
    """Tasks that pause together and die together."""

    __slots__ = ("backlog", "dead", "label", "look", "paused", "tasks", "watched")

    def __init__(self, label: str) -> None:
        self.label = label
        self.paused = self.dead = False
        self.backlog: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.tasks: list[Task] = []
        self.watched: list[Any] = []
        """Leases whose state is looked at after each step of this process."""
        self.look: Callable[[], object] = lambda: None

    def die(self) -> None:
        """No task of it runs again, and nothing runs on the way out."""
        self.dead, self.paused = True, False
        self.backlog.clear()
        for task in self.tasks:
            task.turn = -1


class Task:
    """A coroutine that belongs to a process."""

    __slots__ = ("coroutine", "fuse", "label", "on_fuse", "process", "turn")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], process: Process, label: str) -> None:
        self.coroutine, self.process, self.label = coroutine, process, label
        self.turn = 0
        """Counts its resumptions; whoever comes to resume an earlier turn comes too late. Negative: it has ended."""
        self.fuse = 0
        self.on_fuse: Callable[[], object] = lambda: None
        """Called when the task suspends for the `fuse`-th time."""


class Scheduler:
    """Runs everything, in virtual time."""

    def __init__(self, on_error: Callable[[Task, Exception], object]) -> None:
        self.now = 0.0
        self.current: Task
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._pushed = 0
        self._on_error = on_error
        self._tasks: list[Task] = []

    def call_at(self, at: float, call: Callable[..., object], *arguments: object) -> None:
        """Have something done later, whoever is paused."""
        self._pushed += 1
        heappush(self._heap, (at, self._pushed, call, arguments))

    def resume_at(self, at: float, task: Task, value: object = None) -> None:
        """Have the task resumed from where it parks next, unless somebody else is earlier."""
        self._pushed += 1
        heappush(self._heap, (at, self._pushed, self.resume, (task, task.turn, value)))

    def spawn(self, coroutine: Coroutine[Any, Any, Any], process: Process, label: str) -> Task:
        """Start a task now."""
        task = Task(coroutine, process, label)
        process.tasks.append(task)
        self._tasks.append(task)
        self.resume_at(self.now, task)
        return task

    def resume(self, task: Task, turn: int, value: object) -> None:
        """Let the task go on, if this is still its turn. A paused process does it when it wakes up."""
        if task.turn != turn:
            return
        if task.process.paused:
            task.process.backlog.append((self.resume, (task, turn, value)))
            return
        self._step(task, task.coroutine.send, value)

    def throw(self, task: Task, error: BaseException) -> None:
        """Interrupt the task at the await where it is."""
        if task.turn < 0:
            return
        if task.process.paused:
            task.process.backlog.append((self.throw, (task, error)))
            return
        self._step(task, task.coroutine.throw, error)

    def _step(self, task: Task, go: Callable[[Any], object], value: object) -> None:
        task.turn += 1
        self.steps += 1
        self.current = task
        process = task.process
        try:
            go(value)
        except StopIteration:
            task.turn = -1
        except Exception as error:  # noqa: BLE001  the history tells of it, and a judge condemns it
            task.turn = -1
            self._on_error(task, error)
        else:
            if task.fuse:
                task.fuse -= 1
                if not task.fuse:
                    task.on_fuse()
        if process.watched:
            process.look()

    def wake(self, process: Process, lateness: Callable[[], float]) -> None:
        """End a pause: what came meanwhile is seen to now, in no certain order."""
        process.paused = False
        backlog, process.backlog = process.backlog, []
        for call, arguments in backlog:
            self.call_at(self.now + lateness(), call, *arguments)

    def run(self, until: float) -> None:
        """Do all that is due up to that time."""
        heap, at_one_time = self._heap, 0
        while heap and heap[0][0] <= until:
            at, _, call, arguments = heappop(heap)
            if at > self.now:
                self.now, at_one_time = at, 0
            else:
                at_one_time += 1
                if at_one_time > MOST_STEPS_AT_ONE_TIME:
                    raise Spinning(f"{self.current.label} of {self.current.process.label} spins")
            call(*arguments)
        self.now = until

    def close(self) -> None:
        """Let go of what has not ended, so that Python does not complain."""
        for task in self._tasks:
            task.turn = -1
            task.coroutine.close()
        self._heap.clear()
