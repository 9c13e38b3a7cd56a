"""One connection to a ZooKeeper server, shared by threads and by event loops.

A session lives on one connection at a time, and the caller and the keeper use the same session: so the connection is
shared. No thread of its own reads it. Whoever waits for an answer reads, and hands out what is for others. In each
station (an event loop, or all blocking threads together) one at a time does so; the rest there sleep until they are
rung. Stations do not wait for each other: a loop that is blocked by its program must not starve the keeper's. Where two
of them read at the same time, the one that took what the other waits for wakes the other's reader.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Final, NamedTuple, Protocol

from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.lookout import AGREED, Lookout
from leasehold.wires.sockets import has_something
from leasehold.wires.zookeeper_errors import NotSent
from leasehold.wires.zookeeper_messages import Malformed, Reply, Request

CHUNK: Final = 65536
LONGEST_MESSAGE: Final = 64 * 2**20
PROMISED: Final = 2.0
"""A reader that did not look around for so long is not there any more, in seconds."""
Later = tuple[type[OSError], ...]
_HIGHEST_NUMBER: Final = 2**31 - 1


class Station(Protocol):
    """Where callers wait: an event loop, or `THREADS`."""

    def is_closed(self) -> bool:
        """Whether nobody can be waiting there any more."""
        ...


class _Threads:
    def is_closed(self) -> bool:
        return False


THREADS: Final = _Threads()


class PipeBell:
    """Rings for a thread that waits for a socket: a pipe can be waited for at the same time."""

    hearing = _ringing = -1  # an interruption may leave it half made

    def __init__(self) -> None:
        self.hearing, self._ringing = os.pipe()
        os.set_blocking(self.hearing, False)
        os.set_blocking(self._ringing, False)

    def ring(self) -> None:
        """Wake who waits, or will wait."""
        with contextlib.suppress(OSError):  # it has rung often enough, or nobody is there any more
            os.write(self._ringing, b".")

    def heard(self) -> None:
        """Let it be silent again."""
        with contextlib.suppress(OSError):
            os.read(self.hearing, 64)

    def __del__(self) -> None:
        for end in (self.hearing, self._ringing):
            with contextlib.suppress(OSError):
                os.close(end)


class Ringing(Protocol):
    """Wakes somebody."""

    def ring(self) -> None:
        """Wake who waits, or will wait."""
        ...


class Listener(ABC):
    """Somebody who waits for something to come over a line."""

    __slots__ = ("bell",)

    def __init__(self) -> None:
        self.bell: Ringing | None = None

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has come."""

    def ring(self) -> None:
        """Wake it."""
        bell = self.bell
        if bell is not None:
            bell.ring()


class Answer(Listener):
    """The answer to one request, when it is there."""

    __slots__ = ("_number", "_reply")

    def __init__(self, number: int) -> None:
        self.bell: Ringing | None = None
        self._number = number
        self._reply: Reply | None = None

    @property
    def done(self) -> bool:
        """Whether it is there."""
        return self._reply is not None

    @property
    def reply(self) -> Reply:
        """The answer; only once it is `done`."""
        assert self._reply is not None
        return self._reply

    def settle(self, number: int, reply: Reply) -> None:
        """It has come. ZooKeeper answers in order, so any other number means that something was lost."""
        if number != self._number:
            raise Malformed("it answers another question")
        self._reply = reply
        if self.bell is not None:
            self.ring()


