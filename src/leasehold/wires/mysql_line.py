"""One connection to MySQL or MariaDB that carries requests, one packet at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import Any, Final

from leasehold.errors import EngineError, quoted
from leasehold.keeping import log
from leasehold.wires.mysql_errors import DUPLICATE, NO_SUCH_THREAD, NOT_PREPARED, error_from
from leasehold.wires.mysql_packets import (
    PLAIN_OK,
    Answers,
    EachAnswer,
    Nonsense,
    Prepared,
    Queued,
    SqlError,
    asked,
    outcome,
    packets_behind,
    places_in,
    to_prepare,
    together,
)
from leasehold.wires.mysql_stream import Stream
from leasehold.wires.postgres_errors import cut_off, nonsense, unanswered, unreachable
from leasehold.wires.sockets import Sockets
from leasehold.wires.sql_table import Raced, Request, Row, Statement

NUDGE: Final = "nudge"
"""The name of a statement that stands last and may fail: all that mattered has been committed before it."""
COMMIT: Final = "commit"
_COMMITS: Final = frozenset({COMMIT, "hand_over", "release_to_next"})
"""The names of those that commit: with a nudge at the end, whatever stands in between may fail as well."""
NUDGED_WITHIN: Final = 0.1
"""For so long a nudge is waited for, in seconds. MariaDB needs 0.05 where it meets the end of what it interrupts."""


class Line:
    """One connection. It carries one packet of requests at a time; what leaves answers unread closes it."""

    def __init__(self, stream: Stream, address: str) -> None:
        self.stream, self._address = stream, address
        self.is_set_for: Any = None
        """What its session was last set for, as far as its user wants to remember."""
        self._posted = Answers()
        self._met: set[Statement] = set()
        self._prepared: dict[Statement, Prepared | None] = {}
        self._sizes: dict[tuple[Statement, ...], int] = {}
        """How long the answers to several statements were when they were shortest: so many bytes are waited for."""

    def doze(self) -> None:
        """Do not look for answers for a while, and leave the processor to others."""
        self.stream.doze()

    @property
    def sockets(self) -> Sockets:
        """Whose waiting is done on it now."""
        return self.stream.sockets

    @sockets.setter
    def sockets(self, sockets: Sockets) -> None:
        self.stream.use(sockets)

    async def ask(self, request: Request, until: float, *, commits: bool = True) -> list[Row]:
        """Send one request, a transaction of its own, and return its rows."""
        try:
            if request.statement.order is not None or type(request.statement) is Queued:
                row = await self._ask_prepared(request, until, commits=commits)
                if row is not None:
                    return [row]
            return (await self.ask_plainly([request], until, commits=commits))[0]
        except SqlError as error:
            raise error_from(error, self._address, commits=commits) from None

    async def _ask_prepared(self, request: Request, until: float, *, commits: bool) -> Row | None:
        """Carry out a statement that is prepared, or prepare it first.

        None where the server does not do so, and for the first use: it may be the last, and not worth a round trip.
        """
        queued = request.statement if type(request.statement) is Queued else None
        statement, known = request.statement if queued is None else queued.going_on, False
        try:
            prepared = self._prepared.get(statement)
            if prepared is None:
                prepared = await self._prepare(Request(statement, request.values), until)
                if prepared is None:
                    return None
            known = True
            execute = prepared.executed(request.values)
            if queued is None:
                return outcome(await self.stream.exchange(execute, until))
            return await self._go_on_after(Request(queued.waiting, request.values), execute, until)
        except SqlError as error:
            if error.code != NOT_PREPARED:
                raise
            del self._prepared[statement]  # a proxy may go on with another connection of its own
            return None
        except (Nonsense, OSError) as error:
            raise self._broken(error, sent=known and self.stream.has_sent, commits=commits) from None
        except BaseException:
            self.close()
            raise

    async def _go_on_after(self, waits: Request, execute: bytes, until: float) -> Row:
        """Wait in the server, and carry out what is prepared as soon as that is over, however it ended."""
        self.doze()
        waited, went_on = await self.stream.exchange_both(asked(waits), execute, until, least=PLAIN_OK + 1)
        outcome(waited)
        return outcome(went_on)

    async def _prepare(self, request: Request, until: float) -> Prepared | None:
        """None for the first use, and where the server refuses to: it has too many already, or is none but a proxy.

        Also where it sees other places for values than there are: some stand in what is a comment to it.
        """
        statement = request.statement
        if statement not in self._met:
            self._met.add(statement)
            return None
        if statement not in self._prepared:
            answer, prepared = await self.stream.exchange(to_prepare(statement), until), None
            if answer[:1] == b"\0":
                for _ in range(packets_behind(answer)):
                    await self.stream.packet(until)
                prepared = Prepared(answer, request) if places_in(answer) == len(statement.order or ()) else None
            self._prepared[statement] = prepared
        return self._prepared[statement]

    async def ask_all(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        """Send requests together and return the rows of each. After the first that fails, none is carried out.

        An error leaves the connection as it is, perhaps in a transaction.
        """
        try:
            return await self.ask_plainly(requests, until, commits=commits)
        except SqlError as error:
            if error.code == DUPLICATE:
                raise Raced from None
            raise error_from(error, self._address, commits=commits) from None

    async def ask_plainly(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        """The same, but an error of the server is raised as it is.

        A request may be several statements; its rows are those of the last one.
        """
        try:
            answers = await self._ask_each(requests, until) or await self._ask_together(requests, until)
        except (Nonsense, OSError) as error:
            raise self._broken(error, sent=self.stream.has_sent, commits=commits) from None
        except BaseException:
            self.close()
            raise
        return self._sorted(requests, answers)

    async def _ask_each(self, requests: Sequence[Request], until: float) -> Answers | None:
        """Carry out requests that are prepared, each in a packet of its own, whatever comes of those before it.

        None where they are to be sent in one text: for their first use, where the server does not prepare them, and
        where nothing is to be carried out behind what fails.
        """
        shape = tuple(one.statement for one in requests)
        if len(shape) == 1 or any(one.order is None or one not in self._met for one in shape):
            return None
        prepared = [self._prepared.get(one.statement) or await self._prepare(one, until) for one in requests]
        packets = [one.executed(request.values) for one, request in zip(prepared, requests, strict=True) if one]
        if len(packets) < len(requests):
            return None
        await self.stream.send_each(packets, until)
        least = max(self._sizes.get(shape, 0) - PLAIN_OK + 1, PLAIN_OK * len(requests))
        answers = EachAnswer([True] * len(requests))
        await self._read(requests, answers, least, until)
        if answers.error is None:
            self._sizes[shape] = min(self._sizes.get(shape, self.stream.heard), self.stream.heard)
        elif answers.error.code == NOT_PREPARED and not answers.succeeded:
            self._met, self._prepared = set(), {}  # a proxy goes on with another connection of its own
            return None
        else:
            del answers.results[answers.succeeded :]
        return answers

    async def _ask_together(self, requests: Sequence[Request], until: float) -> Answers:
        """Send requests in one text."""
        self._met.update(one.statement for one in requests)
        least, expected = 1, sum(request.statement.parts for request in requests)
        if type(requests[0].statement) is Queued:
            self.doze()
            least = PLAIN_OK + 1  # of one that waits for long, errors are heard at once
        elif expected > 1:
            least = PLAIN_OK * expected
        await self.stream.send(asked(requests[0]) if len(requests) == 1 else together(requests), until)
        answers = Answers()
        await self._read(requests, answers, least, until)
        return answers

    async def _read(self, requests: Sequence[Request], answers: Answers, least: int, until: float) -> None:
        """Read the answers, which have at least so many bytes; to a nudge, if there is one soon."""
        if requests[-1].statement.name != NUDGE:
            await self.stream.answers(until, answers, least=least)
            return
        expected = sum(request.statement.parts for request in requests)
        await self.stream.answers(until, answers, enough=expected - 1, least=least)
        try:
            await self.stream.answers(min(until, self.sockets.world.now() + NUDGED_WITHIN), answers)
        except TimeoutError:
            self.close()  # it still owes an answer; the server goes on with the nudge
            answers.results.append([])

    def post(self, request: Request) -> None:
        """Send a request whose answer is fetched later; raises `ConnectionError` when the connection broke."""
        self._posted = Answers()
        try:
            self.stream.send_now(asked(request))
        except OSError:
            self.close()
            raise ConnectionError from None

    async def prepare(self, requests: Sequence[Request], until: float) -> None:
        """Prepare what will be sent again and again; raises `OSError` when the connection broke."""
        for request in requests:
            self._met.add(request.statement)
            await self._prepare(request, until)

    def send_now(self, *requests: Request) -> Answers:
        """Send requests without waiting for anything; raises `OSError` when the connection broke.

        Each goes in a packet of its own, whatever comes of those before it. Returns what their answers are read into.
        """
        prepared = [self._prepared.get(request.statement) for request in requests]
        self.stream.send_now(
            *(
                asked(request) if one is None else one.executed(request.values)
                for request, one in zip(requests, prepared, strict=True)
            )
        )
        return EachAnswer([one is not None for one in prepared])

    def take_in(self, answers: Answers) -> bool:
        """Read what the socket has of the answers; False when that is nothing, `OSError` when the connection broke."""
        if not self.stream.receive():
            return False
        answers.feed(self.stream.inbox.packets())
        return True

    async def answer(self, until: float) -> list[Row] | None:
        """The answer to what was posted; None when it has not come by `until`, and then it may still come."""
        try:
            answers = await self.stream.answers(until, self._posted)
        except TimeoutError:
            return None
        except (OSError, Nonsense):
            self.close()
            raise ConnectionError from None
        except BaseException:
            self.close()
            raise
        if answers.error is not None:
            self.close()
            raise ConnectionError
        return answers.results[-1]

    def _sorted(self, requests: Sequence[Request], answers: Answers) -> list[list[Row]]:
        """The rows that each request asked for."""
        ends = _ends(requests)
        error, results = answers.error, answers.results
        if error is not None and len(results) >= _needed(requests, ends):
            if error.code != NO_SUCH_THREAD:
                log().warning(
                    "a waiter at %s could not be nudged and will look by itself: %s",
                    self._address,
                    quoted(error.words),
                )
            error, results = None, results + [[] for _ in range(ends[-1] - len(results))]
        if error is not None:
            raise error
        if len(results) != ends[-1]:
            self.close()
            raise nonsense(f"{len(results)} answers to {ends[-1]} statements", self._address)
        return [results[end - 1] for end in ends]

    def _broken(self, error: Nonsense | OSError, *, sent: bool, commits: bool) -> EngineError:
        """Close the connection, whatever stands unread in it, and say what its end means for a request."""
        self.close()
        if isinstance(error, Nonsense):
            return nonsense(error, self._address)
        if not sent:
            return unreachable(self._address, "the connection broke")
        failed = unanswered if isinstance(error, TimeoutError) else cut_off
        return failed(self._address, commits=commits)

    def is_usable(self) -> bool:
        """Whether an idle line can carry a request: it is open, and the server has not hung up."""
        return self.stream.is_quiet()

    def close(self) -> None:
        """Close the connection; the server then undoes what was not committed."""
        self.stream.close()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection."""
        self.stream.let_go()


def _needed(requests: Sequence[Request], ends: list[int]) -> float:
    """How many statements have to succeed: all but a nudge, or those up to a commit that one follows."""
    if requests[-1].statement.name != NUDGE:
        return inf
    committed = [end for request, end in zip(requests, ends, strict=True) if request.statement.name in _COMMITS]
    return committed[-1] if committed else ends[-1] - 1


def _ends(requests: Sequence[Request]) -> list[int]:
    """How many statements there are up to the end of each request."""
    return list(accumulate(request.statement.parts for request in requests))
