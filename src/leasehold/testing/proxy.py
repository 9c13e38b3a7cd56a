"""A TCP proxy on loopback that behaves as badly as networks do.

Put it between a client and a server, and change what it does while both are at work:

>>> with Proxy("127.0.0.1", 6379) as proxy:
...     proxy.host
'127.0.0.1'

What is lost is lost for good: bytes that were swallowed are never sent later, so a connection that lost some is broken
from then on, as it is when a firewall forgets it. Order is never changed. Every method may be called from any thread
and has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")
Way = Literal["requests", "replies"]
WAYS: tuple[Way, Way] = ("requests", "replies")
CHUNK = 65536
SETTLING = 5
"""Rounds of the event loop after which a connection that was just accepted is known here."""


@dataclass
class Traffic:
    """What has passed so far; swallowed chunks are counted too."""

    connections: int = 0
    requests: int = 0
    """Chunks that came from clients: one for each request that is written at once."""
    replies: int = 0
    """Chunks that came from the server."""


@dataclass(eq=False)
class _Link:
    """One client's connection and the server's end of it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    broken: set[Way] = field(default_factory=set)
    """Ways in which bytes were lost: nothing may follow there."""
    reset_at_reply: bool = False


class Proxy:
    """Forwards connections to one server, until it is told not to."""

    def __init__(self, host: str, port: int) -> None:
        """Forward to this address once started."""
        self._target = (host, port)
        self._links: set[_Link] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._lost: set[Way] = set()
        self._delays: dict[Way, float] = {}
        self._strike: tuple[Way, int] | None = None
        self.struck = False
        """Whether the loss that `lose` planned has happened."""
        self.traffic = Traffic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="leasehold-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self.host, self.port = "127.0.0.1", 0

    # Starting and ending

    def start(self) -> None:
        """Listen on a free port of loopback."""
        self._thread.start()
        self._run(self._listen())

    def stop(self) -> None:
        """Close everything."""
        if not self._loop.is_closed():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What it does from now on

    def heal(self) -> None:
        """Behave again. Connections that lost bytes are reset, since what follows could not be understood."""

        def change() -> None:
            self._lost.clear()
            self._delays, self._strike = {}, None
            for link in [link for link in self._links if link.broken or link.server is None]:
                self._reset(link)

        self._do(change)
        self._run(self._listen())

    def black_hole(self) -> None:
        """Let every byte vanish, both ways, with neither FIN nor RST. New connections open, and stay silent."""
        self._do(lambda: self._lost.update(WAYS))

    def cut(self, way: Way) -> None:
        """Let every byte in one direction vanish."""
        self._do(lambda: self._lost.add(way))

    def delay(self, seconds: float, way: Way | None = None) -> None:
        """Hold back every chunk for so long: those of one way, or of each."""
        self._do(lambda: self._delays.update(dict.fromkeys(WAYS if way is None else [way], seconds)))

    def reset(self) -> None:
        """Send RST on every open connection. New ones pass."""
        self._do(self._reset_all)

    def refuse(self) -> None:
        """Reset every open connection, and accept no new one until healed."""
        self._do(self._reset_all)
        self._run(self._stop_listening())

    def lose(self, what: Literal["request", "reply"], *, after: int = 0) -> None:
        """Lose one request, or the reply to it, and reset its connection then; `after` so many requests passed."""

        def change() -> None:
            self._strike, self.struck = ("requests" if what == "request" else "replies", after), False

        self._do(change)

    def turn_to(self, host: str, port: int) -> None:
        """Forward to another server from now on, and reset every open connection."""

        def change() -> None:
            self._target = (host, port)
            self._reset_all()

        self._do(change)

    # Forwarding

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._welcome, self.host, self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        if self._listener is None:  # it was accepted in the moment before
            self._reset(link)
            return
        self.traffic.connections += 1
        self._links.add(link)
        self._spawn(self._serve(link, reader))

    async def _serve(self, link: _Link, reader: asyncio.StreamReader) -> None:
        if not set(WAYS) <= self._lost:
            try:
                replies, link.server = await asyncio.open_connection(*self._target)
            except OSError:
                self._reset(link)
                return
            if link not in self._links:  # it was reset meanwhile
                self._reset(link)
                return
            self._spawn(self._pump(link, "replies", replies))
        self._spawn(self._pump(link, "requests", reader))

    def _spawn(self, pump: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(pump)
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _pump(self, link: _Link, way: Way, reader: asyncio.StreamReader) -> None:
        try:
            while chunk := await reader.read(CHUNK):
                if delay := self._delays.get(way):
                    await asyncio.sleep(delay)
                self._forward(link, way, chunk)
            self._hang_up(link, way)
        except OSError:
            self._reset(link)

    def _forward(self, link: _Link, way: Way, chunk: bytes) -> None:
        setattr(self.traffic, way, getattr(self.traffic, way) + 1)
        if self._strikes(link, way):
            return
        if way in self._lost:
            link.broken.add(way)
        to = link.server if way == "requests" else link.client
        if way not in link.broken and to is not None:
            to.write(chunk)

    def _strikes(self, link: _Link, way: Way) -> bool:
        """Carry out the one loss that was planned, when its request or the reply to it comes by."""
        if link.reset_at_reply and way == "replies":
            self.struck = True
            self._reset(link)
            return True
        if self._strike is None or way != "requests":
            return False
        what, after = self._strike
        if after > 0:
            self._strike = (what, after - 1)
            return False
        self._strike = None
        if what == "replies":
            link.reset_at_reply = True
            return False
        self.struck = True
        self._reset(link)
        return True

    def _hang_up(self, link: _Link, way: Way) -> None:
        """One end closed: so does the other, unless that word is lost as well."""
        if way in self._lost or way in link.broken:
            link.broken.add(way)
            return
        self._links.discard(link)
        for writer in (link.client, link.server):
            if writer is not None:
                writer.close()

    def _reset(self, link: _Link) -> None:
        self._links.discard(link)
        for writer in (link.client, link.server):
            if writer is not None:
                end: socket.socket | None = writer.get_extra_info("socket")
                if end is not None:
                    with contextlib.suppress(OSError):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

    def _reset_all(self) -> None:
        for link in list(self._links):
            self._reset(link)

    async def _close(self) -> None:
        await self._stop_listening()
        for _ in range(SETTLING):
            await asyncio.sleep(0)
        self._reset_all()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await asyncio.sleep(0)  # transports close their sockets in a callback

    # From other threads

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _do(self, change: Callable[[], object]) -> None:
        async def on_loop() -> None:
            change()

        self._run(on_loop())
