"""Servers that talk nonsense: all is passed on to a real server and back, but for one answer that is spoiled by a seed.

How an answer is spoiled is the same for all protocols; one kind of liar passes on bytes, the other gRPC's messages.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, Self

import grpc

from leasehold.wires import etcd_messages

ALIEN = (
    *(b"\0" * 4, b"\0" * 100, b"\xff" * 4, b"\xff" * 100, b"\x7f\xff\xff\xff", b"\r\n"),
    *(b"\x15\x03\x01\x00\x02\x02\x46", b"SSH-2.0-OpenSSH_9.2\r\n", b"220 mail ESMTP\r\n", b"{}", b"null"),
    *(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"),
    *(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body) for body in (b"true", b"[]", b"{}")),
    *(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
    *(b"-ERR no\r\n", b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*2\r\n:1\r\n"),
    *(b"Z\0\0\0\x05I", b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I", b"E\0\0\0\x08SX\0\0", b"D\0\0\0\x0b\0\x01\0\0\0\x011"),
    *(b"\x07\0\0\x01\0\0\0\x02\0\0\0", b"\x01\0\0\x01\x01", b"\x05\0\0\x02\xfe\0\0\x02\0"),
    *(b"\x17\0\0\x01\xff\x48\x04#HY000", b"\0\0\0\x14\0\0\0\x01" + b"\0" * 16),
    *(b"\x08\x01", b"\x12\x02\x08\x01", b"\x10\x01", b"\x0a\0"),
)
"""What belongs to other protocols, or to other moments of this one."""
SNIPPETS = (b"\r\n", b"9", b"-", b"\0", b"\xff", b"\x01", b"\0\0\0\x04")
MEMORY = 64


class Spoiled(NamedTuple):
    """What is said instead of an answer."""

    said: bytes
    how: str
    hangs_up: bool = False


def spoil(right: bytes, earlier: list[bytes], chance: random.Random) -> Spoiled:
    """Cut it, say it twice, say something else, or change some of its bytes."""
    hangs_up = chance.random() < 0.8  # else the other side has to notice, or to wait in vain
    match chance.randrange(8):
        case 0:
            return Spoiled(right[: chance.randrange(len(right))] if right else b"", "cut", hangs_up)
        case 1:
            return Spoiled(right * 2, "twice")
        case 2:
            return Spoiled(chance.choice(ALIEN), "alien", hangs_up)
        case 3:
            return Spoiled(chance.choice(ALIEN) + right, "alien before")
        case 4:
            return Spoiled(chance.randbytes(chance.choice([1, 4, 9, 60, 3000])), "noise", hangs_up)
        case 5:
            return Spoiled(chance.choice(earlier) + right if earlier else right * 2, "earlier before")
        case 6:
            return Spoiled(changed(right, chance), "bytes")
        case _:
            at, word = chance.randrange(len(right) + 1), chance.choice([b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff"])
            return Spoiled(right[:at] + word + right[at + len(word) :], "bytes")


def changed(right: bytes, chance: random.Random, snippets: Sequence[bytes] = SNIPPETS) -> bytes:
    """Change, remove or repeat some bytes, or put one of the snippets between them: in one to four places."""
    mutant = bytearray(right)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(mutant) + 1)
        match chance.randrange(4):
            case 0:
                mutant[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                mutant[at:at] = chance.choice(snippets)
            case 2:
                del mutant[at : at + chance.randint(1, 8)]
            case _:
                mutant[at:at] = mutant[: chance.randint(0, 20)]
    return bytes(mutant)


class Plan:
    """Which answer is to be spoiled next, and what became of it. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: tuple[random.Random, int] | None = None
        self._earlier: deque[bytes] = deque(maxlen=MEMORY)
        self.struck: Spoiled | None = None
        self.passed_on = 0
        """How many answers were left right since it was armed."""

    def arm(self, chance: random.Random, after: int) -> None:
        """Spoil one answer: the first one `after` so many."""
        with self._lock:
            self._armed, self.struck, self.passed_on = (chance, after), None, 0

    def disarm(self) -> Spoiled | None:
        """Spoil none any more; returns what was said instead of an answer since it was armed."""
        with self._lock:
            self._armed = None
            return self.struck

    def say(self, right: bytes) -> Spoiled:
        """What to say, given the right answer."""
        with self._lock:
            earlier = list(self._earlier)
            self._earlier.append(right)
            if self._armed is None:
                return Spoiled(right, "right")
            chance, after = self._armed
            self._armed = None if after == 0 else (chance, after - 1)
            if after:
                self.passed_on += 1
                return Spoiled(right, "right")
            self.struck = spoil(right, earlier, chance)
            return self.struck


class Liar(Protocol):
    """A server that can be told to spoil an answer."""

    port: int
    plan: Plan

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ByteLiar:
    """Passes on the bytes of connections; an answer is what arrives at once."""

    def __init__(self, port: int) -> None:
        self.plan = Plan()
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()

    def __enter__(self) -> Self:
        self._start(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        _hang_up(self._listener)
        for end in list(self._ends):
            _hang_up(end)
        for thread in list(self._threads):
            thread.join()

    def _start(self, work: Any, *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _listen(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(self._server)
                for end in (ours, theirs):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._ends.add(end)
                pair = _Pair(ours, theirs, self._ends)
                self._start(self._forward, pair)
                self._start(self._answer, pair)

    def _forward(self, pair: _Pair) -> None:
        with pair, contextlib.suppress(OSError):
            while data := pair.ours.recv(65536):
                pair.theirs.sendall(data)

    def _answer(self, pair: _Pair) -> None:
        with pair, contextlib.suppress(OSError):
            while data := pair.theirs.recv(65536):
                spoiled = self.plan.say(data)
                pair.ours.sendall(spoiled.said)
                if spoiled.hangs_up:
                    return


class _Pair:
    """A connection of a client and ours to the server, for two threads: the one that leaves first hangs up both."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, ends: set[socket.socket]) -> None:
        self.ours, self.theirs, self._ends, self._users = ours, theirs, ends, 2
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        for end in (self.ours, self.theirs):
            _hang_up(end)
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for end in (self.ours, self.theirs):
                    self._ends.discard(end)
                    end.close()


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


class MessageLiar(grpc.GenericRpcHandler):
    """Passes on calls of etcd's API; an answer is one message. Who changes bytes of gRPC's own only tests gRPC."""

    def __init__(self, port: int) -> None:
        self.plan = Plan()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._threads = ThreadPoolExecutor(16)
        self._server = grpc.server(self._threads, handlers=[self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None).wait()
        self._channel.close()
        self._threads.shutdown()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """How a method is served."""
        method = details.method
        if method == etcd_messages.WATCH:
            return grpc.stream_stream_rpc_method_handler(self._watch)
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)

        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                right = call(request, timeout=10, metadata=(("hasleader", "true"),))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details() or "")
            return self._said(right, context)

        return grpc.unary_unary_rpc_method_handler(serve)

    def _watch(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        watch: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(etcd_messages.WATCH)
        answers = watch(requests)

        def cancel() -> None:
            answers.cancel()

        context.add_callback(cancel)
        with contextlib.suppress(grpc.RpcError):
            for right in answers:
                yield self._said(right, context)

    def _said(self, right: bytes, context: grpc.ServicerContext) -> bytes:
        spoiled = self.plan.say(right)
        if spoiled.hangs_up and spoiled.how == "noise":
            context.abort(grpc.StatusCode.INTERNAL, spoiled.said.decode("latin-1"))
        return spoiled.said
