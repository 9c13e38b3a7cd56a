"""Watches: told by etcd when a key is deleted. All watches of a client share one stream, which one thread reads."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import grpc

from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_lines import GATE, Line, Lines

if TYPE_CHECKING:
    from collections.abc import Iterable

Range = tuple[bytes, bytes]
"""A key and nothing, or the first key and the one after the last."""


Tell = Callable[[bytes | None], object]
"""Called in another thread with each key that is deleted, or with None when something may have been missed: the stream
broke, or the revision is no longer kept. After None nothing more comes."""


class Subscription:
    """What one waiter hears of."""

    __slots__ = ("numbers", "stream")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.stream: _Stream | None = None


class _Answers(Protocol):
    def __iter__(self) -> Iterator[bytes]: ...

    def cancel(self) -> bool: ...


class _Stream:
    """One call of etcd's method Watch."""

    def __init__(self, line: Line, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self.line = line
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.listeners: dict[int, Tell] = {}
        requests: Iterable[bytes] = iter(self.requests.get, None)
        with GATE:
            self.answers: _Answers = line.watch(iter(requests), metadata=metadata)


class WatchHub:
    """All watches of one client."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None
        self._left_behind: list[_Stream | None] = []
        lines.on_move = self._leave

    def start(self, ranges: Sequence[Range], revision: int, tell: Tell) -> Subscription:
        """Have deletions told, from now on and those since the revision."""
        subscription = Subscription()
        with self._lock:
            stream = self._stream
            if stream is None:
                stream = self._stream = _Stream(self._lines.current(), self._lines.metadata)
                threading.Thread(target=self._read, args=(stream,), name="leasehold-etcd-watch", daemon=True).start()
            subscription.stream = stream
            for key, end in ranges:
                number = next(self._numbers)
                subscription.numbers.append(number)
                stream.listeners[number] = tell
                stream.requests.put(messages.watch(number, key, end, revision + 1))
        return subscription

    def stop(self, subscription: Subscription) -> None:
        """Have it told no more."""
        stream = subscription.stream
        if stream is None:
            return
        for number in subscription.numbers:
            if stream.listeners.pop(number, None) is not None:
                stream.requests.put(messages.unwatch(number))

    def _read(self, stream: _Stream) -> None:
        try:
            for answer in stream.answers:
                news = messages.news_of(answer)
                if news.cancelled and not news.compacted and news.number not in stream.listeners:
                    if news.number < 0:
                        return  # a watch was refused, for want of a valid log-in or of permission
                    continue  # one that we have stopped
                tell = stream.listeners.get(news.number)
                if tell is not None:
                    for key in news.deleted:
                        tell(key)
                    if news.cancelled:
                        tell(None)
        except (grpc.RpcError, messages.Malformed):
            return  # whoever listens looks for itself, and meets the error there
        finally:
            self._ended(stream)

    def _ended(self, stream: _Stream) -> None:
        with self._lock:
            if self._stream is stream:
                self._stream = None
            listeners = list(stream.listeners.values())
            stream.listeners.clear()
        stream.requests.put(None)
        stream.answers.cancel()
        for tell in listeners:
            tell(None)

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
