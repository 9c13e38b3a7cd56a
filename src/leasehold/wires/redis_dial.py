"""Connecting to an endpoint in time, in either world."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.wires.lookup import Places, look_up, look_up_asyncio
from leasehold.wires.redis_replies import unreachable
from leasehold.wires.sockets import tune
from leasehold.wires.urls import Endpoint

if TYPE_CHECKING:
    import asyncio
    import ssl

    from leasehold.core.worlds import World

LineT = TypeVar("LineT", bound="asyncio.Protocol")


def connect_blocking(endpoint: Endpoint, tls: ssl.SSLContext | None, world: World, until: float) -> socket.socket:
    """A connected socket, or `EngineUnavailable` by `until`."""
    try:
        places = _places(endpoint, until - world.now())
        for position, (family, place) in enumerate(places):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(_positive((until - world.now()) / (len(places) - position)))
                sock.connect(place)
                tune(sock)
                return _secured(sock, endpoint, tls, until - world.now())
            except OSError:
                sock.close()
                if position == len(places) - 1:
                    raise
            except BaseException:
                sock.close()
                raise
    except OSError as error:
        raise unreachable(f"Redis at {endpoint}", error) from error
    raise unreachable(f"Redis at {endpoint}", "its name has no address")


def _positive(seconds: float) -> float:
    """A time-out for a socket; 0 would mean something else."""
    return max(seconds, 0.001)


def _secured(sock: socket.socket, endpoint: Endpoint, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    if tls is None:
        return sock
    sock.settimeout(_positive(seconds))
    return tls.wrap_socket(sock, server_hostname=endpoint.host)


def _places(endpoint: Endpoint, seconds: float) -> Places:
    """What to connect to."""
    if endpoint.path:
        return [(socket.AF_UNIX, endpoint.path)]
    return look_up(endpoint.host, endpoint.port, seconds)


async def connect_asyncio(
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    world: World,
    until: float,
    make: Callable[[socket.socket], LineT],
) -> LineT:
    """A protocol made for a connected socket, or `EngineUnavailable` by `until`.

    The socket is made here, not by the event loop: a forked child must be able to let go of it.
    """
    import asyncio

    failure: OSError | str = "its name has no address"
    try:
        async with asyncio.timeout(max(until - world.now(), 0.0)):
            places = await _places_asyncio(endpoint)
            for position, (family, place) in enumerate(places):
                share = (until - world.now()) / (len(places) - position)
                sock = socket.socket(family, socket.SOCK_STREAM)
                line = make(sock)
                try:
                    async with asyncio.timeout(share):
                        await _open(sock, place, line, endpoint, tls)
                except OSError as error:
                    sock.close()
                    failure = error
                except BaseException:
                    sock.close()
                    raise
                else:
                    return line
    except OSError as error:
        failure = error
    raise unreachable(f"Redis at {endpoint}", failure)


async def _open(sock: socket.socket, place: Any, line: LineT, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    await loop.sock_connect(sock, place)
    tune(sock)
    host = endpoint.host if tls else None
    if endpoint.path:
        await loop.create_unix_connection(lambda: line, sock=sock)
    else:
        await loop.create_connection(lambda: line, sock=sock, ssl=tls, server_hostname=host)


async def _places_asyncio(endpoint: Endpoint) -> Places:
    if endpoint.path:
        return [(socket.AF_UNIX, endpoint.path)]
    return await look_up_asyncio(endpoint.host, endpoint.port)
