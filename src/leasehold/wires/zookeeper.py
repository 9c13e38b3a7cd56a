"""Our path to ZooKeeper: requests on a session's connection, in blocking code and in asyncio.

Nothing is sent twice. A connection that broke is replaced when it is needed next, with the same session if the ensemble
still has it; what was sent before and not answered has an unknown outcome.
"""

from __future__ import annotations

import math
import random
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from leasehold.core.worlds import World
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.sockets import Bell, BlockingSockets, Sockets
from leasehold.wires.urls import Endpoint
from leasehold.wires.zookeeper_address import Address
from leasehold.wires.zookeeper_dial import Dialled, dial
from leasehold.wires.zookeeper_errors import (
    SESSION_EXPIRED,
    SESSION_MOVED,
    NotSent,
    SessionOver,
    refusal,
    unanswered,
    unreachable,
)
from leasehold.wires.zookeeper_line import THREADS, Answer, Line, Listener, PipeBell, Station, Watch
from leasehold.wires.zookeeper_messages import Reply, Request
from leasehold.wires.zookeeper_session import Session

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from leasehold.wires.zookeeper_rests import Rests

B = TypeVar("B", bound=Bell | PipeBell)

SILENCE: Final = 0.2
"""A server that owed an answer and was silent for so long is left."""
LONGEST_REST: Final = 1.0
"""One that waits to be rung looks around after so long: an interruption may have swallowed the ring."""
LOOKS: Final = 100
"""More than so many need not look around in this time: if nobody reads any more, one of them finds it out for all."""
DIALLING_CHECK: Final = 0.005
DRAINED_WITHIN: Final = 0.5
"""How long a connection that is to be replaced may take to answer what it was asked."""


class Endpoints:
    """The servers of an ensemble, beginning with the one that works. Threads share it."""

    def __init__(self, address: Address) -> None:
        """Begin anywhere, so that clients spread over the servers."""
        self.address = address
        start = random.randrange(len(address.endpoints))
        self._order = (*address.endpoints[start:], *address.endpoints[:start])
        self._lock = threading.Lock()

    @property
    def order(self) -> Sequence[Endpoint]:
        """In which order to try them."""
        return self._order

    def works(self, endpoint: Endpoint) -> None:
        """Begin with this one the next time."""
        with self._lock:
            start = self._order.index(endpoint)
            self._order = (*self._order[start:], *self._order[:start])

    def failed(self, endpoint: str) -> None:
        """Begin with another one the next time."""
        with self._lock:
            if str(self._order[0]) == endpoint:
                self._order = (*self._order[1:], self._order[0])

    def forked(self) -> None:
        """In a forked child: nobody holds the lock."""
        self._lock = threading.Lock()


