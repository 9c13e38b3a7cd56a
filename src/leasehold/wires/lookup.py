"""Looking up the addresses of a host in time, in either world. The system's own call cannot be interrupted."""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from typing import Any

Places = list[tuple[int, Any]]
"""Families and addresses of sockets, to be tried in this order."""


def literal_place(host: str, port: int) -> Places | None:
    """The one place of a host that is written as a number."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return [(socket.AF_INET if address.version == 4 else socket.AF_INET6, (host, port))]


def look_up(host: str, port: int, seconds: float) -> Places:
    """Where a host is. A thread asks, which is left behind if the answer takes longer; raises `OSError`."""
    literal = literal_place(host, port)
    if literal is not None:
        return literal
    answer: queue.SimpleQueue[Places | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.put([(family, place) for family, _, _, _, place in found])
        except OSError as error:
            answer.put(error)
        except UnicodeError:
            answer.put(_no_such_name())

    threading.Thread(target=ask, name="leasehold-lookup", daemon=True).start()
    try:
        found = answer.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, OSError):
        raise found
    return found


async def look_up_asyncio(host: str, port: int) -> Places:
    """Where a host is; cancelling it leaves the thread behind that asks."""
    import asyncio

    literal = literal_place(host, port)
    if literal is not None:
        return literal
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise _no_such_name() from None
    return [(family, place) for family, _, _, _, place in found]


def _no_such_name() -> OSError:
    """For a text that cannot even be asked for: Python raises `UnicodeError` when a part is empty or too long."""
    return socket.gaierror(socket.EAI_NONAME, "Name or service not known")
