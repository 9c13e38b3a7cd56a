"""One connection to PostgreSQL, through libpq's non-blocking calls.

libpq has no time-out for an answer, and psycopg's own command path costs several times what libpq's does. So requests
are sent and answers read here, each within its own deadline, in whichever world the sockets are waited for in. A thread
looks for the answer for a moment before it sleeps (`leasehold.wires.lookout`).
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import pq

from leasehold.errors import EngineError
from leasehold.wires.lookout import Lookout
from leasehold.wires.postgres_errors import (
    UNIQUE_VIOLATION,
    SqlError,
    cut_off,
    error_from,
    nonsense,
    unanswered,
    unreachable,
)
from leasehold.wires.sockets import LONGEST_POLL, BlockingSockets, Sockets
from leasehold.wires.sql_table import Raced, Request, Row, Statement

_FATAL: Final = pq.ExecStatus.FATAL_ERROR
_SYNC: Final = pq.ExecStatus.PIPELINE_SYNC
_ABORTED: Final = pq.ExecStatus.PIPELINE_ABORTED
_BAD: Final = pq.ConnStatus.BAD
_FAILURES: Final = (OSError, psycopg.Error, SqlError)


def _is_true(text: bytes) -> bool:
    return text == b"t"


_READERS: Final[Mapping[int, Callable[[bytes], Any]]] = {16: _is_true, 20: int, 21: int, 23: int}
"""How values are read, by the type's number; all else is text."""


