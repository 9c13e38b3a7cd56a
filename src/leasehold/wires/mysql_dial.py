"""Connecting to MySQL or MariaDB and being let in, in time, in either world."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from leasehold.errors import EngineError, EngineUnavailable, quoted
from leasehold.wires.lookup import Places
from leasehold.wires.mysql_errors import error_at_entry
from leasehold.wires.mysql_line import Line
from leasehold.wires.mysql_login import caching_proof, greeting, login, native_proof, tls_request
from leasehold.wires.mysql_packets import Nonsense, SqlError, error_in
from leasehold.wires.mysql_stream import Stream, connected
from leasehold.wires.mysql_target import Target
from leasehold.wires.postgres_errors import nonsense, unreachable
from leasehold.wires.sockets import Sockets
from leasehold.wires.urls import Endpoint, HiddenBytes, tls_context

if TYPE_CHECKING:
    import ssl

_PROOFS: Final[Mapping[str, Callable[[bytes, bytes], bytes]]] = {
    "mysql_native_password": native_proof,
    "caching_sha2_password": caching_proof,
}
CLEAR: Final = "mysql_clear_password"
_REMEMBERED, _UNKNOWN = b"\x01\x03", b"\x01\x04"
"""What caching_sha2_password says of a user: the proof will do, or the password itself is needed."""


class _WantsPassword(EngineUnavailable):
    """The server does not know a user yet, and asks for the password itself where it is not told."""


class _NoTls(EngineUnavailable):
    """The server does not speak TLS."""


class Dialer:
    """Opens connections to a target's endpoints."""

    def __init__(self, target: Target, sockets: Sockets, label: str) -> None:
        self.world = sockets.world
        self._target, self._sockets, self._program = target, sockets, program_name(label)

    async def dial(self, endpoint: Endpoint, until: float) -> Line:
        """A connection to one endpoint that has let us in, or `EngineUnavailable` by `until`.

        MySQL asks for the password itself when it meets a user for the first time since it was started. One of this
        machine is told in TLS; from then on it lets the user in by a proof.
        """
        try:
            return await self._dial(endpoint, self._target.tls, until)
        except _WantsPassword as asked:
            if not self._target.tls_if_asked:
                raise
            try:
                return await self._dial(endpoint, tls_context(ca=None, cert=None, key=None, insecure=True), until)
            except _NoTls:
                raise asked from None

    async def _dial(self, endpoint: Endpoint, tls: ssl.SSLContext | None, until: float) -> Line:
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
                return await self._entered(stream, endpoint, tls, share)
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

    async def _entered(self, stream: Stream, endpoint: Endpoint, tls: ssl.SSLContext | None, until: float) -> Line:
        import ssl

        address, failure = self._target.address, ""
        try:
            await self._enter(stream, endpoint, tls, until)
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

    async def _enter(self, stream: Stream, endpoint: Endpoint, tls: ssl.SSLContext | None, until: float) -> None:
        target = self._target
        hello = greeting(await stream.packet(until))
        if tls is not None:
            if not hello.can_tls:
                raise _NoTls(f"{target.address} does not speak TLS; set it up there, or say ssl-mode=DISABLED")
            await stream.send(tls_request(), until, stream.inbox.next_number)
            await stream.start_tls(tls, endpoint.host, until)
        plugin = hello.plugin if hello.plugin in _PROOFS else "mysql_native_password"
        password = HiddenBytes(target.password.encode())
        proof = _PROOFS[plugin](password, hello.salt)
        packet = login(target.user, target.database, plugin, proof, self._program, tls=tls is not None)
        # TLS began with a packet of ours that nothing answered, so the numbering goes on behind that.
        await stream.send(packet, until, 2 if tls is not None else 1)
        is_safe = bool(endpoint.path) or (tls is not None and (endpoint.is_local or bool(tls.verify_mode)))
        await self._prove(stream, password, until, is_safe=is_safe)

    async def _prove(self, stream: Stream, password: HiddenBytes, until: float, *, is_safe: bool) -> None:
        while (answer := await stream.packet(until))[:1] != b"\0":
            reply: bytes | None = None
            if answer[:1] == b"\xff":
                raise error_in(answer)
            if answer[:1] == b"\xfe":
                plugin, _, salt = answer[1:].partition(b"\0")
                reply = self._answer_to(plugin.decode("ascii", "replace"), salt, password, is_safe=is_safe)
            elif answer == _UNKNOWN:
                reply = self._in_clear("caching_sha2_password", password, is_safe=is_safe)
            elif answer != _REMEMBERED:
                raise Nonsense("an unknown step of logging in")
            if reply is not None:
                await stream.send(reply, until, stream.inbox.next_number)

    def _answer_to(self, plugin: str, salt: bytes, password: HiddenBytes, *, is_safe: bool) -> bytes:
        if plugin in _PROOFS:
            return _PROOFS[plugin](password, salt.rstrip(b"\0"))
        if plugin == CLEAR:
            return self._in_clear(plugin, password, is_safe=is_safe)
        raise EngineError(
            f"{self._target.address} identifies this user, if it knows one of that name, by the plugin "
            f"{quoted(plugin)}, which is not supported; supported are {', '.join([*_PROOFS, CLEAR])}"
        )

    def _in_clear(self, plugin: str, password: HiddenBytes, *, is_safe: bool) -> bytes:
        """The password itself, to nobody but the server."""
        if is_safe:
            return HiddenBytes(password + b"\0")
        # A user of PAM is always asked for it, so whoever answers there should be known.
        refusal = EngineUnavailable if plugin == CLEAR else _WantsPassword
        raise refusal(
            f"{self._target.address} asks for the password itself ({plugin}), which is sent in verified TLS or "
            "over a Unix socket only: use ssl-mode=VERIFY_IDENTITY (on this machine, ssl-mode=REQUIRED will do)"
        )


def program_name(label: str) -> str:
    """A name for the server's list of connections."""
    return ("leasehold:" + re.sub(r"[^!-~]", "_", label))[:63]
