"""`Leasehold` and `AsyncLeasehold`: thin twins over the core.

>>> import pathlib, tempfile
>>> locks = Leasehold(pathlib.Path(tempfile.mkdtemp()) / "leases.db")
>>> with locks.lock("nightly-export", ttl=30, wait=5) as lease:
...     print(lease.remaining > 29)
True
>>> locks.close()
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import ClassVar, NamedTuple, NoReturn, Self, Unpack

from leasehold import watching
from leasehold.core.engine import Engine, EngineFamily, Facts, NameStatus
from leasehold.core.worlds import run_blocking
from leasehold.desk import AsyncDesk, Desk, not_sent
from leasehold.errors import Misuse, quoted
from leasehold.keeping import importing
from leasehold.lock import AsyncLock, AsyncSeveral, Lock, Several
from leasehold.names import check_name, check_namespace
from leasehold.opening import open_family
from leasehold.settings import (
    DEFAULT_REQUEST_TIMEOUT,
    MOST_WAITERS,
    AsyncLockTerms,
    AsyncSeveralTerms,
    LockTerms,
    SeveralTerms,
    Terms,
    check_label,
    check_request_timeout,
)

PAGE = 500
CLOSE_WITHIN = 2.0


class _Client(ABC):
    """What both clients have in common: their settings, and how they end."""

    _desk_kind: ClassVar[type[Desk]] = Desk

    def __init__(
        self,
        on: object = None,
        *,
        namespace: str = "",
        label: str | None = None,
        request_timeout: float = DEFAULT_REQUEST_TIMEOUT,
        most_waiters: int = MOST_WAITERS,
    ) -> None:
        if type(most_waiters) is not int or most_waiters < 1:
            raise Misuse(f"most_waiters is an int of at least 1, not {quoted(most_waiters)}")
        self._label = check_label(label)
        self._request_timeout = check_request_timeout(request_timeout)
        self._most_waiters = most_waiters
        self._family: EngineFamily = open_family(on, namespace=check_namespace(namespace), label=self._label)
        self._desk_now: Desk | None = None
        self._opening = threading.RLock()  # a signal handler may come by here, too
        _open_clients.add(self)

    @property
    def facts(self) -> Facts:
        """The engine, its capabilities and its guarantee, as data."""
        return self._family.facts

    @property
    def about(self) -> str:
        """How others see this client where it holds a lease: ``label@host:pid``."""
        return self._desk.about

    @abstractmethod
    def _engine(self) -> Engine:
        """The engine of this client's world."""

    @property
    def _desk(self) -> Desk:
        desk = self._desk_now
        if desk is not None:
            return desk
        with self._opening:
            if self._desk_now is None:
                desk = self._desk_kind(
                    self._family,
                    self._engine(),
                    label=self._label,
                    request_timeout=self._request_timeout,
                    most_waiters=self._most_waiters,
                )
                desk.keeper.belongs_to = (self, desk)
                self._desk_now = desk
            return self._desk_now

    def _until(self) -> float:
        return self._desk.engine.world.now() + self._request_timeout

    def _note_force_release(self, name: str, because: str, token: int) -> None:
        watching.broken(self.facts, name, token, self.about, because)

    def _forked(self) -> None:
        self._opening = threading.RLock()
        if self._desk_now is not None:
            self._desk_now.forked()

    def __repr__(self) -> str:
        if not hasattr(self, "_family"):  # shown in the traceback of what was wrong with the arguments
            return f"<{type(self).__name__}, not opened>"
        return f"<{type(self).__name__} on {self.facts.engine} at {self.facts.address}>"

    def __reduce__(self) -> NoReturn:
        not_sent()


