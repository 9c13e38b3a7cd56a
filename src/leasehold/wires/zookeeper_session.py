"""A session with a ZooKeeper ensemble as its client knows it, and until when the leader surely keeps it.

A follower answers pings and questions by itself, and tells the leader within a tick whom it has heard of. If it is cut
off from the leader before that, the leader's clock for the session has been running for longer than the client thinks.
So an answer proves nothing about the leader's clock by itself. Two things do:

- The session was (re-)established: a follower asks the leader for that, and the leader starts the clock anew.
- The leader has answered a request that was sent at least a tick after another one had reached the same follower. On
  the follower's one connection to the leader, the news of the earlier request went first.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from leasehold.wires.zookeeper_dial import Dialled
from leasehold.wires.zookeeper_line import Line

STEPS: Final = 4
"""How finely the times of earlier requests are remembered: in parts of a tick."""
LONGEST_DIAL: Final = 1.0
"""For how long others wait while one connects; then they try by themselves."""


class Session:
    """Shared by all engines of a client, in their threads and loops."""

    def __init__(self, ttl: float, timeout: float, tick: float) -> None:
        """For leases of this TTL. The server may grant less, or more, than the timeout that is asked for."""
        self.ttl, self.timeout, self._tick = ttl, timeout, tick
        self._asked = timeout
        self.id = 0
        self.dead = False
        """Whether the server has ended it, as far as is known."""
        self.line: Line | None = None
        self._password = b""
        self._seen = 0
        self._lock = threading.Lock()
        self._known_from = 0.0
        """The leader keeps the session for its timeout from then on, at least."""
        self._answered: deque[float] = deque()
        """When requests were sent that were answered on this connection, oldest first."""
        self._connected_at = self._contact = 0.0
        self._dialler: object = None
        self._dialling_until = 0.0

    # Until when

    def lasts_until(self, moment: float) -> bool:
        """Whether the leader keeps it until then, whatever happens."""
        return self.id != 0 and self._known_from + self.timeout >= moment

    def can_last(self, seconds: float) -> bool:
        """Whether it can ever be known to last so long: not if the server has granted too little."""
        return self.timeout >= seconds

    def seems_over(self, now: float) -> bool:
        """Whether there is little hope that the server still has it."""
        return self.dead or (self.id != 0 and now >= self._contact + self.timeout)

    def answered(self, line: Line, sent_at: float, *, by_leader: bool) -> None:
        """A request on this line was answered that was sent then."""
        with self._lock:
            if line is not self.line:
                return
            self._contact = max(self._contact, sent_at)
            if by_leader:
                while self._answered and self._answered[0] <= sent_at - self._tick:
                    self._known_from = max(self._known_from, self._answered.popleft())
            if not self._answered or sent_at >= self._answered[-1] + self._tick / STEPS:
                self._answered.append(sent_at)

    # Its connection

    def usable_line(self, now: float, who: object) -> Line | None:
        """The connection, unless it is over or being replaced."""
        line = self.line
        if line is None or line.failure is not None or (self._dialler is not None and not self._may_dial(now, who)):
            return None
        return line

    def _may_dial(self, now: float, who: object) -> bool:
        """An interruption may have made one who connected go away without a word: it comes again, or is late."""
        return self._dialler is None or self._dialler == who or now >= self._dialling_until

    def begin_dialling(self, now: float, who: object) -> bool:
        """Whether the caller is the one who connects now."""
        with self._lock:
            if not self._may_dial(now, who):
                return False
            self._dialler, self._dialling_until = who, now + LONGEST_DIAL
            return True

    def end_dialling(self, who: object) -> None:
        """Let others use the connection, or try to connect."""
        with self._lock:
            if self._dialler == who:
                self._dialler = None

    def hello(self) -> tuple[int, float, int, bytes]:
        """What to tell a server: the latest transaction seen, the timeout, the id and the password."""
        if self.line is not None:
            self._seen = max(self._seen, self.line.seen)
        return self._seen, self._asked, self.id, self._password

    def connected(self, dialled: Dialled) -> bool:
        """A server has answered; False when it says that the session is over."""
        line, answer = dialled.line, dialled.connected
        with self._lock:
            if answer.timeout <= 0 or answer.session == 0 or self.dead or (self.id and self.id != answer.session):
                self.dead = True
                return False
            previous, self.line = self.line, line
            self.id, self._password, self.timeout = answer.session, answer.password, answer.timeout
            self._known_from = self._connected_at = self._contact = dialled.sent_at
            self._answered = deque([dialled.sent_at])
        if previous is not None:
            previous.fail("another connection has replaced it")
        return True

    def hang_up(self, why: str) -> None:
        """Give back the connection. The session goes on for its timeout, and can be taken up again."""
        line = self.line
        if line is not None:
            line.fail(why)

    def end(self) -> None:
        """The server has ended it."""
        self.dead = True
        self.hang_up("its session is over")

    def forked(self) -> None:
        """In a forked child: it is the parent's."""
        self.dead = True
        if self.line is not None:
            self.line.forked()
