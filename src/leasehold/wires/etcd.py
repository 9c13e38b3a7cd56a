"""Our path to etcd: gRPC with messages of our own, for blocking code and for asyncio.

Both worlds share one channel of gRPC's blocking kind. In asyncio its calls are futures that wake the loop. gRPC's own
asyncio classes are not used: they keep a thread inside gRPC for good, and a child that is forked meanwhile crashes;
and two event loops (the caller's and the keeper's) get in each other's way there.

Nothing is sent twice, except what etcd refused for want of a valid log-in, which was not carried out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeAlias

import grpc

from leasehold.core.worlds import World
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_errors import LoggedOut
from leasehold.wires.etcd_lines import GATE, Line, Lines, Metadata
from leasehold.wires.room import AsyncRoom
from leasehold.wires.sockets import Bell, BlockingBell
from leasehold.wires.task_bell import TaskBell
from leasehold.worlds import AsyncWorld, BlockingWorld

Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
BEYOND_ITS_DEADLINE = 5.0
"""gRPC itself ends a call at its deadline; this long after that, a task no longer relies on it."""
LOOK_AT_ONCE = 16
"""So many tasks may look at what is before them: a look is short, and the others go on listening."""


class Wire(ABC):
    """One world's way to send requests to the cluster. Threads, or tasks of any event loop, may share it."""

    world: World
    room: AsyncRoom | None = None
    """For tasks that look at what is before them, of which there may be thousands; threads are few."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def call(self, method: str, request: bytes, until: float) -> Coroutine[Any, Any, bytes]:
        """To be awaited: sends one request; returns its answer or raises an `EngineError`."""
        line = self._lines.current()
        send = self._send if self._lines.address.user is None else self._send_as_user
        return send(line, method, request, until)

    async def _send_as_user(self, line: Line, method: str, request: bytes, until: float) -> bytes:
        if self._lines.auth_token is None:
            await self._log_in(line, until)
        try:
            return await self._send(line, method, request, until)
        except LoggedOut:  # log-ins run out
            await self._log_in(line, until)
        return await self._send(line, method, request, until)

    async def _log_in(self, line: Line, until: float) -> None:
        user, password = self._lines.address.user or "", self._lines.address.password or ""
        self._lines.auth_token = None
        try:
            answer = await self._send(line, messages.AUTHENTICATE, messages.authenticate(user, password), until)
            self._lines.auth_token = messages.auth_token_of(answer)
        except OutcomeUnknown as error:  # the request that needs the log-in was not sent
            raise EngineUnavailable(str(error)) from None
        except (messages.Malformed, UnicodeDecodeError):
            raise EngineError(f"etcd at {line.endpoint} answered a log-in with something unreadable") from None

    async def _send(self, line: Line, method: str, request: bytes, until: float) -> bytes:
        left = until - self.world.now()
        if left <= 0:
            raise EngineUnavailable(f"there was no time left to ask etcd at {line.endpoint}")
        try:
            return await self._exchange(line.calls[method], request, left, self._lines.metadata)
        except grpc.RpcError as error:
            raise self._lines.failure(error, line) from None
        except ValueError:  # gRPC's word for a channel that was closed meanwhile; it has sent nothing
            raise EngineUnavailable(f"the connection to etcd at {line.endpoint} was closed by this client") from None

    @abstractmethod
    async def _exchange(self, call: Call, request: bytes, seconds: float, metadata: Metadata) -> bytes:
        """Have gRPC carry out one call within so long."""

    @abstractmethod
    def bell(self) -> Bell:
        """A bell that one caller of this world can wait for, and any thread can ring."""


class BlockingWire(Wire):
    """For threads: a call blocks, and never suspends."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.world = BlockingWorld()

    async def _exchange(self, call: Call, request: bytes, seconds: float, metadata: Metadata) -> bytes:
        with GATE:
            return call(request, timeout=seconds, metadata=metadata)

    def bell(self) -> Bell:
        """A bell for a thread."""
        return BlockingBell(self.world)


class AsyncWire(Wire):
    """For tasks of whichever event loop is running."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.world = AsyncWorld()
        self.room = AsyncRoom(self.world, "etcd", LOOK_AT_ONCE)

    async def _exchange(self, call: Call, request: bytes, seconds: float, metadata: Metadata) -> bytes:
        bell = TaskBell(self.world)
        with GATE:
            answer = call.future(request, timeout=seconds, metadata=metadata)
        answer.add_done_callback(lambda _answer: bell.ring())
        try:
            await bell.wait(self.world.now() + seconds + BEYOND_ITS_DEADLINE)
            return answer.result(timeout=0)
        except grpc.FutureTimeoutError:
            raise OutcomeUnknown("gRPC did not keep the deadline of a request to etcd") from None
        finally:
            bell.rest()
            answer.cancel()

    def bell(self) -> Bell:
        """A bell for a task."""
        return TaskBell(self.world)
