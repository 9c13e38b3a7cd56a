"""What the benchmark knows of etcd: its floor, its version, and how to clear up."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from types import TracebackType
from typing import Final

import grpc

from leasehold.bench.places import Place
from leasehold.engines.key_queue import namespace_range
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_address import address_from_url
from leasehold.wires.etcd_lines import Lines

WITHIN: Final = 10.0
HOLDER: Final = b"0123456789abcdef0123456789abcdef"
SESSION_TTL: Final = 600
"""Longer than the benchmark takes, and gone soon if it is killed."""
STATUS: Final = "/etcdserverpb.Maintenance/Status"


@contextlib.contextmanager
def connected(place: Place) -> Iterator[Lines]:
    """Bare channels to where Leasehold would connect, logged in if the address says so."""
    address = address_from_url(place.on)
    lines = Lines(address)
    try:
        if address.user is not None and address.password is not None:
            request = messages.authenticate(address.user, address.password)
            answer = lines.current().calls[messages.AUTHENTICATE](request, timeout=WITHIN)
            lines.auth_token = messages.auth_token_of(answer)
        yield lines
    except grpc.RpcError as error:
        raise lines.failure(error, lines.current()) from None
    finally:
        lines.close()


class RawEtcd:
    """Two requests on a bare gRPC channel: a key is created if it is not there, and deleted. No lock can cost less."""

    def __init__(self, place: Place, name: str) -> None:
        self._stack = contextlib.ExitStack()
        lines = self._stack.enter_context(connected(place))
        calls, self._metadata = lines.current().calls, lines.metadata
        self._txn, self._delete = calls[messages.TXN], calls[messages.DELETE]
        session = secrets.randbits(62) or 1
        self._revoke, self._session = calls[messages.REVOKE], messages.lease_id(session)
        calls[messages.GRANT](messages.lease_grant(session, SESSION_TTL), timeout=WITHIN, metadata=self._metadata)
        key = namespace_range(place.namespace)[0] + f"{name}/floor".encode()
        put = messages.put(key, HOLDER, session)
        self._take = messages.txn([messages.if_created(key, 0)], [put], [])
        self._release = messages.delete(key)

    def __enter__(self) -> None:
        answer = self._txn(self._take, timeout=WITHIN, metadata=self._metadata)
        if not messages.outcome_of(answer).succeeded:
            raise RuntimeError("the floor's own key was taken")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._delete(self._release, timeout=WITHIN, metadata=self._metadata)

    def close(self) -> None:
        """End the session and close the channel."""
        with self._stack:
            self._revoke(self._session, timeout=WITHIN, metadata=self._metadata)


def version(place: Place) -> str:
    """The server's own."""
    with connected(place) as lines:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = lines.current().channel.unary_unary(STATUS)
        answer = ask(b"", timeout=WITHIN, metadata=lines.metadata)
        return messages.Message(answer).blob(2).decode("ascii", "replace")


def clear(place: Place) -> None:
    """Remove what the benchmark has written."""
    with connected(place) as lines:
        request = messages.delete(*namespace_range(place.namespace))
        lines.current().calls[messages.DELETE](request, timeout=WITHIN, metadata=lines.metadata)
