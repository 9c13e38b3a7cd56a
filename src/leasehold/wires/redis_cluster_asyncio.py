"""A Redis Cluster for asyncio: one connection to each node, for everybody."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from leasehold.wires.redis_asyncio import AsyncLine, AsyncWire
from leasehold.wires.redis_cluster import channel_for, reply_when_subscribed
from leasehold.wires.redis_cluster_target import Cluster
from leasehold.wires.redis_replies import ErrorReply, bulk, command, unreachable
from leasehold.wires.redis_setup import Link
from leasehold.wires.redis_slots import slot_of
from leasehold.wires.redis_target import Target
from leasehold.wires.urls import Endpoint

T = TypeVar("T")


class AsyncClusterWire(AsyncWire):
    """One line to one node, shared by the tasks of an event loop.

    It has one channel in each slot in which somebody has waited: no more than a node has slots.
    """

    def __init__(self, target: Target, label: str) -> None:
        super().__init__(target, label)
        self._nonce = ""
        self._channels: dict[int, bytes] = {}

    async def ask_to_queue(self, holder: str, request: bytes, until: float, asking: bytes = b"") -> Any:
        """Send a request that lacks its last argument, a channel of the slot, and subscribe to it before."""
        line = await self._connected(until)
        self._wakes[holder] = None
        own = channel_for(request, self._nonce)
        slot = slot_of(own.decode())
        channel = self._channels.setdefault(slot, own)
        subscribe = command("SSUBSCRIBE", channel) if asking or channel is own else b""
        is_heard = False
        try:
            count = 1 + bool(subscribe) + 2 * bool(asking)
            sent = asking + subscribe + asking + request + bulk(channel)
            replies = await line.send_all(sent, count, until)
            confirmation = replies[-3 if asking else 0] if subscribe else None
            if isinstance(confirmation, ErrorReply):
                self._channels.pop(slot, None)
            reply, is_heard = reply_when_subscribed(confirmation, replies[-1])
        finally:
            if not is_heard:
                self._wakes.pop(holder, None)
        return reply

    def forget(self, holder: str) -> None:
        """Expect no wake-up for this holder any more."""
        self._wakes.pop(holder, None)

    async def _enter(self, line: AsyncLine, until: float) -> None:
        await super()._enter(line, until)
        self._nonce, self._channels = self.world.nonce(), {}

    def _wake(self, message: Any) -> None:
        if isinstance(message, bytes):
            super()._wake(message)
        else:
            self._ask_again()  # the server has ended a subscription: its slot has moved

    def _lost(self) -> None:
        super()._lost()
        self._ask_again()

    def _ask_again(self) -> None:
        """Wake everybody. Nothing is expected here any more until they have asked again, here or elsewhere."""
        woken, self._wakes, self._channels = self._wakes, {}, {}
        for one in woken.values():
            if isinstance(one, asyncio.Future) and not one.done():
                one.set_result(b"")

    async def dial(self, endpoint: Endpoint, until: float) -> Link:
        """A fresh connection to any node."""
        return await self._dial(endpoint, until)


class AsyncNodes:
    """How the tasks of an event loop reach the nodes of a cluster."""

    def __init__(self, cluster: Cluster, label: str) -> None:
        self._cluster, self._label = cluster, label
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wire_to(self, endpoint: Endpoint) -> AsyncClusterWire:
        """A path to one node."""
        return AsyncClusterWire(self._cluster.at(endpoint), self._label)

    @contextlib.asynccontextmanager
    async def alone(self, seconds: float) -> AsyncIterator[None]:
        """For what one does for all."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._lock, self._loop = asyncio.Lock(), loop
        lock = self._lock
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await lock.acquire()
        except TimeoutError as error:
            raise unreachable(self._cluster.address, error) from None
        try:
            yield
        finally:
            lock.release()

    async def together(self, tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """What each of them returns."""
        return list(await asyncio.gather(*tasks))

    def forked(self) -> None:
        """The child has no loop yet."""
        self._loop = None
