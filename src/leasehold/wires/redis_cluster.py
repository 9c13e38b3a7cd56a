"""A Redis Cluster for threads: a wire for each node, whose wake-ups come by channels of the slots' own.

A message to such a channel goes to the nodes of one shard only; and when its slot moves to another node, the server
ends the subscription and says so, which is news for whoever waits: it is time to ask again, elsewhere.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Final, TypeVar

from leasehold.core.worlds import World
from leasehold.wires.redis_blocking import BlockingWire, Line
from leasehold.wires.redis_cluster_target import Cluster
from leasehold.wires.redis_dial import connect_blocking
from leasehold.wires.redis_replies import ErrorReply, Push, bulk, command, unreachable
from leasehold.wires.redis_setup import Link
from leasehold.wires.urls import Endpoint

ASKING: Final = command("ASKING")
_LEAVE_ALL: Final = command("SUNSUBSCRIBE")
"""Without a channel: one whose slot has moved would be answered by a redirection, not by a push."""
_TAG: Final = re.compile(rb"\r\n(lh:\{[^}\r\n]*\}:)")
T = TypeVar("T")


def channel_for(request: bytes, nonce: str) -> bytes:
    """A channel in the slot of a request's keys. They come first in it, and no script has such a line."""
    found = _TAG.search(request)
    assert found is not None, "every request that queues has keys"
    return found[1] + b"wake:" + nonce.encode()


def reply_when_subscribed(confirmation: Any, reply: Any) -> tuple[Any, bool]:
    """What to answer to a request that was sent behind its subscription, and whether wake-ups can be expected."""
    if not isinstance(confirmation, ErrorReply):
        return reply, type(reply) is list
    if isinstance(reply, ErrorReply) or confirmation.code in {"MOVED", "ASK", "CLUSTERDOWN"}:
        return reply, False  # the slot has come here in between: ask again at once
    return confirmation, False


class ClusterLine(Line):
    """One connection to a node. It waits for one thing at a time."""

    def __init__(self, sock: Any, world: World, address: str) -> None:
        super().__init__(sock, world, address)
        self.nonce = world.nonce()
        self.channel = b""

    def listen(self, holder: str, until: float) -> bytes | None:
        """As for one server; that the slot has moved is news, too."""
        self._gets = self._get_unless_moved
        try:
            return super().listen(holder, until)
        finally:
            self._gets = self._reader.gets

    def _get_unless_moved(self, *flags: bool) -> Any:
        reply = self._reader.gets(*flags)
        if type(reply) is Push and reply[:1] == [b"sunsubscribe"]:
            raise ConnectionResetError  # for whoever listens it is the same: nothing more will come here
        return reply


class ClusterWire(BlockingWire):
    """Lines to one node, shared by threads."""

    def ask_to_queue(self, holder: str, request: bytes, until: float, asking: bytes = b"") -> Any:
        """Subscribe to the slot's channel, and send a request that lacks its last argument, that channel."""
        line = (self._kept and self._usable_kept_line(holder)) or self._line(until)
        assert isinstance(line, ClusterLine)
        channel = channel_for(request, line.nonce)
        leave = _LEAVE_ALL if line.channel not in (b"", channel) else b""
        line.channel = channel
        # Each time: the server may have ended the subscription while nobody listened.
        subscribe = leave + asking + command("SSUBSCRIBE", channel)
        replies = line.ask_all(subscribe + asking + request + bulk(channel), 4 if asking else 2, until)
        reply, is_heard = reply_when_subscribed(replies[-3 if asking else 0], replies[-1])
        if is_heard:
            self._kept[threading.get_ident()] = (holder, line)
        else:
            self._put_back(line)
        return reply

    def forget(self, holder: str) -> None:
        """Expect no wake-up for this holder any more."""
        line = self._kept_line(holder)
        if line is not None:
            self._put_back(line)

    async def _dial(self, endpoint: Endpoint, until: float) -> ClusterLine:
        return ClusterLine(connect_blocking(endpoint, self._target.tls, self.world, until), self.world, self._address)

    async def dial(self, endpoint: Endpoint, until: float) -> Link:
        """A fresh connection to any node."""
        return await self._dial(endpoint, until)


class AskingWire:
    """A path to the node that a slot is moving to: each request says that it knows. One request at a time."""

    def __init__(self, wire: Any) -> None:
        self.suspends, self.world, self.read_grant = wire.suspends, wire.world, wire.read_grant
        self._wire = wire
        self.wait, self.close, self.forked = wire.wait, wire.close, wire.forked

    def ask(self, request: bytes, until: float) -> Any:
        """Send one request."""
        replies = self._wire.ask_all(ASKING + request, 2, until)
        return _last_of(replies) if self.suspends else replies[-1]

    def ask_all(self, request: bytes, count: int, until: float) -> Any:
        """Send a pipeline, of one request."""
        assert count == 1, "the server forgets after one request that it was told"
        replies = self._wire.ask_all(ASKING + request, 2, until)
        return _without_first(replies) if self.suspends else replies[1:]

    def ask_to_queue(self, holder: str, request: bytes, until: float) -> Any:
        """Send a request that may queue."""
        return self._wire.ask_to_queue(holder, request, until, ASKING)

    def ask_to_leave(self, holder: str, request: bytes, until: float) -> Any:
        """Send the last request of a holder."""
        self._wire.forget(holder)
        return self.ask(request, until)


async def _last_of(replies: Any) -> Any:
    return (await replies)[-1]


async def _without_first(replies: Any) -> Any:
    return (await replies)[1:]


class BlockingNodes:
    """How threads reach the nodes of a cluster."""

    def __init__(self, cluster: Cluster, label: str) -> None:
        self._cluster, self._label = cluster, label
        self._lock = threading.Lock()

    def wire_to(self, endpoint: Endpoint) -> ClusterWire:
        """A path to one node."""
        return ClusterWire(self._cluster.at(endpoint), self._label)

    @contextlib.asynccontextmanager
    async def alone(self, seconds: float) -> AsyncIterator[None]:
        """For what one does for all."""
        lock = self._lock
        if not lock.acquire(timeout=max(seconds, 0.0)):
            raise unreachable(self._cluster.address, TimeoutError())
        try:
            yield
        finally:
            lock.release()

    async def together(self, tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """What each of them returns; here, one after the other."""
        return [await task for task in tasks]

    def forked(self) -> None:
        """Whoever had the lock is not in this process."""
        self._lock = threading.Lock()
