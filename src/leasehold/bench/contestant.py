"""What a contestant is: a way to hold a name. From outside all are alike, a context manager that holds one name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from leasehold.bench.places import Place

TTL = 30
"""Set wherever there is one."""
PATIENCE = 600.0

Use = Callable[[], AbstractContextManager[Any]]
AsyncUse = Callable[[], AbstractAsyncContextManager[Any]]
Close = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Opened:
    """A contestant that is connected. `again` uses one lock object again and again, `fresh` makes one for each use."""

    again: Use
    fresh: Use
    close: Close


@dataclass(frozen=True, slots=True)
class AsyncOpened:
    """A connected contestant of the asyncio world; `close` returns an awaitable."""

    again: AsyncUse
    fresh: AsyncUse
    close: Callable[[], Any]


class Opener(Protocol):
    """Connects a contestant to an engine, to hold the name."""

    def __call__(self, place: Place, name: str, ttl: int = TTL, /) -> Opened:
        """Connect."""
        ...


def _runs_on(engine: str, package: str | None, place: Place) -> bool:
    return engine in ("any", place.kind) and (package is None or importlib.util.find_spec(package) is not None)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to hold a name in blocking code."""

    key: str
    label: str
    engine: str
    """The kind of place that it runs on, or "any"."""
    package: str | None
    """What must be installed for it."""
    open: Opener
    contends: bool = True
    """Whether it is measured with others who want the name too, and not only alone."""
    bare: bool = False
    """Whether it is no lock that a library offers, but what the engine allows at best, without leases or tokens."""

    def runs_on(self, place: Place) -> bool:
        """Whether it can be measured there."""
        return _runs_on(self.engine, self.package, place)


@dataclass(frozen=True, slots=True)
class AsyncContestant:
    """A way to hold a name in asyncio code. It is opened, used and closed in one event loop."""

    label: str
    engine: str
    package: str | None
    open: Callable[[Place, str], AsyncOpened]

    def runs_on(self, place: Place) -> bool:
        """Whether it can be measured there."""
        return _runs_on(self.engine, self.package, place)
