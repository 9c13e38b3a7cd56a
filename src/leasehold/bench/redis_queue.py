"""A queue on Redis with nothing between Python and the server: how often a name can change hands there at all.

Whoever finds the name taken stands in a list, and whoever lets go hands the name to the first of them by a message.
There is no lease and no deadline: one dead process, and all the others wait for ever. No lock is worth having that does
less, so what this makes of the server in a second is a bound for those that do more.

It reads answers by hiredis, and looks for them before it sleeps, as Leasehold does: what is left between the two is
what a lease takes, and not how one listens.
"""

from __future__ import annotations

import os
import select
from time import monotonic
from types import TracebackType
from typing import Any

import hiredis

from leasehold.bench.places import Place
from leasehold.bench.resp import BareSocket, packed
from leasehold.wires.lookout import Lookout

_TAKE = """
if redis.call('SETNX', KEYS[1], ARGV[1]) == 1 then return redis.call('INCR', KEYS[3]) end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0
"""
_LET_GO = """
local following = redis.call('LPOP', KEYS[2])
if not following then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], following)
redis.call('PUBLISH', following, redis.call('INCR', KEYS[3]))
return 1
"""


class RedisQueue:
    """Two scripts on one connection, which messages come on too."""

    def __init__(self, place: Place, name: str) -> None:
        self._bare = BareSocket(place.on)
        address = f"{place.namespace}:{os.urandom(8).hex()}"
        keys = [f"{place.namespace}:{{{name}}}:by-hand:{part}" for part in ("holder", "queue", "token")]
        self._bare.ask("HELLO", 3)
        self._bare.ask("SUBSCRIBE", address)
        readable = select.poll()
        readable.register(self._bare.socket, select.POLLIN)
        self._lookout = Lookout(readable.poll)
        self._reader = hiredis.Reader(notEnoughData=...)
        self._bare.socket.settimeout(None)
        self._take, self._let_go = (
            packed("EVALSHA", self._loaded(script), len(keys), *keys, address) for script in (_TAKE, _LET_GO)
        )

    def _loaded(self, script: str) -> bytes:
        digest = self._bare.ask("SCRIPT", "LOAD", script)
        assert isinstance(digest, bytes)
        return digest

    def _ask(self, request: bytes) -> Any:
        began = monotonic()
        self._bare.socket.sendall(request)
        self._lookout.look(began)
        return self._read()

    def _read(self) -> Any:
        while (reply := self._reader.gets()) is ...:
            self._reader.feed(self._bare.socket.recv(4096))
        return reply

    def __enter__(self) -> None:
        if self._ask(self._take) == 0:
            handed = self._read()
            if not isinstance(handed, list) or handed[0] != b"message":
                raise RuntimeError(f"the queue was told {handed!r} instead of its turn")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask(self._let_go)

    def close(self) -> None:
        """Close the connection."""
        self._bare.close()
