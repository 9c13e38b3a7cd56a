"""Connecting to MySQL or MariaDB and being let in, in time, in either world."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from typing import Final

from leasehold.errors import EngineError, EngineUnavailable, quoted
from leasehold.wires.lookup import Places
from leasehold.wires.mysql_errors import error_at_entry
from leasehold.wires.mysql_line import Line
from leasehold.wires.mysql_packets import (
    Nonsense,
    SqlError,
    caching_proof,
    error_in,
    greeting,
    login,
    native_proof,
    tls_request,
)
from leasehold.wires.mysql_stream import Stream, connected
from leasehold.wires.mysql_target import Target
from leasehold.wires.postgres_errors import nonsense, unreachable
from leasehold.wires.sockets import Sockets
from leasehold.wires.urls import Endpoint, HiddenBytes

_PROOFS: Final[Mapping[str, Callable[[bytes, bytes], bytes]]] = {
    "mysql_native_password": native_proof,
    "caching_sha2_password": caching_proof,
}
CLEAR: Final = "mysql_clear_password"
_REMEMBERED, _UNKNOWN = b"\x01\x03", b"\x01\x04"
"""What caching_sha2_password says of a user: the proof will do, or the password itself is needed."""


class Dialer:
    """Opens connections to a target's endpoints."""

    def __init__(self, target: Target, sockets: Sockets, label: str) -> None:
        self.world = sockets.world
        self._target, self._sockets, self._program = target, sockets, program_name(label)

    async def dial(self, endpoint: Endpoint, until: float) -> Line:
        """A connection to one endpoint that has let us in, or `EngineUnavailable` by `until`."""
        address, failure = self._target.address, "its name has no address"
        places = await self._places(endpoint, until)
        for position, (family, place) in enumerate(places):
            now = self._sockets.world.now()
            # Leave a share of the time for the others.
            share = now + (until - now) / (len(places) - position)
            try:
                stream = await connected(family, place, self._sockets, share)
            except TimeoutError:
                failure = "no answer in time"
            except OSError as error:
                failure = error.strerror or "it could not be connected to"
            else:
                return await self._entered(stream, endpoint, share)
        raise unreachable(address, failure)

    async def _places(self, endpoint: Endpoint, until: float) -> Places:
        if endpoint.path:
            return [(socket.AF_UNIX, endpoint.path)]
        try:
            return await self._sockets.look_up(endpoint.host, endpoint.port, until)
        except TimeoutError:
            raise unreachable(self._target.address, "its name could not be looked up in time") from None
        except OSError as error:
            raise unreachable(self._target.address, error.strerror or "its name is not known") from None

    async def _entered(self, stream: Stream, endpoint: Endpoint, until: float) -> Line:
        import ssl

        address, failure = self._target.address, ""
        try:
            await self._enter(stream, endpoint, until)
        except Nonsense as problem:
            stream.close()
            raise nonsense(problem, address) from None
        except SqlError as error:
            stream.close()
            raise error_at_entry(error, address) from None
        except TimeoutError:
            failure = "no answer in time"
        except ssl.SSLError as error:
            failure = f"TLS could not be begun, {quoted(getattr(error, 'verify_message', '') or error.reason)}"
        except OSError:
            failure = "the connection broke"
        except BaseException:
            stream.close()
            raise
        if failure:
            stream.close()
            raise unreachable(address, failure)
        return Line(stream, address)

    async def _enter(self, stream: Stream, endpoint: Endpoint, until: float) -> None:
        target = self._target
        hello = greeting(await stream.packet(until))
        if target.tls is not None:
            if not hello.can_tls:
                raise EngineUnavailable(
                    f"{target.address} does not speak TLS; set it up there, or say ssl-mode=DISABLED"
                )
            await stream.send(tls_request(), until, stream.inbox.next_number)
            await stream.start_tls(target.tls, endpoint.host, until)
        plugin = hello.plugin if hello.plugin in _PROOFS else "mysql_native_password"
        password = HiddenBytes(target.password.encode())
        proof = _PROOFS[plugin](password, hello.salt)
        packet = login(target.user, target.database, plugin, proof, self._program, tls=target.tls is not None)
        # TLS began with a packet of ours that nothing answered, so the numbering goes on behind that.
        await stream.send(packet, until, 2 if target.tls is not None else 1)
        await self._prove(stream, endpoint, password, until)

    async def _prove(self, stream: Stream, endpoint: Endpoint, password: HiddenBytes, until: float) -> None:
        while (answer := await stream.packet(until))[:1] != b"\0":
            reply: bytes | None = None
            if answer[:1] == b"\xff":
                raise error_in(answer)
            if answer[:1] == b"\xfe":
                plugin, _, salt = answer[1:].partition(b"\0")
                reply = self._answer_to(plugin.decode("ascii", "replace"), salt, endpoint, password)
            elif answer == _UNKNOWN:
                reply = self._in_clear("caching_sha2_password", endpoint, password)
            elif answer != _REMEMBERED:
                raise Nonsense("an unknown step of logging in")
            if reply is not None:
                await stream.send(reply, until, stream.inbox.next_number)

    def _answer_to(self, plugin: str, salt: bytes, endpoint: Endpoint, password: HiddenBytes) -> bytes:
        if plugin in _PROOFS:
            return _PROOFS[plugin](password, salt.rstrip(b"\0"))
        if plugin == CLEAR:
            return self._in_clear(plugin, endpoint, password)
        raise EngineError(
            f"{self._target.address} identifies this user by the plugin {quoted(plugin)}, which is not supported; "
            f"supported are {', '.join([*_PROOFS, CLEAR])}"
        )

    def _in_clear(self, plugin: str, endpoint: Endpoint, password: HiddenBytes) -> bytes:
        """The password itself, to nobody but the server."""
        tls = self._target.tls
        if endpoint.path or (tls is not None and (endpoint.is_local or tls.verify_mode)):
            return HiddenBytes(password + b"\0")
        raise EngineUnavailable(
            f"{self._target.address} asks for the password itself ({plugin}), which is sent in verified TLS or "
            "over a Unix socket only: use ssl-mode=VERIFY_IDENTITY (on this machine, ssl-mode=REQUIRED will do)"
        )


def program_name(label: str) -> str:
    """A name for the server's list of connections."""
    return ("leasehold:" + re.sub(r"[^!-~]", "_", label))[:63]
