"""Watches: told by etcd when a key is deleted. All watches of a client share one stream, which one thread reads.

A watch is asked for from now on, never from a revision in the past: etcd serves those of the past only ten times a
second. So whoever listens is told when its watch has begun, and looks then whether it came too late.

Those who take turns at a name wait for the same keys again and again. So a watch on one key is kept for the next one
who waits for it: it then costs no request, and has not begun too late.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

import grpc

from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_lines import GATE, Line, Lines

if TYPE_CHECKING:
    from collections.abc import Iterable

KEPT: Final = 8
"""How many watches a client keeps that nobody listens to."""


class Listener(Protocol):
    """Who is told. It is called in another thread."""

    def began(self, revision: int) -> None:
        """The watch has begun; what was deleted after this revision will be told."""
        ...

    def deleted(self, key: bytes, revision: int) -> None:
        """A key was deleted, at this revision. It may be told twice, or long after it was."""
        ...

    def broke(self) -> None:
        """The watch has ended by itself, and something may have been missed."""
        ...


class _Answers(Protocol):
    def __iter__(self) -> Iterator[bytes]: ...

    def cancel(self) -> bool: ...


class Watch:
    """One watch, and what it has told so far."""

    __slots__ = ("begun", "end", "heard", "in_vain", "key", "listener", "number")

    def __init__(self, key: bytes, end: bytes) -> None:
        self.key, self.end = key, end
        self.listener: Listener | None = None
        self.number = 0
        """What the stream calls it, once it is asked for."""
        self.begun: int | None = None
        """The revision at which it had begun, once that is known."""
        self.heard = 0
        """The revision of the latest deletion that it told."""
        self.in_vain = False
        """Whether it told one while nobody listened."""

    def tells_at_once(self, revision: int) -> bool:
        """Whether it is sure to tell at once, as far as is known at this revision.

        A watch that begins while etcd writes counts as one of the past, and is held up until etcd gets round to those.
        That ends when it has told something; and it was not so if nothing was written since it began.
        """
        return self.heard > 0 or self.begun == revision


class _Stream:
    """One call of etcd's method Watch. What it keeps is for those who have the lock of the hub."""

    def __init__(self, line: Line, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self._keep_nothing_yet(line)
        requests: Iterable[bytes] = iter(self.requests.get, None)
        with GATE:
            self.answers: _Answers = line.watch(iter(requests), metadata=metadata)

    def _keep_nothing_yet(self, line: Line) -> None:
        self.line = line
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.watches: dict[int, Watch] = {}
        """Those that somebody listens to, and those that are kept."""
        self.kept: dict[bytes, Watch] = {}
        """Those that nobody listens to at the moment, by their key; the one that was used last is the last."""
        self.stopped: list[int] = []
        """Those that nobody listens to any more, to be ended when there is something else to say."""

    def begin(self, watch: Watch) -> None:
        """Have something watched: by a watch that was kept, if there is one."""
        self.settle()
        kept = None if watch.end else self.kept.pop(watch.key, None)
        if kept is None:
            self.watches[watch.number] = watch
            self.requests.put(messages.watch(watch.number, watch.key, watch.end))
        else:
            watch.number, watch.begun, watch.heard = kept.number, kept.begun, kept.heard
            self.watches[watch.number] = watch

    def leave(self, watch: Watch, *, keep: bool) -> None:
        """Nobody listens to it any more."""
        if self.watches.get(watch.number) is not watch:
            return
        watch.listener = None
        if not keep or watch.key in self.kept:
            self._stop(watch)
            return
        self.kept[watch.key] = watch
        if len(self.kept) > KEPT:
            self._stop(next(iter(self.kept.values())))

    def _stop(self, watch: Watch) -> None:
        self._forget(watch)
        self.stopped.append(watch.number)

    def _forget(self, watch: Watch) -> None:
        del self.watches[watch.number]
        if self.kept.get(watch.key) is watch:
            del self.kept[watch.key]

    def settle(self) -> None:
        """End the watches that nobody listens to. Who was just woken has better things to do than that."""
        stopped, self.stopped = self.stopped, []
        for number in stopped:
            self.requests.put(messages.unwatch(number))

    def note(self, news: messages.News) -> Listener | None:
        """Take note of what a watch says; returns whom it concerns."""
        watch = self.watches.get(news.number)
        if watch is None:
            if news.deleted:
                self.settle()
            return None
        if news.created:
            watch.begun = news.revision
        if news.deleted:
            watch.heard = news.deleted[-1].revision
        if news.cancelled:
            self._forget(watch)
        elif news.deleted and watch.listener is None:
            self._note_in_vain(watch)
        return watch.listener

    def _note_in_vain(self, watch: Watch) -> None:
        """It may be what the next one who comes would wait for. Who has not come before the second time will not."""
        if watch.in_vain:
            self._stop(watch)
            self.settle()
        watch.in_vain = True


class WatchHub:
    """All watches of one client."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None
        self._left_behind: list[_Stream | None] = []
        lines.on_move = self._leave

    def watch(self, key: bytes, end: bytes = b"") -> Watch:
        """A watch that has yet to begin: of one key, or of those from `key` up to but not including `end`."""
        return Watch(key, end)

    def begin(self, watch: Watch, listener: Listener) -> None:
        """Have deletions told to the listener. Whatever comes of it, `leave` has to follow."""
        with self._lock:
            stream = self._stream = self._stream or self._open()
            watch.number, watch.listener = next(self._numbers), listener
            stream.begin(watch)
        if watch.begun is not None:
            listener.began(watch.begun)
        if watch.heard:
            listener.deleted(watch.key, watch.heard)

    def leave(self, watch: Watch, *, keep: bool = False) -> None:
        """Have no more told, even if it has not begun. `keep` it, if its one key is likely to be waited for again."""
        with self._lock:
            if self._stream is not None:  # one that has ended has told so, and keeps nothing
                self._stream.leave(watch, keep=keep and not watch.end)

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
        with self._lock:
            listener = stream.note(news)
        if listener is not None:
            self._tell(listener, news)
        return news.number >= 0

    def _tell(self, listener: Listener, news: messages.News) -> None:
        for deletion in news.deleted:
            listener.deleted(*deletion)
        if news.cancelled:
            listener.broke()
        elif news.created:
            listener.began(news.revision)

    def _ended(self, stream: _Stream) -> None:
        with self._lock:
            if self._stream is stream:
                self._stream = None
            listeners = [watch.listener for watch in stream.watches.values() if watch.listener is not None]
            stream.watches.clear()
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