class Line:
    """One connection. It carries one request at a time, or several together; what leaves answers unread closes it."""

    def __init__(self, pgconn: pq.abc.PGconn, sockets: Sockets, address: str) -> None:
        pgconn.nonblocking = 1
        self.sockets = sockets
        """Whoever uses the line waits for it in a world of its own."""
        self.prepares = True
        """Whether the server remembers a statement until it is sent again. Behind some poolers it does not."""
        self.is_set_for: Any = None
        """What its session was last set for, as far as its user wants to remember."""
        self._pgconn, self._address = pgconn, address
        self._prepared: dict[Statement, bytes] = {}
        self._strays: list[pq.abc.PGresult] = []
        """Messages that answer nothing. One that was asked for may be among them, and an older one was taken for it."""
        pgconn.notice_handler = partial(_note_stray, self._strays)
        readable = select.poll()
        readable.register(pgconn.socket, select.POLLIN)
        self._arrived = readable.poll
        """Whether there is something to read, or the server has hung up; called with milliseconds."""
        lookout = Lookout(readable.poll)
        self._look_out, self.doze = lookout.look, lookout.doze

    @property
    def socket(self) -> int:
        """The number of its socket."""
        return self._pgconn.socket

    @property
    def claimed_pid(self) -> int:
        """The process that serves this connection, as told at its beginning; a pooler tells another number."""
        return self._pgconn.backend_pid

    @property
    def server_version(self) -> int:
        """150004 for PostgreSQL 15.4."""
        return self._pgconn.server_version

    async def ask(self, request: Request, until: float, *, commits: bool = True) -> list[Row]:
        """Send one statement, a transaction of its own, and return its rows."""
        try:
            return await self.ask_plainly(request, until, commits=commits)
        except SqlError as error:
            raise error_from(error, self._address, commits=commits) from None

    async def ask_plainly(self, request: Request, until: float, *, commits: bool = True) -> list[Row]:
        """The same, but an error of the server is raised as it is."""
        sent = False
        try:
            name = self._prepared.get(request.statement)
            if name is None and self.prepares:
                name = await self._prepare(request.statement, until)
            began = monotonic()
            self._send(request, name)
            sent = True
            if type(self.sockets) is BlockingSockets and self._look_out(began):
                self._consume()
            result = await self._result(until)
        except _FAILURES as error:
            raise self._failure(error, sent=sent, commits=commits) from None
        except BaseException:
            self.close()
            raise
        self._check_strays()
        return self._rows(result)

    async def ask_all(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        """Send statements together and return the rows of each. After the first that fails, none is carried out.

        An error leaves the connection as it is, perhaps in a transaction.
        """
        sent = False
        try:
            self._pgconn.enter_pipeline_mode()
            expected = []
            for request in requests:
                name = self._prepared.get(request.statement)
                if name is None and self.prepares:
                    name = self._send_prepare(request.statement)
                    expected.append(False)
                self._send(request, name)
                expected.append(True)
            began = monotonic()
            self._pgconn.pipeline_sync()
            sent = True
            if type(self.sockets) is BlockingSockets and self._look_out(began):
                self._consume()
            results = [await self._result(until) for _ in expected]
            await self._finish_pipeline(until)
            self._pgconn.exit_pipeline_mode()
        except _FAILURES as error:
            failure = self._failure(error, sent=sent, commits=commits)
            if isinstance(failure, SqlError):
                self.close()  # the rest of the answers is not worth reading
                if failure.sqlstate == UNIQUE_VIOLATION:
                    raise Raced from None
                raise error_from(failure, self._address, commits=commits) from None
            raise failure from None
        except BaseException:
            self.close()
            raise
        self._check_strays()
        return [self._rows(result) for result, is_asked in zip(results, expected, strict=True) if is_asked]

    def _check_strays(self) -> None:
        """See whether something follows the answer, which then may be that to an earlier request."""
        self._pgconn.notifies()
        if self._strays:
            self.close()
            raise nonsense("more than was asked for", self._address)

    def post(self, request: Request) -> None:
        """Send a statement whose answer is fetched later; raises `ConnectionError` when the connection broke."""
        try:
            self._send(request, None)
            self._pgconn.flush()
        except psycopg.Error:
            self.close()
            raise ConnectionError from None

    async def answer(self, until: float) -> list[Row] | None:
        """The answer to what was posted; None when it has not come by `until`, and then it may still come."""
        try:
            result = await self._result(until)
        except TimeoutError:
            return None
        except _FAILURES:
            self.close()
            raise ConnectionError from None
        except BaseException:
            self.close()
            raise
        return self._rows(result)

    def _send(self, request: Request, name: bytes | None) -> None:
        values = [
            value.encode() if isinstance(value, str) else None if value is None else b"%d" % value
            for value in request.values
        ]
        if name is not None:
            self._pgconn.send_query_prepared(name, values)
        else:
            self._pgconn.send_query_params(request.statement.text.encode(), values)

    async def _prepare(self, statement: Statement, until: float) -> bytes:
        name = self._send_prepare(statement)
        try:
            await self._result(until)
        except BaseException:
            del self._prepared[statement]
            raise
        return name

    def _send_prepare(self, statement: Statement) -> bytes:
        name = self._prepared[statement] = statement.name.encode()
        self._pgconn.send_prepare(name, statement.text.encode())
        return name

    async def _result(self, until: float) -> pq.abc.PGresult:
        """The result of one statement. Raises `SqlError`, after reading what else there is of it."""
        pgconn, first = self._pgconn, None
        if pgconn.flush():
            await self._flush(until)
        while True:
            while pgconn.is_busy():
                await self._fill(until)
            result = pgconn.get_result()
            if result is None:
                break
            first = first or result
            if pgconn.status == _BAD:
                if first.status != _FATAL:
                    raise ConnectionError  # an answer counts only with its end: before that, nothing is committed
                break  # the server's last words: nothing follows them
        if first is None:
            raise ConnectionError
        if first.status in {_FATAL, _ABORTED}:
            state = first.error_field(pq.DiagnosticField.SQLSTATE)
            if state is None:  # these are libpq's words, not the server's
                raise ConnectionError
            words = first.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
            raise SqlError(state.decode(), words.decode("utf-8", "replace"))
        return first

    async def _fill(self, until: float) -> None:
        if type(self.sockets) is BlockingSockets:
            left = until - self.sockets.world.now()
            if not self._arrived(ceil(min(max(left, 0.0), LONGEST_POLL) * 1000)) and left <= LONGEST_POLL:
                raise TimeoutError
        elif not await self.sockets.ready(self._pgconn.socket, to_write=False, until=until):
            raise TimeoutError
        self._consume()

    def _consume(self) -> None:
        """Read what has arrived."""
        try:
            self._pgconn.consume_input()
        except psycopg.Error:
            if self._pgconn.is_busy():  # else the server said why before the connection broke
                raise

    async def _flush(self, until: float) -> None:
        """Send what did not fit into the socket at once, reading meanwhile, or both sides would wait for ever."""
        while self._pgconn.flush():
            if not await self.sockets.ready(self._pgconn.socket, to_write=True, until=until):
                raise TimeoutError
            if self._arrived(0):
                self._pgconn.consume_input()

    async def _finish_pipeline(self, until: float) -> None:
        while self._pgconn.is_busy():
            await self._fill(until)
        end = self._pgconn.get_result()
        if end is None or end.status != _SYNC:
            raise ConnectionError

    def _failure(self, error: Exception, *, sent: bool, commits: bool) -> EngineError | SqlError:
        """What a failure means for a request; all but the server's own errors end the connection."""
        if isinstance(error, SqlError):
            if self._pgconn.status == _BAD:
                self.close()
            return error
        self.close()
        if not sent:
            return unreachable(self._address, "the connection broke")
        failed = unanswered if isinstance(error, TimeoutError) else cut_off
        return failed(self._address, commits=commits)

    def _rows(self, result: pq.abc.PGresult) -> list[Row]:
        count = result.ntuples
        if not count:
            return []
        value_at = result.get_value
        readers = [(column, _READERS.get(result.ftype(column), bytes.decode)) for column in range(result.nfields)]
        try:
            return [
                tuple([None if (value := value_at(row, at)) is None else read(value) for at, read in readers])
                for row in range(count)
            ]
        except ValueError as error:
            raise nonsense(error, self._address) from None

    def notifications(self) -> list[tuple[str, str]]:
        """Read what the socket has, and return channels and payloads; raises `ConnectionError` when it broke."""
        try:
            self._pgconn.consume_input()
            found = []
            while (notification := self._pgconn.notifies()) is not None:
                channel, said = notification.relname, notification.extra
                found.append((channel.decode("utf-8", "replace"), said.decode("utf-8", "replace")))
        except psycopg.Error:
            raise ConnectionError from None
        if self._pgconn.status == _BAD:
            raise ConnectionError
        return found

    def is_usable(self) -> bool:
        """Whether an idle line can carry a request: it is open, and the server has neither hung up nor said anything.

        An answer to nothing, left where libpq has read it already, would be taken for the answer to the next request.
        """
        if self._pgconn.status == _BAD:
            return False
        heard = self._arrived(0)
        try:
            if heard:
                self._pgconn.consume_input()
            self._pgconn.notifies()
        except psycopg.Error:
            return False
        if self._strays or self._pgconn.status == _BAD:
            return False
        # Also after the server's last words its end of the connection can be read from: it has closed it.
        return not (heard and self._arrived(0))

    def close(self) -> None:
        """Close the connection."""
        self._pgconn.finish()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection.

        psycopg does not end a connection that another process has opened when it is collected.
        """
        if self._pgconn.status != _BAD:
            os.close(self._pgconn.socket)


def _note_stray(strays: list[pq.abc.PGresult], remark: pq.abc.PGresult) -> None:
    """Keep what libpq remarks by itself, which has no code: that a message came while nothing was asked."""
    if remark.error_field(pq.DiagnosticField.SQLSTATE) is None:
        strays.append(remark)
