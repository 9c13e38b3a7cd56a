"""Connections: how many, how slow, and what goes over them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from leasehold.errors import Misuse
from leasehold.serve.api import Api
from leasehold.serve.door import Door
from leasehold.serve.http import MOST_HEADER_BYTES, Refusal, Request, Response, as_error, head_of, read_request
from leasehold.serve.watch import Viewer, Watch

if TYPE_CHECKING:
    from leasehold.client import Leasehold

MOST_CONNECTIONS: Final = 64
MOST_VIEWERS: Final = 16
"""Pages that are open at a time: each gets the news of every round."""
WRITE_WITHIN: Final = 10.0
"""Seconds that a client may take to read what it was sent."""
MOST_LINGERING: Final = 1 << 20
LINGER_WITHIN: Final = 1.0
SAY_HELLO_EVERY: Final = 15.0
"""An open page hears something at least so often, so that both ends notice when the other is gone."""
_log = logging.getLogger("leasehold")


@dataclass(frozen=True)
class Settings:
    """How to serve. The defaults are for one person at the same machine."""

    token: str
    address: str = "127.0.0.1"
    port: int = 0
    hosts: tuple[str, ...] = ()
    """Names by which others reach this server; the loopback's are known."""
    can_break: bool = False
    every: float = 2.0
    namespace: str = ""
    elections: tuple[str, ...] = ()


class Server:
    """A running server; see `serving`."""

    def __init__(self, api: Api, port: int) -> None:
        self.api, self.port = api, port
        self._connections: set[asyncio.Task[None]] = set()
        self._ending = False

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > MOST_CONNECTIONS:
                text = f"{MOST_CONNECTIONS} connections are open; try again in a moment"
                refusal = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "busy", text, close=True)
                await _send(writer, as_error(refusal))
            else:
                while await self._one(reader, writer):
                    pass
            await _linger(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            return  # it has gone, which not each call says by a ConnectionError, or does not read
        except asyncio.CancelledError:
            if not self._ending:
                raise
        finally:
            self._connections.discard(task)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    async def end(self) -> None:
        """End all connections."""
        self._ending = True
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may be used again."""
        client = str((writer.get_extra_info("peername") or ["?"])[0])
        request: Request | None = None
        try:
            request = await read_request(reader, client)
            if request is None:
                return False
            answer = await self.api.answer(request)
        except Refusal as refusal:
            answer = as_error(refusal)
        except Exception:  # noqa: BLE001 -- one request must not end the others
            # What it was is told where the server runs, not to whoever sent the request.
            _log.exception("a request could not be answered")
            text = "the server made a mistake; its log says more"
            answer = as_error(Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "mistake", text, close=True))
        if isinstance(answer, Viewer):
            return await self._stream(writer, answer, head_only=request is not None and request.method == "HEAD")
        await _send(writer, answer, head_only=request is not None and request.method == "HEAD")
        return request is not None and request.keep_alive and not answer.close

    async def _stream(self, writer: asyncio.StreamWriter, viewer: Viewer, *, head_only: bool) -> bool:
        """News of each round, until the client goes."""
        watch = self.api.watch
        if len(watch.viewers) >= MOST_VIEWERS:
            text = f"{MOST_VIEWERS} pages are open already; close one"
            await _send(writer, as_error(Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "busy", text, close=True)))
            return False
        writer.write(head_of(Response(kind="text/event-stream"), length=None))
        if head_only:
            await _drained(writer)
            return False
        watch.viewers.append(viewer)
        watch.hurry()
        seen = watch.rounds
        try:
            while True:
                data = json.dumps(self.api.view_data(viewer), separators=(",", ":"))
                writer.write(f"event: view\ndata: {data}\n\n".encode("ascii"))
                await _drained(writer)
                try:
                    async with asyncio.timeout(SAY_HELLO_EVERY):
                        seen = await watch.next_round(seen)
                except TimeoutError:
                    continue  # the data's own time tells that nothing has changed
        finally:
            watch.viewers.remove(viewer)


async def _send(writer: asyncio.StreamWriter, answer: Response, *, head_only: bool = False) -> None:
    bare = answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
    body = b"" if head_only or bare else answer.body
    writer.write(head_of(answer, length=0 if bare else len(answer.body)) + body)
    await _drained(writer)


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what is still on its way: a connection that is closed before that takes the answer with it."""
    if writer.can_write_eof():
        writer.write_eof()
    unread = MOST_LINGERING
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_WITHIN):
            while unread > 0 and (some := await reader.read(unread)):
                unread -= len(some)


async def _drained(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(WRITE_WITHIN):
        await writer.drain()


@asynccontextmanager
async def serving(locks: Leasehold, settings: Settings) -> AsyncIterator[Server]:
    """A server that listens, and looks at the engine, until this is left."""
    from leasehold import __version__

    started: list[Server] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await started[0].connected(reader, writer)

    address, port = settings.address, settings.port
    try:
        listening = await asyncio.start_server(connected, address, port, limit=MOST_HEADER_BYTES, start_serving=False)
    except OSError as error:
        raise Misuse(f"cannot listen on {address} port {port}: {error.strerror}; choose another port") from None
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        watch = Watch(locks, every=settings.every, namespace=settings.namespace, elections=settings.elections)
        door = Door(settings.token, port=port, hosts=settings.hosts)
        api = Api(watch, door, can_break=settings.can_break, version=__version__)
        started.append(Server(api, port))
        rounds = asyncio.create_task(watch.run())
        await listening.start_serving()
        try:
            yield started[0]
        finally:
            rounds.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await rounds
            watch.close()
            listening.close()
            await started[0].end()