class Watched(Protocol):
    """Nodes of one folder, and how many of them may stay."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        ...

    @property
    def may_stay(self) -> int:
        """So many are not waited for."""
        ...

    def without(self, name: str) -> Watched:
        """The others."""
        ...


class Watch(Listener):
    """Done when so few of some nodes are left. It keeps little of its own: thousands may wait for one each."""

    __slots__ = ("folder", "left", "line")

    def __init__(self, folder: str, nodes: Watched) -> None:
        super().__init__()
        self.folder, self.left = folder, nodes
        self.line: Line | None = None
        """Where the news will come from, once it was begun."""

    def __iter__(self) -> Iterator[Watch]:
        """Stand for those who watch a node where there is only one."""
        yield self

    def gone(self, name: str) -> None:
        """A node was deleted, or is not there."""
        self.left = self.left.without(name)
        if self.done:
            self.ring()

    @property
    def done(self) -> bool:
        """Whether so few are left."""
        return len(self.left.names) <= self.left.may_stay

    @property
    def begun_on(self) -> Line:
        """Its line; only once it was begun."""
        assert self.line is not None
        return self.line


class _Reader(NamedTuple):
    """Who reads in a station, until when it is sure to look around, and how to wake it."""

    who: object
    promised: float
    wake: Callable[[], object]


class Line:
    """A connection on which the session is established. Every method may be called from any thread; none blocks."""

    def __init__(self, sock: socket.socket, endpoint: str, now: float, later: Later) -> None:
        """`later` are the errors by which the socket says that it is not ready."""
        self.endpoint, self._later = endpoint, later
        self.failure: str | None = None
        """Why it is of no more use."""
        self.seen = 0
        """The latest transaction that an answer spoke of."""
        self.heard_at = self.sent_at = now
        self.asked_at = monotonic()
        """When the latest requests were about to be sent, on the clock of those who look out for answers."""
        self._sock, self._lock = sock, threading.Lock()
        number = sock.fileno()
        self.lookout = Lookout(lambda _milliseconds: has_something(number), AGREED)
        """For the thread that reads."""
        self._out, self._in = bytearray(), bytearray()
        self._moving = False
        """Set while bytes are being moved. Found set by another, it tells that an interruption has lost some."""
        self._number = 0
        self._unanswered: deque[Answer] = deque()
        self._watches: dict[str, dict[str, Iterable[Watch]]] = {}
        """By folder and by name, for the names are kept elsewhere as well; and paths would be kept only here."""
        self._readers: dict[Station, _Reader] = {}
        self._resting: dict[Station, dict[Listener, None]] = {}
        self._bell_for_threads: PipeBell | None = None

    # Sending

    def send(self, requests: Sequence[Request], now: float, watch: Watch | None = None) -> list[Answer]:
        """Send requests together; raises `NotSent` if nothing of them can have left. `watch` begins with them."""
        with self._lock:
            self._check()
            answers = []
            for request in requests:
                answers.append(answer := Answer(self._next_number()))
                self._out += messages.framed(answer._number, request)
            if watch is not None:
                watch.line = self
                watches = self._watches.setdefault(watch.folder, {})
                for name in watch.left.names:
                    watches[name] = (*watches[name], watch) if name in watches else watch
            self._unanswered.extend(answers)
            self.sent_at, self.asked_at = now, monotonic()
            self._flush()
        return answers

    def ping(self, now: float) -> None:
        """Keep the session alive."""
        with self._lock:
            self._check()
            self._out += messages.ping()
            self.sent_at = now
            self._flush()

    def unwatch(self, watch: Watch) -> None:
        """Nobody is interested any more. The server still tells, once, and is not listened to."""
        with self._lock:
            for name in watch.left.names:
                self._unwatch(watch, name)

    def missed(self, watch: Watch, name: str) -> None:
        """A node was gone before it was watched: the server will not tell."""
        with self._lock:
            self._unwatch(watch, name)
            watch.gone(name)

    def _unwatch(self, watch: Watch, name: str) -> None:
        others = tuple(one for one in self._forget_watches(watch.folder, name) if one is not watch)
        if others:
            self._watches.setdefault(watch.folder, {})[name] = others

    def _forget_watches(self, folder: str, name: str) -> Iterable[Watch]:
        watches = self._watches.get(folder, {})
        forgotten = watches.pop(name, ())
        if not watches:
            self._watches.pop(folder, None)
        return forgotten

    def _check(self) -> None:
        if self._moving:
            self._fail("a request was interrupted half-way")
        if self.failure is not None:
            raise NotSent(f"the connection to ZooKeeper at {self.endpoint} is over: {self.failure}")

    def _next_number(self) -> int:
        self._number = self._number + 1 if self._number < _HIGHEST_NUMBER else 1
        return self._number

    def _flush(self) -> None:
        self._moving = True
        try:
            sent = self._sock.send(self._out) if self._out else 0
        except self._later:
            sent = 0
        except OSError as error:
            self._fail(_words(error))
            sent = 0
        del self._out[:sent]
        self._moving = False

    # Receiving

    @property
    def socket(self) -> int:
        """The number of its socket."""
        return self._sock.fileno()

    @property
    def has_more_to_send(self) -> bool:
        """Whether the socket did not take everything yet."""
        return bool(self._out)

    @property
    def is_idle(self) -> bool:
        """Whether everything was answered."""
        return not self._unanswered

    def receive(self, now: float, station: Station) -> None:
        """Take what has arrived, and hand it out."""
        with self._lock:
            if self._moving:
                self._fail("an answer was interrupted half-way")
            if self.failure is not None:
                return
            if self._out:
                self._flush()
            self._moving, heard = True, False
            try:
                while data := self._sock.recv(CHUNK):
                    self._in += data
                    heard = True
                    if len(data) < CHUNK and len(self._later) == 1:
                        break  # with TLS, more may have arrived than the system knows of
                else:
                    self._fail("the server closed it")
            except self._later:
                pass
            except OSError as error:
                self._fail(_words(error))
            self._hand_out(now)
            self._moving = False
            for other, reader in self._readers.items() if heard else ():  # for nothing, they would never stop
                if other is not station:
                    reader.wake()

    def _hand_out(self, now: float) -> None:
        try:
            while self._in and (message := messages.frame_in(self._in, LONGEST_MESSAGE)) is not None:
                number, reply = messages.reply_in(message)
                # Only a whole message counts: behind a length that is wrong, all that follows would be swallowed.
                self.heard_at = now
                if number == messages.EVENT:
                    folder, _, name = messages.event_in(reply.body)[1].rpartition("/")
                    # Whatever happened to it: the server has forgotten the watch, and who listens looks again.
                    for watch in self._forget_watches(folder, name):
                        watch.gone(name)
                elif number == messages.PONG:
                    continue
                elif self._unanswered:
                    self._unanswered.popleft().settle(number, reply)
                    # Not of any other message: no server lets one in who claims to have seen what is yet to come.
                    self.seen = max(self.seen, reply.zxid)
                else:
                    raise Malformed("it answers a question that was not asked")
        except Malformed as error:
            self._fail(f"it sent a message that cannot be read: {error}")

    # Who reads

    def begin_reading(self, station: Station, who: object, now: float, wake: Callable[[], object]) -> bool:
        """Whether the caller is the one who reads now, in its station, for a moment; it can be woken from others.

        An interruption may have made a reader go away without a word: its thread comes again, or it is late.
        """
        with self._lock:
            reader = self._readers.get(station)
            if reader is not None and reader.who != who and now < reader.promised:
                return False
            self._readers[station] = _Reader(who, now + PROMISED, wake)
            return True

    def bell_for_threads(self) -> PipeBell:
        """The bell of the thread that reads."""
        if (bell := self._bell_for_threads) is None:
            with self._lock:
                if (bell := self._bell_for_threads) is None:
                    bell = self._bell_for_threads = PipeBell()
        return bell

    def end_reading(self, station: Station, who: object) -> None:
        """Let somebody else read, if it was this one who did."""
        with self._lock:
            reader = self._readers.get(station)
            if reader is None or reader.who != who:
                return
            del self._readers[station]
            if self._readers:
                for closed in [one for one in self._readers if one.is_closed()]:
                    del self._readers[closed]
            if self._resting:
                self._ring_next(station)
            if self.failure is not None and not self._readers:
                self._sock.close()

    def begin_resting(self, station: Station, listener: Listener) -> bool:
        """Have the listener rung when it should read, or has what it waits for; False: somebody must read now."""
        with self._lock:
            if station not in self._readers or listener.done or self.failure is not None:
                return False
            self._resting.setdefault(station, {})[listener] = None
            return True

    def resting_in(self, station: Station) -> int:
        """How many wait to be rung there."""
        return len(self._resting.get(station, ()))

    def end_resting(self, station: Station, listener: Listener) -> None:
        """The listener goes on, or away; if it was rung in order to read, the next one is."""
        with self._lock:
            resting = self._resting.get(station, {})
            resting.pop(listener, None)
            if not resting:
                self._resting.pop(station, None)
            elif station not in self._readers:
                self._ring_next(station)

    def _ring_next(self, station: Station) -> None:
        for listener in self._resting.get(station, ()):
            listener.ring()
            return

    # The end

    def fail(self, why: str) -> None:
        """Use it no more."""
        with self._lock:
            self._fail(why)

    def _fail(self, why: str) -> None:
        if self.failure is None:
            self.failure = why
            # Who still looks at the socket is woken by this, and the last of them closes it: its number must not be
            # given to another one meanwhile.
            with contextlib.suppress(OSError):  # it is not connected any more
                self._sock.shutdown(socket.SHUT_RDWR)
            for resting in list(self._resting.values()):
                for listener in list(resting):
                    listener.ring()
            for reader in self._readers.values():
                reader.wake()
        if not self._readers:
            self._sock.close()

    def forked(self) -> None:
        """In a forked child: let go of the socket without a word; it is the parent's."""
        self.failure, self._lock = "it belongs to the parent process", threading.Lock()
        self._sock.close()

    def __del__(self) -> None:
        self._sock.close()


def _words(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