class Leasehold(_Client):
    """Locks for blocking code. Threads and forked children may share one client.

    `on` is a URL (``redis://…``), a path to an embedded file, or a client object of a supported library; by default
    ``LEASEHOLD_URL``, or else an embedded file in the user's state directory. Opening talks to nobody yet.
    """

    def _engine(self) -> Engine:
        return self._family.blocking()

    def lock(self, name: str, *, reentrant: bool = False, **terms: Unpack[LockTerms]) -> Lock:
        """A lock that one holder has at a time. Its settings are those of `LockTerms`.

        With `reentrant`, a thread that holds it may take it again, and holds it until it gave it back as often.
        """
        return self._lock(Terms(name, reentrant=reentrant, **terms))

    def shared(self, name: str, **terms: Unpack[LockTerms]) -> Lock:
        """The reader's side of `lock`: many may hold it, as long as nobody holds or awaits the name exclusively."""
        return self._lock(Terms(name, mode="shared", **terms))

    def permits(self, name: str, of: int, **terms: Unpack[LockTerms]) -> Lock:
        """One of `of` permits: at most so many hold the name at once."""
        return self._lock(Terms(name, mode="permit", limit=of, **terms))

    def _lock(self, terms: Terms) -> Lock:
        return Lock(self._desk, _for_blocking_code(terms).checked(self.facts))

    def several(self, names: Iterable[str], **terms: Unpack[SeveralTerms]) -> Several:
        """Several names at once, all or nothing, exclusively and without deadlock. The wait is for all together."""
        return Several(
            self._desk, [_for_blocking_code(one).checked(self.facts) for one in _each(names, Terms("", **terms))]
        )

    def status(self, name: str) -> NameStatus | None:
        """Who holds a name and who waits for it; None when the engine knows nothing of it."""
        return run_blocking(self._desk.engine.status(check_name(name), until=self._until()))

    def names(self) -> Iterator[str]:
        """The names that are held or waited for, page by page."""
        after: str | None = None
        while True:
            page = run_blocking(self._desk.engine.names(after=after, limit=PAGE, until=self._until()))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1]

    def force_release(self, name: str, *, because: str) -> int:
        """End whatever lease is on the name, as an operator; returns a token above all of theirs.

        The holder notices at its next renewal. Its late writes are refused by a fence from the moment that a higher
        token reaches the fence: announce the returned one there to close the gap at once.
        """
        reason = check_name(because, what="because")
        token = run_blocking(self._desk.engine.force_release(check_name(name), until=self._until()))
        self._note_force_release(name, reason, token)
        return token

    def close(self) -> None:
        """End the keeper and give back connections. Leases still held are not released: they run out."""
        desk = self._desk_now
        if desk is not None:
            desk.keeper.close(CLOSE_WITHIN)
            run_blocking(desk.engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLeasehold(_Client):
    """Locks for asyncio code; see `Leasehold`. One client belongs to one event loop."""

    _desk_kind: ClassVar[type[Desk]] = AsyncDesk

    def _engine(self) -> Engine:
        return self._family.asyncio()

    def lock(self, name: str, *, reentrant: bool = False, **terms: Unpack[AsyncLockTerms]) -> AsyncLock:
        """A lock that one holder has at a time; `on_lost="cancel"` cancels the body when the lease is lost.

        With `reentrant`, a task that holds it may take it again, and holds it until it gave it back as often.
        """
        return self._lock(Terms(name, reentrant=reentrant, **terms))

    def shared(self, name: str, **terms: Unpack[AsyncLockTerms]) -> AsyncLock:
        """The reader's side of `lock`: many may hold it, as long as nobody holds or awaits the name exclusively."""
        return self._lock(Terms(name, mode="shared", **terms))

    def permits(self, name: str, of: int, **terms: Unpack[AsyncLockTerms]) -> AsyncLock:
        """One of `of` permits: at most so many hold the name at once."""
        return self._lock(Terms(name, mode="permit", limit=of, **terms))

    def _lock(self, terms: Terms) -> AsyncLock:
        return AsyncLock(self._desk, terms.checked(self.facts))

    def several(self, names: Iterable[str], **terms: Unpack[AsyncSeveralTerms]) -> AsyncSeveral:
        """Several names at once, all or nothing, exclusively and without deadlock. The wait is for all together."""
        return AsyncSeveral(self._desk, [one.checked(self.facts) for one in _each(names, Terms("", **terms))])

    async def status(self, name: str) -> NameStatus | None:
        """Who holds a name and who waits for it; None when the engine knows nothing of it."""
        return await self._desk.engine.status(check_name(name), until=self._until())

    async def names(self) -> AsyncIterator[str]:
        """The names that are held or waited for, page by page."""
        after: str | None = None
        while True:
            page = await self._desk.engine.names(after=after, limit=PAGE, until=self._until())
            for name in page:
                yield name
            if len(page) < PAGE:
                return
            after = page[-1]

    async def force_release(self, name: str, *, because: str) -> int:
        """End whatever lease is on the name, as an operator; see `Leasehold.force_release`."""
        reason = check_name(because, what="because")
        token = await self._desk.engine.force_release(check_name(name), until=self._until())
        self._note_force_release(name, reason, token)
        return token

    async def close(self) -> None:
        """End the keeper and give back connections. Leases still held are not released: they run out."""
        import asyncio

        desk = self._desk_now
        if desk is not None:
            await asyncio.to_thread(desk.keeper.close, CLOSE_WITHIN)
            await desk.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _for_blocking_code(terms: Terms) -> Terms:
    if terms.on_lost == "cancel":
        raise Misuse("on_lost='cancel' is for async code; blocking code takes a callable, or asks lease.check()")
    return terms


def _each(names: Iterable[str], terms: Terms) -> list[Terms]:
    """The same terms for each of several names."""
    if isinstance(names, str):
        raise Misuse("several() takes a list of names, not one string")
    try:
        listed = [check_name(name) for name in names]
    except TypeError:
        raise Misuse(f"several() takes a list of names, not {type(names).__name__}") from None
    if not listed or len(set(listed)) != len(listed):
        raise Misuse("several() takes at least one name, and each name once")
    return [terms._replace(name=name) for name in listed]


_open_clients: weakref.WeakSet[_Client] = weakref.WeakSet()


class Population(NamedTuple):
    """What the clients of this process that share an engine do now."""

    held: int
    waiting: int


def population() -> dict[str, Population]:
    """How many leases this process holds and how many of its callers wait, for each kind of engine."""
    found: dict[str, Population] = {}
    for client in list(_open_clients):
        held, waiting = found.get(client.facts.engine, Population(0, 0))
        desk = client._desk_now
        if desk is not None:
            held, waiting = held + len(desk.keeper.leases), waiting + desk.waiting
        found[client.facts.engine] = Population(held, waiting)
    return found


def _after_fork_in_child() -> None:
    for client in list(_open_clients):
        client._forked()


def _at_exit() -> None:
    for client in list(_open_clients):
        if client._desk_now is not None:
            client._desk_now.keeper.close(CLOSE_WITHIN)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
