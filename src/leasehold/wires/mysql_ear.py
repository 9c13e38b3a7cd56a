"""Hearing wake-ups on a server that cannot notify: a connection waits in the server, and who has news interrupts it.

The connection of an engine that listens holds a lock of the server (GET_LOCK) under a name that only it has: its
address. Who wakes somebody there leaves a letter, and then interrupts the wait of whoever holds that lock (KILL QUERY).
If nobody holds it, nobody hears there any more.

What a listener waits for is another lock of that kind, the gate, which is the same for all and never opens: some
connection keeps it, and does nothing else. Not in SLEEP: all sleeps of a MariaDB share one mutex, and two interruptions
at one moment hold each other up there for two seconds. When the keeper is gone the server gives the gate to one of
those who wait for it. That one keeps it from then on, and its engine listens on another connection.

An interruption that comes between two waits is lost. So the statement that waits counts letters first: a letter
that was committed before it began is seen by it, and an interruption after that ends it.
"""

from __future__ import annotations

import re
from typing import Final

from leasehold.wires.mysql_errors import INTERRUPTED
from leasehold.wires.mysql_line import NUDGE, Line
from leasehold.wires.mysql_packets import Answers, Nonsense, prepared, written
from leasehold.wires.postgres_errors import cut_off, nonsense
from leasehold.wires.sql_table import Request, Row, Statement

NAP: Final = 1
"""For how long a listener waits at a time, in whole seconds: who was not interrupted looks for letters then, and a
listener whose process is gone is not listened for much longer."""
GATE: Final = "leasehold:gate"
"""The lock that all listeners wait for, in whatever database of the server they are."""
KEPT_FOR: Final = 86_400
"""After how long without a word the server lets go of who keeps the gate, in seconds. It need not be there to keep it:
should it be lost without the server's notice, it goes on keeping the gate, which is all that is wanted."""
SILENCE: Final = 10
"""After how long without a word the server lets go of a listener, in seconds."""
MOST_LETTERS: Final = 16
"""So many letters are taken away at once: each such step is written to the server's disk."""
KEEP_LETTERS: Final = 60_000_000
"""After so long nobody comes for a letter any more, in microseconds."""
ADDRESS_DIGITS: Final = 15
"""An address is a number of so many hexadecimal digits: one that the server can keep for the next statement."""
_ADDRESS: Final = re.compile(rf"lh:[0-9a-f]{{{ADDRESS_DIGITS}}}", re.ASCII)
_OPEN: Final = written("listen", "SET SESSION wait_timeout = $2; SELECT GET_LOCK($1, 0), GET_LOCK($3, 0)")
_KEEP: Final = Request(written("keep_gate", "SET SESSION wait_timeout = $1"), (KEPT_FOR,))
_LETTERS: Final = prepared(
    "letters",
    "SELECT CONCAT(letter, ' ', holder) FROM leasehold_wake WHERE address = $1 AND NOT FIND_IN_SET(letter, $2)",
)
_WAIT: Final = prepared(
    "wait_at_gate",
    "SELECT GET_LOCK($3, IF((SELECT COUNT(*) FROM leasehold_wake WHERE address = $1) > $2, 0, $4))",
)
_GATE_IS_OURS: Final = [(1,)]
_TAKE_AWAY: Final = written("take_away", "DELETE FROM leasehold_wake WHERE address = $1 AND FIND_IN_SET(letter, $2)")

_LEAVE_LETTER: Final = """
INSERT INTO leasehold_wake (address, letter, holder, since)
SELECT $1, $2, $3, {now} FROM DUAL WHERE IS_USED_LOCK($1) IS NOT NULL
"""
_INTERRUPT: Final = "KILL QUERY IS_USED_LOCK($1)"
_INTERRUPT_NEXT: Final = (
    f"KILL QUERY IS_USED_LOCK(CONCAT('lh:', LPAD(LOWER(HEX(LAST_INSERT_ID())), {ADDRESS_DIGITS}, '0')))"
)
_OLD_LETTERS: Final = "SELECT address, letter FROM leasehold_wake WHERE since <= {now} - {keep} LIMIT 256"


class Post:
    """The requests that bring news to a listener."""

    def __init__(self, clock: str) -> None:
        self._leave = written("wake", _LEAVE_LETTER.format(now=clock))
        self._interrupt = written(NUDGE, _INTERRUPT)
        self._drop = written("drop_letter", "DELETE FROM leasehold_wake WHERE address = $1 AND letter = $2")
        self.interrupt_next = Request(prepared(NUDGE, _INTERRUPT_NEXT))
        """Ends the wait of the listener that the connection has just left a letter for, if it has."""
        self.old = Request(written("old_letters", _OLD_LETTERS.format(now=clock, keep=KEEP_LETTERS)))
        """Asks for letters that nobody has come for."""

    def leave(self, address: str, letter: str, holder: str) -> Request | None:
        """Leaves a letter, and answers whether somebody listens; None for one who does not listen at all."""
        return Request(self._leave, (address, letter, holder)) if _ADDRESS.fullmatch(address) else None

    def interrupt(self, address: str) -> Request:
        """Ends the listener's wait."""
        return Request(self._interrupt, (address,))

    def drop(self, address: str, letter: str) -> Request:
        """Takes away a letter."""
        return Request(self._drop, (address, letter))


