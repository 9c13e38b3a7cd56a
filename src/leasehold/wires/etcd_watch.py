"""Watches: told by etcd when a key is deleted. All watches of a client share one stream, which one thread reads.

A watch is asked for from now on, never from a revision in the past: etcd serves those of the past only ten times a
second. So whoever listens is told when its watch has begun, and looks then whether it came too late.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import grpc

from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_lines import GATE, Line, Lines

if TYPE_CHECKING:
    from collections.abc import Iterable


class Listener(Protocol):
    """Who is told. It is called in another thread."""

    def began(self, revision: int) -> None:
        """The watch has begun; what was deleted after this revision will be told."""
        ...

    def deleted(self, key: bytes) -> None:
        """A key was deleted."""
        ...

    def broke(self) -> None:
        """The watch has ended by itself, and something may have been missed."""
        ...


class _Answers(Protocol):
    def __iter__(self) -> Iterator[bytes]: ...

    def cancel(self) -> bool: ...


class _Stream:
    """One call of etcd's method Watch."""

    def __init__(self, line: Line, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self.line = line
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.listeners: dict[int, Listener] = {}
        self.stopped: list[int] = []
        """Watches that nobody listens to any more, to be ended when there is something else to say."""
        requests: Iterable[bytes] = iter(self.requests.get, None)
        with GATE:
            self.answers: _Answers = line.watch(iter(requests), metadata=metadata)

    def settle(self) -> None:
        """End the watches that nobody listens to. Who was just woken has better things to do than that."""
        stopped, self.stopped = self.stopped, []
        for number in stopped:
            self.requests.put(messages.unwatch(number))


class WatchHub:
    """All watches of one client."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None
        self._left_behind: list[_Stream | None] = []
        lines.on_move = self._leave

    @contextlib.contextmanager
    def watch(self, key: bytes, end: bytes, listener: Listener) -> Iterator[None]:
        """Have deletions told while in the block: of one key, or of those from `key` up to but not including `end`."""
        number, stream = next(self._numbers), None
        try:
            with self._lock:
                stream = self._stream = self._stream or self._open()
                stream.settle()
                stream.listeners[number] = listener
                stream.requests.put(messages.watch(number, key, end))
            yield
        finally:
            with self._lock:
                if stream is not None and stream.listeners.pop(number, None) is not None:
                    stream.stopped.append(number)

    def _open(self) -> _Stream:
        stream = _Stream(self._lines.current(), self._lines.metadata)
        threading.Thread(target=self._read, args=(stream,), name="leasehold-etcd-watch", daemon=True).start()
        return stream

    def _read(self, stream: _Stream) -> None:
        try:
            for answer in stream.answers:
                if not self._hear(stream, answer):
                    return
        except (grpc.RpcError, messages.Malformed):
            return  # whoever listens looks for itself, and meets the error there
        finally:
            self._ended(stream)

    def _hear(self, stream: _Stream, answer: bytes) -> bool:
        """Tell whom it concerns; False: a watch was refused, for want of a valid log-in or of permission."""
        news = messages.news_of(answer)
        listener = stream.listeners.get(news.number)
        if listener is not None:
            self._tell(listener, news)
        return news.number >= 0

    def _tell(self, listener: Listener, news: messages.News) -> None:
        for key in news.deleted:
            listener.deleted(key)
        if news.cancelled:
            listener.broke()
        elif news.created:
            listener.began(news.revision)

    def _ended(self, stream: _Stream) -> None:
        with self._lock:
            if self._stream is stream:
                self._stream = None
            listeners = list(stream.listeners.values())
            stream.listeners.clear()
        stream.requests.put(None)
        stream.answers.cancel()
        for listener in listeners:
            listener.broke()

    def _leave(self, line: Line) -> None:
        """The line has failed: do not wait for news on it."""
        stream = self._stream
        if stream is not None and stream.line is line:
            stream.answers.cancel()

    def close(self) -> None:
        """End the stream; whoever still listens is told that it may have missed something."""
        stream = self._stream
        if stream is not None:
            stream.answers.cancel()

    def forked(self) -> None:
        """In a forked child: start anew, and leave the inherited stream alone."""
        self._left_behind.append(self._stream)
        self._lock, self._stream = threading.Lock(), None
