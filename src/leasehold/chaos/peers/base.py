"""What the adapters of peers share. They use each library as its documentation shows, with its defaults.

Where a library can be asked whether the lock is still held, it is asked before each write, and an error is taken for a
no. Where it tells of a loss, it is listened to. What it does not offer, the adapter does not add: no renewals where
there are none, no token where there is none.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from leasehold.chaos.subject import Held, Mode
from leasehold.errors import Misuse

EXCLUSIVE: Final[frozenset[Mode]] = frozenset({"exclusive"})


class PeerHeld:
    """A grant of a library that has no fencing token."""

    token: ClassVar[None] = None

    def __init__(self, believes: Callable[[], bool], release: Callable[[], bool], until: float = math.inf) -> None:
        """`believes` asks the library, `release` gives back; `until` is when the TTL ends that the caller set."""
        self._believes, self._release, self.until = believes, release, until

    def believes(self) -> bool:
        """Whether the library says that it is held; one who gets an error for an answer does not write."""
        try:
            return time.monotonic() < self.until and self._believes()
        except Exception:  # noqa: BLE001  whatever a library raises
            return False

    def release(self) -> bool:
        """Release; False when the library says that it was not held any more."""
        return self._release()


class Peer(ABC):
    """A library in one worker process."""

    name: ClassVar[str]
    label: ClassVar[str]
    modes: ClassVar[frozenset[Mode]] = EXCLUSIVE
    package: ClassVar[str]
    """What is imported."""
    distribution: ClassVar[str]
    """What is installed."""
    engines: ClassVar[tuple[str, ...]]
    """On which it runs."""
    renews: ClassVar[bool]
    """Whether it keeps a lock beyond its TTL for as long as the holder works."""

    def __init__(self, url: str, namespace: str) -> None:
        """Connect."""
        if not self.installed():
            raise Misuse(f"{self.label} is not installed here: pip install {self.distribution}")
        self._namespace = namespace
        self.connect(url)

    @classmethod
    def installed(cls) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(cls.package) is not None

    @abstractmethod
    def connect(self, url: str) -> None:
        """Make the library's own client."""

    @abstractmethod
    def acquire(self, key: str, ttl: float, wait: float, told: Callable[[], None]) -> Held | None:
        """Take one lock."""

    @abstractmethod
    def close(self) -> None:
        """Close connections."""

    def take(
        self,
        name: str,
        *,
        ttl: float,
        wait: float,
        told: Callable[[], None],
        mode: Mode = "exclusive",
        permits: int = 1,
    ) -> Held | None:
        """Take the lock, or None when it was busy all the while."""
        if mode not in self.modes:
            raise Misuse(f"{self.label} has exclusive locks only, and no {mode} ones (of {permits})")
        return self.acquire(f"{self._namespace}-{name}", ttl, wait, told)


def imported(module: str) -> Any:
    """A library, whose types nobody promised."""
    return importlib.import_module(module)
