"""What families of engines have in common: one deployment, and how to reach it in each world.

Engines of one family are the caller's and the keeper's, and more where threads and event loops have their own.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from leasehold.core.engine import Engine, Facts

EngineT = TypeVar("EngineT", bound=Engine)


class Family(ABC, Generic[EngineT]):
    """One deployment as one client sees it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.facts.address}>"

    @abstractmethod
    def blocking(self) -> EngineT:
        """An engine whose operations block. Threads may share it."""

    @abstractmethod
    def asyncio(self) -> EngineT:
        """An engine for the running event loop. Tasks may share it."""


class Wire(Protocol):
    """A path to the deployment, as far as a family has to know it."""

    def forked(self) -> None:
        """Let go of connections without a word."""
        ...


WireT = TypeVar("WireT", bound=Wire)


class WiredFamily(Family[EngineT], Generic[EngineT, WireT]):
    """A family whose engines each have connections of their own."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._wires: weakref.WeakSet[WireT] = weakref.WeakSet()

    @abstractmethod
    def _blocking_wire(self) -> WireT:
        """A path to the deployment for threads."""

    @abstractmethod
    def _asyncio_wire(self) -> WireT:
        """A path to the deployment for the tasks of an event loop."""

    @abstractmethod
    def _engine_over(self, wire: WireT) -> EngineT:
        """The operations over a path."""

    def blocking(self) -> EngineT:
        """An engine whose operations block. Threads may share it."""
        return self._engine(self._blocking_wire())

    def asyncio(self) -> EngineT:
        """An engine for the running event loop. Tasks may share it."""
        return self._engine(self._asyncio_wire())

    def _engine(self, wire: WireT) -> EngineT:
        self._wires.add(wire)
        return self._engine_over(wire)

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection, of whichever engine."""
        for wire in list(self._wires):
            wire.forked()


class JoinedFamily(Family[EngineT]):
    """A family whose engines share connections and sessions, which are given up with the last of them."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._engines: set[EngineT] = set()
        self._lock = threading.Lock()

    def _joined(self, engine: EngineT) -> EngineT:
        with self._lock:
            self._engines.add(engine)
        return engine

    def leave(self, engine: EngineT) -> bool:
        """An engine is not in use any more; whether it was the last one."""
        with self._lock:
            self._engines.discard(engine)
            return not self._engines

    def forked(self) -> None:
        """In a forked child: own nothing of the parent's."""
        self._lock, self._engines = threading.Lock(), set()