class Wire(ABC, Generic[B]):
    """One world's way to use sessions. Threads, or the tasks of an event loop, may share it."""

    def __init__(self, sockets: Sockets, endpoints: Endpoints) -> None:
        self._sockets, self._endpoints = sockets, endpoints
        self._address = endpoints.address
        self.world: World = sockets.world

    @abstractmethod
    def _station(self) -> Station:
        """Where the caller waits."""

    @abstractmethod
    def _caller(self) -> object:
        """Who the caller is: a thread, or a task."""

    @abstractmethod
    def _reading_bell(self, line: Line) -> B:
        """A bell that wakes one who reads."""

    @abstractmethod
    async def _ready(self, line: Line, bell: B, until: float) -> bool:
        """Return True when there may be something to read, or the bell was rung; False at `until`."""

    # Asking

    async def ask(
        self, session: Session, requests: Sequence[Request], until: float, watch: Watch | None = None
    ) -> list[Reply]:
        """Send requests together, and return the reply to each; they are carried out in this order."""
        line, answers, sent_at = await self._send(session, requests, until, watch)
        if not await self.hear(line, answers[-1], until):
            raise self._not_heard(line, sent_at, requests)
        replies, by_leader = [], False
        for request, answer in zip(requests, answers, strict=True):
            replies.append(reply := answer.reply)
            by_leader |= request.by_leader
            if reply.error == SESSION_EXPIRED:
                session.end()
                raise refusal(reply.error, line.endpoint, "asking")
            if reply.error == SESSION_MOVED:
                line.fail("another connection has replaced it")
                raise _lost(line, "another connection has replaced this one", requests)
        session.answered(line, sent_at, by_leader=by_leader)
        return replies

    async def _send(
        self, session: Session, requests: Sequence[Request], until: float, watch: Watch | None
    ) -> tuple[Line, list[Answer], float]:
        while True:
            sent_at = self.world.now()
            if (line := session.usable_line(sent_at, self._caller())) is None:
                line = await self.line_of(session, until)
                sent_at = self.world.now()
            try:
                return line, line.send(requests, sent_at, watch), sent_at
            except NotSent:  # it has just broken, or is being replaced
                if sent_at >= until:
                    raise

    def _not_heard(self, line: Line, sent_at: float, requests: Sequence[Request]) -> Exception:
        if line.heard_at < sent_at <= self.world.now() - SILENCE:
            line.fail("it was silent for too long")
        if line.failure is not None:
            self._endpoints.failed(line.endpoint)
        return _lost(line, line.failure or "it took too long", requests)

    async def hear(self, line: Line, listener: Listener, until: float) -> bool:
        """Whether what the listener waits for has come by then; if not, the line may have failed."""
        while not listener.done and line.failure is None and self.world.now() < until:
            try:
                await self.listen(line, listener, until, until)
            finally:
                self.listened(line, listener)
        return listener.done

    def listen(self, line: Line, listener: Listener, reads_until: float, rests_until: float) -> Awaitable[object]:
        """To be awaited: returns when what the listener waits for has come, or for nothing, when one looks around.

        While somebody else reads, it rests. It is no coroutine of its own: each of thousands who rest would keep one.
        `listened` has to follow, whatever happens.
        """
        station, bell, now = self._station(), self._reading_bell(line), self.world.now()
        if line.begin_reading(station, self._caller(), now, bell.ring):
            return self._read(line, listener, bell, min(reads_until, rests_until, now + LONGEST_REST))
        rest = LONGEST_REST * max(line.resting_in(station) / LOOKS, 1.0)
        return self._rest(line, listener, station, min(rests_until, now + rest))

    def listened(self, line: Line, listener: Listener) -> None:
        """Let somebody else read, if it was the caller who did; or rest no more."""
        station = self._station()
        try:
            line.end_reading(station, self._caller())
        finally:
            line.end_resting(station, listener)

    async def _read(self, line: Line, listener: Listener, bell: B, until: float) -> None:
        """Read for everybody, until the listener has what it waits for."""
        while not listener.done and line.failure is None:
            if not await self._ready(line, bell, until):
                return
            line.receive(self.world.now(), self._station())

    def _rest(self, line: Line, listener: Listener, station: Station, until: float) -> Awaitable[object]:
        """To be awaited: returns when the listener is rung, or at `until`."""
        bell = listener.bell = self._sockets.bell()
        if not line.begin_resting(station, listener):
            bell.ring()
        return bell.wait(until)

    # Connecting

    async def line_of(self, session: Session, until: float) -> Line:
        """The connection of a session; it is opened if there is none."""
        while (line := session.usable_line(self.world.now(), self._caller())) is None:
            await self._dial(session, until)
        return line

    async def renew_line(self, session: Session, until: float) -> None:
        """Replace the connection, so that the leader starts the clock of the session anew."""
        line = session.usable_line(self.world.now(), self._caller())
        await self._dial(session, until, replace=line)

    async def _dial(self, session: Session, until: float, replace: Line | None = None) -> None:
        """Connect, or wait while somebody else does."""
        now, who = self.world.now(), self._caller()
        if session.dead:
            raise SessionOver(f"ZooKeeper at {self._address} has ended the session")
        if now >= until:
            raise unreachable(str(self._address), "there was no time left to connect")
        if not session.begin_dialling(now, who):
            await self.world.sleep(DIALLING_CHECK)
            return
        try:
            if replace is not None:
                await self._drained(replace, until)
            seen, timeout, number, password = session.hello()
            hello = messages.connect(seen=seen, timeout=timeout, session=number, password=password)
            dialled = await self._connect(hello, until)
            if not session.connected(dialled):
                dialled.line.fail("its session is over")
                session.hang_up("its session is over")
                raise SessionOver(f"ZooKeeper at {dialled.line.endpoint} has ended the session")
            self._endpoints.works(dialled.endpoint)
        finally:
            session.end_dialling(who)

    async def _connect(self, hello: bytes, until: float) -> Dialled:
        """Establish the session that `hello` asks for, on a server of the ensemble."""
        return await dial(self._address, self._endpoints.order, self._sockets, hello, until)

    async def _drained(self, line: Line, until: float) -> None:
        """Wait until a connection has answered everything."""
        give_up_at = min(until, self.world.now() + DRAINED_WITHIN)
        while not line.is_idle and line.failure is None and self.world.now() < give_up_at:
            await self.world.sleep(DIALLING_CHECK)
        line.fail("another connection replaces it")

    async def end(self, session: Session, until: float) -> None:
        """End a session that is connected, and with it all that hangs on it."""
        if session.usable_line(self.world.now(), self._caller()) is not None:
            try:
                await self.ask(session, [messages.CLOSE], until)
            finally:
                session.end()


