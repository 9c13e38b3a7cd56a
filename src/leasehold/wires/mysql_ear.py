"""Hearing wake-ups on a server that cannot notify: a connection sleeps in the server, and who has news interrupts it.

The connection of an engine that listens holds a lock of the server (GET_LOCK) under a name that only it has: its
address. Who wakes somebody there leaves a letter, with the transaction that frees the name, and then interrupts the
sleep of whoever holds that lock (KILL QUERY). If nobody holds it, nobody hears there any more.

An interruption that comes between two sleeps is lost. So the statement that sleeps looks for letters first: a letter
that was committed before it began is seen by it, and an interruption after that ends it.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from leasehold.wires.mysql_errors import INTERRUPTED
from leasehold.wires.mysql_line import NUDGE, Line
from leasehold.wires.mysql_packets import Answers, Nonsense, written
from leasehold.wires.postgres_errors import cut_off, nonsense
from leasehold.wires.sql_listen import SOMEBODY
from leasehold.wires.sql_table import Request, Statement

NAPS_MS: Final = (770, 910, 830, 970)
"""For how long the server sleeps at a time, in milliseconds and in turn: who was not interrupted looks for letters
then, and a listener whose process is gone is not listened for much longer.

They differ, and a turn of a queue is no multiple of any: MariaDB has one mutex for all that sleep, and an interruption
that finds it taken lasts two seconds, in which nobody else is interrupted. Those who then take turns by the clock would
meet each other again, and again.
"""
SILENCE: Final = 10
"""After how long without a word the server lets go of a listener, in seconds."""
MOST_LETTERS: Final = 16
"""So many letters are taken away at once: each such step is written to the server's disk."""
KEEP_LETTERS: Final = 60_000_000
"""After so long nobody comes for a letter any more, in microseconds."""
_ADDRESS: Final = re.compile(r"lh:[0-9a-f]{32}", re.ASCII)
_OPEN: Final = written("listen", "SET SESSION wait_timeout = $2; SELECT GET_LOCK($1, 0)")
_LETTERS: Final = written("letters", "SELECT letter, holder FROM leasehold_wake WHERE address = $1")
_SLEEP: Final = written(
    "sleep", "SELECT SLEEP(IF((SELECT COUNT(*) FROM leasehold_wake WHERE address = $1) > $2, 0, $3 / 1000))"
)
_TAKE_AWAY: Final = written("take_away", "DELETE FROM leasehold_wake WHERE address = $1 AND FIND_IN_SET(letter, $2)")

_LEAVE_LETTER: Final = """
INSERT INTO leasehold_wake (address, letter, holder, since)
SELECT $1, $2, $3, {now} FROM DUAL WHERE IS_USED_LOCK($1) IS NOT NULL
"""
_INTERRUPT: Final = "KILL QUERY IS_USED_LOCK($1)"
# The same for whoever is the head of a name's queue, just behind the statement that has freed the name, if it has. A
# variable carries from one statement to the next whose sleep is to be interrupted.
_FIND_HEAD: Final = """
SET @leasehold_ear = IF(ROW_COUNT() = 1, (
    SELECT IF(address LIKE 'lh:%' AND IS_USED_LOCK(address) IS NOT NULL, address, NULL) FROM leasehold_waiter
    WHERE namespace = $1 AND name = $2 AND until > {now} ORDER BY seq LIMIT 1), NULL)
"""
_LEAVE_FOR_HEAD: Final = """
INSERT INTO leasehold_wake (address, letter, holder, since)
SELECT w.address, $3, w.holder, {now} FROM leasehold_waiter AS w
JOIN leasehold_lease AS l ON l.namespace = w.namespace AND l.name = w.name
WHERE w.namespace = $1 AND w.name = $2 AND w.until > {now} AND l.holder IS NULL AND l.closed_until <= {now}
AND @leasehold_ear IS NOT NULL ORDER BY w.seq LIMIT 1
"""
_INTERRUPT_HEAD: Final = "KILL QUERY IS_USED_LOCK(COALESCE(@leasehold_ear, 'lh:nobody'))"
_OLD_LETTERS: Final = "SELECT address, letter FROM leasehold_wake WHERE since <= {now} - {keep} LIMIT 256"


