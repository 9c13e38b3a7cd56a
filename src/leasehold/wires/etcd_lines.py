"""Channels to the endpoints of an etcd cluster, and how they get along with forks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leasehold.errors import EngineError, Misuse
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_errors import failure_from

if TYPE_CHECKING:
    from leasehold.wires.etcd_address import Address
    from leasehold.wires.urls import Endpoint

# gRPC reads this when it is loaded. Without it, a forked child hangs in its first call.
_FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"
_given = os.environ.get(_FORK_SUPPORT)
_loaded_by_others = "grpc" in sys.modules
os.environ.setdefault(_FORK_SUPPORT, "1")
try:
    import grpc
finally:
    if _given is None:
        del os.environ[_FORK_SUPPORT]
SURVIVES_FORK: Final = (_given or ("0" if _loaded_by_others else "1")).lower() in {"1", "true", "yes"}

OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),  # a web proxy that happens to be configured is no way to a lock
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 250),  # who waits shall be served within a second of its coming back
    ("grpc.keepalive_time_ms", 10_000),  # etcd hangs up on those who ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),
)
Metadata = tuple[tuple[str, str | bytes], ...]
NEEDS_LEADER: Final[Metadata] = (("hasleader", "true"),)
"""Asks a member that has lost its cluster to say so, instead of keeping us waiting."""
FORK_WAITS: Final = 5.0


class _ForkGate:
    """Lets a fork wait until no thread is inside of gRPC, since a child that inherits such a state hangs.

    What is inside are single requests, each with a deadline; waiting for a lock happens outside.
    """

    def __init__(self) -> None:
        self._inside: dict[int, None] = {}
        self._closed = False

    def __enter__(self) -> None:
        # A thread is noted first and then looks whether a fork is under way, and the fork does it the other way
        # round: so one of them sees the other. Noting is by thread, so that an interruption here does no harm.
        me = threading.get_ident()
        self._inside[me] = None
        while self._closed:
            self._inside.pop(me, None)
            time.sleep(0.001)
            self._inside[me] = None

    def __exit__(self, *_error: object) -> None:
        self._inside.pop(threading.get_ident(), None)

    def before_fork(self) -> None:
        """Let nobody in, and wait for those inside."""
        self._closed = True
        me, give_up_at = threading.get_ident(), time.monotonic() + FORK_WAITS
        while any(one != me for one in list(self._inside)) and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._closed = False

    def after_fork_in_child(self) -> None:
        """The other threads do not exist here."""
        self._inside.clear()
        self._closed = False


GATE: Final = _ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=GATE.before_fork,
        after_in_parent=GATE.after_fork_in_parent,
        after_in_child=GATE.after_fork_in_child,
    )


class Line:
    """A channel to one endpoint, with its methods ready to be called."""

    __slots__ = ("calls", "channel", "endpoint", "watch")

    def __init__(self, endpoint: Endpoint, address: Address) -> None:
        self.endpoint = endpoint
        if address.tls is None:
            self.channel = grpc.insecure_channel(str(endpoint), options=OPTIONS)
        else:
            tls = address.tls
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            self.channel = grpc.secure_channel(str(endpoint), credentials, options=OPTIONS)
        self.calls: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = {
            method: self.channel.unary_unary(method) for method in messages.UNARY
        }
        self.watch: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(messages.WATCH)


class Lines:
    """The endpoints of one cluster. All requests go to one of them, until it fails; then to the next."""

    _used_in: int | None = None
    """The process in which gRPC was first put to use."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.auth_token: str | None = None
        self.on_move: Callable[[Line], object] = lambda _line: None
        self._lock = threading.Lock()
        self._at = 0
        self._open: dict[int, Line] = {}
        self._left_behind: list[dict[int, Line]] = []

    @property
    def metadata(self) -> Metadata:
        """What goes along with every request."""
        token = self.auth_token
        return NEEDS_LEADER if token is None else (*NEEDS_LEADER, ("token", token))

    def current(self) -> Line:
        """The line to use now."""
        line = self._open.get(self._at)
        return line if line is not None else self._connect()

    def _connect(self) -> Line:
        if Lines._used_in is None:
            Lines._used_in = os.getpid()
        if not SURVIVES_FORK and Lines._used_in != os.getpid():
            raise Misuse(
                "this process is a fork of one in which gRPC was at work without fork support, and a call would hang; "
                f"set {_FORK_SUPPORT}=1 before the program starts, or start processes by spawning"
            )
        with self._lock, GATE:
            if self._at not in self._open:
                self._open[self._at] = Line(self.address.endpoints[self._at], self.address)
            return self._open[self._at]

    def move_on(self, line: Line) -> None:
        """The line failed: let the following request go to the next endpoint."""
        if len(self.address.endpoints) == 1:
            return
        with self._lock:
            if self._open.get(self._at) is not line:
                return
            self._at = (self._at + 1) % len(self.address.endpoints)
        self.on_move(line)

    def close(self) -> None:
        """Close every channel; the next request opens one anew."""
        with self._lock:
            lines, self._open = self._open, {}
        for line in lines.values():
            with GATE:
                line.channel.close()

    def forked(self) -> None:
        """In a forked child: open channels of our own, and do not so much as close the inherited ones."""
        self._left_behind.append(self._open)
        self._lock, self._open = threading.Lock(), {}

    def failure(self, error: grpc.RpcError, line: Line) -> EngineError:
        """What to raise for a failed call. If the path failed, or the member, the following request goes elsewhere."""
        return self.failed(error.code().name, error.details() or "", line)

    def failed(self, code: str, details: str, line: Line) -> EngineError:
        """The same, by the name of gRPC's code."""
        if code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
            self.move_on(line)
        return failure_from(code, details, f"etcd at {line.endpoint}")