class Gate:
    """The connection that keeps the gate, where it is one of this engine's."""

    def __init__(self) -> None:
        self._keeper: Line | None = None

    def keep(self, line: Line) -> None:
        """Have a connection keep the gate that the server has given to it; raises `OSError` when it broke."""
        self.close()  # whatever was kept by another one is not any more
        self._keeper = line
        line.send_now(_KEEP)

    def close(self) -> None:
        """Close the connection; somebody else will keep the gate."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on keeping it."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.let_go()


class ListeningLine:
    """A connection that waits in the server, and is asked for news whenever its socket has something."""

    def __init__(self, line: Line, address: str, gate: Gate) -> None:
        self._line, self.address, self._gate = line, address, gate
        self._keeps_gate = False
        self._seen: set[str] = set()
        """Letters that were read and are still there."""
        self._asked: list[Statement] = []
        self._answers = Answers()

    @classmethod
    async def open(cls, line: Line, nonce: str, where: str, gate: Gate, until: float) -> ListeningLine | None:
        """Make a listener of a connection; None when nobody kept the gate, and this connection does so instead."""
        listener = cls(line, f"lh:{nonce[-ADDRESS_DIGITS:]}", gate)
        try:
            listens = await listener._begin(where, until)
        except OSError:
            line.close()
            raise cut_off(where, commits=False) from None
        except BaseException:
            line.close()
            raise
        return listener if listens else None

    async def _begin(self, where: str, until: float) -> bool:
        """Wait for the first time; returns whether there is something to wait for."""
        rows = await self._line.ask(Request(_OPEN, (self.address, SILENCE, GATE)), until, commits=False)
        if rows not in ([(1, 0)], [(1, 1)]):
            raise nonsense(rows, where)
        if rows == [(1, 1)]:
            self._gate.keep(self._line)
            return False
        await self._line.prepare(self._to_wait(set()), until)
        self._wait()
        return True

    @property
    def socket(self) -> int:
        """The number of its socket."""
        return self._line.stream.number

    def _to_wait(self, known: set[str]) -> list[Request]:
        """Waits, unless there are letters that are not known, and looks for those when that is over, however it ended.

        The server has been told of both by then: nobody has to hear that the wait is over to ask for the letters.
        """
        return [
            Request(_WAIT, (self.address, len(known), GATE, NAP)),
            Request(_LETTERS, (self.address, ",".join(known))),
        ]

    def _wait(self) -> None:
        if len(self._seen) < MOST_LETTERS:
            requests = self._to_wait(self._seen)
        else:
            take_away = Request(_TAKE_AWAY, (self.address, ",".join(sorted(self._seen))))
            requests = [take_away, *self._to_wait(set())]
        self._asked, self._answers = [one.statement for one in requests], self._line.send_now(*requests)

    def notifications(self) -> list[tuple[str, str]]:
        """Read what the socket has; returns addresses and holders, and raises `ConnectionError` when it broke.

        Who has ended the wait may have done so for anybody here: whom for is in a letter. With a token behind the
        holder, it has been handed the name.
        """
        heard: list[tuple[str, str]] = []
        try:
            while self._line.take_in(self._answers):
                if self._answers.is_complete:
                    heard += self._understood()
                    self._wait()
        except (Nonsense, OSError) as error:
            raise ConnectionError from error
        return heard

    def _understood(self) -> list[tuple[str, str]]:
        """What the answers say.

        An interruption is an error or, where it meets nothing but the wait, a lock of which the server cannot say
        whether it was had (NULL). Whatever it hits, the next wait counts the letters that are not known yet.
        """
        error, rows = self._answers.error, dict(zip(self._asked, self._answers.results, strict=True))
        if error is not None and error.code != INTERRUPTED:
            raise ConnectionError(error.words)
        if rows[_WAIT] == _GATE_IS_OURS:
            self._keep_gate()
        if rows.get(_TAKE_AWAY):
            self._seen.clear()
        letters = _letters_in(rows[_LETTERS])
        new = [letter for letter in letters if letter not in self._seen]
        self._seen.update(new)
        return [(self.address, letters[letter]) for letter in new]

    def _keep_gate(self) -> None:
        """Who listens here does so on another connection from now on.

        This one still holds its address: who frees a name meanwhile does not pass by those who are about to ask again.
        """
        self._keeps_gate = True
        self._gate.keep(self._line)
        raise ConnectionError("it keeps the gate from now on")

    def close(self) -> None:
        """Close the connection, which lets go of the lock."""
        if not self._keeps_gate:
            self._line.close()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection."""
        if not self._keeps_gate:
            self._line.let_go()


def _letters_in(rows: list[Row]) -> dict[str, str]:
    """What each letter says, by its name."""
    try:
        return dict(said.split(" ", 1) for [said] in rows)
    except (AttributeError, ValueError):
        raise Nonsense("letters that cannot be read") from None