class Post:
    """The requests that bring news to a listener."""

    def __init__(self, clock: str) -> None:
        self._leave = written("wake", _LEAVE_LETTER.format(now=clock))
        self._interrupt = written(NUDGE, _INTERRUPT)
        self._drop = written("drop_letter", "DELETE FROM leasehold_wake WHERE address = $1 AND letter = $2")
        self._find_head = written("find_head", _FIND_HEAD.format(now=clock))
        self._leave_for_head = written("leave_for_head", _LEAVE_FOR_HEAD.format(now=clock))
        self._interrupt_head = Request(Statement(_INTERRUPT_HEAD, NUDGE))
        self.old = Request(written("old_letters", _OLD_LETTERS.format(now=clock, keep=KEEP_LETTERS)))
        """Asks for letters that nobody has come for."""

    def leave(self, address: str, letter: str, holder: str) -> Request | None:
        """Leaves a letter, and answers whether somebody listens; None for one who does not listen at all."""
        return Request(self._leave, (address, letter, holder)) if _ADDRESS.fullmatch(address) else None

    def interrupt(self, address: str) -> Request:
        """Ends the listener's sleep."""
        return Request(self._interrupt, (address,))

    def to_head(self, namespace: str, name: str, letter: str) -> tuple[Request, Request, Request]:
        """For the head of a name's queue: finds its listener, leaves a letter, and behind the commit ends its sleep."""
        key = (namespace, name)
        return Request(self._find_head, key), Request(self._leave_for_head, (*key, letter)), self._interrupt_head

    def drop(self, address: str, letter: str) -> Request:
        """Takes away a letter."""
        return Request(self._drop, (address, letter))


class ListeningLine:
    """A connection that sleeps in the server, and is asked for news whenever its socket has something."""

    def __init__(self, line: Line, address: str) -> None:
        self._line, self.address = line, address
        self._seen: set[str] = set()
        """Letters that were read and are still there."""
        self._taken_away: list[str] = []
        self._answers = Answers()
        self._naps = itertools.cycle(NAPS_MS)

    @classmethod
    async def open(cls, line: Line, nonce: str, where: str, until: float) -> ListeningLine:
        """Make a listener of a connection."""
        address = f"lh:{nonce}"
        listener = cls(line, address)
        try:
            rows = await line.ask(Request(_OPEN, (address, SILENCE)), until, commits=False)
            if rows != [(1,)]:
                raise nonsense(rows, where)
            listener._sleep()
        except OSError:
            line.close()
            raise cut_off(where, commits=False) from None
        except BaseException:
            line.close()
            raise
        return listener

    @property
    def socket(self) -> int:
        """The number of its socket."""
        return self._line.stream.number

    def _sleep(self) -> None:
        """Look for letters, and sleep if there are none that are not known yet."""
        taken_away = sorted(self._seen) if len(self._seen) >= MOST_LETTERS else []
        left = len(self._seen) - len(taken_away)
        requests = [
            Request(_LETTERS, (self.address,)),
            Request(_SLEEP, (self.address, left, next(self._naps))),
        ]
        if taken_away:
            requests.insert(0, Request(_TAKE_AWAY, (self.address, ",".join(taken_away))))
        self._taken_away, self._answers = taken_away, Answers()
        self._line.send_now(requests)

    def notifications(self) -> list[tuple[str, str]]:
        """Read what the socket has; returns addresses and holders, and raises `ConnectionError` when it broke.

        Who has ended the sleep may have done so for anybody here: whom for is in a letter, which is asked for then.
        """
        heard: list[tuple[str, str]] = []
        try:
            before = len(self._answers.results)
            while self._line.take_in(self._answers):
                for position in range(before, len(self._answers.results)):
                    heard += self._understood(position)
                if self._answers.is_complete and self._go_on():
                    heard.append((self.address, SOMEBODY))
                before = len(self._answers.results)
        except (Nonsense, OSError) as error:
            raise ConnectionError from error
        return heard

    def _understood(self, position: int) -> list[tuple[str, str]]:
        """What the result at this position says."""
        letters_at = 1 if self._taken_away else 0
        if position < letters_at:
            self._seen.difference_update(self._taken_away)
        if position != letters_at:
            return []
        new = [(letter, holder) for letter, holder in self._answers.results[position] if letter not in self._seen]
        self._seen.update(letter for letter, _ in new)
        return [(self.address, holder) for _, holder in new]

    def _go_on(self) -> bool:
        """Sleep again; returns whether somebody has ended the last sleep."""
        error = self._answers.error
        if error is not None and error.code != INTERRUPTED:
            raise ConnectionError(error.words)
        self._sleep()
        return error is not None

    def close(self) -> None:
        """Close the connection, which lets go of the lock."""
        self._line.close()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection."""
        self._line.let_go()