def _lost(line: Line, why: str, requests: Sequence[Request]) -> Exception:
    return unanswered(line.endpoint, why, changes=any(request.changes for request in requests))


class BlockingWire(Wire[PipeBell]):
    """For threads: nothing ever suspends."""

    def __init__(self, endpoints: Endpoints) -> None:
        super().__init__(BlockingSockets(), endpoints)

    def _station(self) -> Station:
        return THREADS

    def _caller(self) -> object:
        return threading.get_ident()

    def _reading_bell(self, line: Line) -> PipeBell:
        return line.bell_for_threads()

    async def _ready(self, line: Line, bell: PipeBell, until: float) -> bool:
        if line.is_idle:  # it waits for news, not for an answer
            line.lookout.doze()
        elif line.lookout.look(line.asked_at):
            return True
        poll = select.poll()
        poll.register(line.socket, select.POLLIN | (select.POLLOUT if line.has_more_to_send else 0))
        poll.register(bell.hearing, select.POLLIN)
        ready = poll.poll(math.ceil(max(until - self.world.now(), 0.0) * 1000))
        for one, _ in ready:
            if one == bell.hearing:
                bell.heard()
        return bool(ready)


class AsyncWire(Wire[Bell]):
    """For the tasks of whichever event loop runs."""

    def __init__(self, endpoints: Endpoints) -> None:
        """Import asyncio only now: a blocking program never pays for it."""
        import asyncio

        from leasehold.wires.sockets_asyncio import AsyncSockets
        from leasehold.wires.zookeeper_rests import Rests

        super().__init__(AsyncSockets(), endpoints)
        self._running_loop, self._current_task = asyncio.get_running_loop, asyncio.current_task
        self._new_rests = Rests
        self._rests: Rests | None = None

    def _station(self) -> AbstractEventLoop:
        return self._running_loop()

    def _caller(self) -> object:
        return self._current_task()

    def _reading_bell(self, line: Line) -> Bell:  # noqa: ARG002 -- tasks need no pipe
        return self._sockets.bell()

    def _rest(self, line: Line, listener: Listener, station: Station, until: float) -> Awaitable[object]:
        rest = listener.bell = self._rests_here().begin(until)
        if not line.begin_resting(station, listener):
            rest.ring()
        return rest

    def _rests_here(self) -> Rests:
        loop, rests = self._running_loop(), self._rests
        if rests is None or rests.loop is not loop:
            rests = self._rests = self._new_rests(loop, self.world)
        return rests

    async def _ready(self, line: Line, bell: Bell, until: float) -> bool:
        self._rests_here().look()
        loop, socket = self._running_loop(), line.socket
        loop.add_reader(socket, bell.ring)
        if more := line.has_more_to_send:
            loop.add_writer(socket, bell.ring)
        try:
            return await bell.wait(until)
        finally:
            loop.remove_reader(socket)
            if more:
                loop.remove_writer(socket)


AnyWire: TypeAlias = BlockingWire | AsyncWire
