"""A few tasks at a time: ten thousand that ask at once would have a server fall so far behind that none is served.

Nor would there be much left of this process's memory: each of them would keep all that a request takes.
"""

from __future__ import annotations

from collections import deque

from leasehold.core.worlds import World
from leasehold.errors import EngineUnavailable
from leasehold.wires.task_bell import TaskBell


class AsyncRoom:
    """For the tasks of one event loop. Who leaves gives its place to the one that has waited longest."""

    def __init__(self, world: World, server: str, places: int) -> None:
        self._world, self._server, self._free = world, server, places
        self._waiting: deque[TaskBell] = deque()

    def enter_at_once(self) -> bool:
        """Be among the few, if a place is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def enter(self, until: float) -> EngineUnavailable | None:
        """Be among the few as soon as one of them leaves; or say, at `until`, that none has."""
        bell = TaskBell(self._world)
        self._waiting.append(bell)
        entered = False
        try:
            entered = await bell.wait(until)
        finally:
            bell.rest()
            if not entered:
                self._withdraw(bell)
        if entered:
            return None
        return EngineUnavailable(f"there was no time left to ask {self._server}: others of this client came first")

    def leave(self) -> None:
        """Let another one in."""
        if self._waiting:
            self._waiting.popleft().ring()
        else:
            self._free += 1

    def _withdraw(self, bell: TaskBell) -> None:
        try:
            self._waiting.remove(bell)
        except ValueError:  # it was just given a place, and has no use for it
            self.leave()
