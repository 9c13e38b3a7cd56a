"""What a connection to PostgreSQL makes of a server that hangs up: its last words count, half an answer does not."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg import pq

from leasehold.core.worlds import run_blocking
from leasehold.errors import OutcomeUnknown
from leasehold.wires.postgres_line import Line
from leasehold.wires.sockets import BlockingSockets
from leasehold.wires.sql_table import Overdue, Request, Row, Statement


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


READY = message(b"Z", b"I")
LET_IN = message(b"R", struct.pack("!I", 0)) + READY
ANSWER = (
    message(b"1")
    + message(b"2")
    + message(b"T", b"\x00\x01one\x00" + struct.pack("!IHIHIH", 0, 0, 23, 4, 0xFFFFFFFF, 0))
    + message(b"D", struct.pack("!HI", 1, 1) + b"7")
    + message(b"C", b"SELECT 1\x00")
)


def last_words(state: str) -> bytes:
    return message(b"E", f"SFATAL\0VFATAL\0C{state}\0Mended\0\0".encode())


def connected(where: str) -> pq.abc.PGconn:
    """Step by step: libpq's own way would keep the other thread from answering."""
    pgconn = pq.PGconn.connect_start(where.encode())
    while (state := pgconn.connect_poll()) not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
        time.sleep(0.01)
    assert state == pq.PollingStatus.OK, pgconn.get_error_message()
    return pgconn


@contextmanager
def line_to_one_who_says(said: bytes) -> Iterator[Line]:
    """A connection to a server that answers the first request with these bytes, and hangs up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(LET_IN)
            connection.recv(4096)
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        where = f"host=127.0.0.1 port={listener.getsockname()[1]} user=x dbname=x sslmode=disable gssencmode=disable"
        line = Line(connected(where), BlockingSockets(), "postgresql://x")
        line.prepares = False
        yield line
        line.close()
        serving.join(30)


def asked(line: Line) -> list[Row]:
    return run_blocking(line.ask(Request(Statement("SELECT 7", "seven")), line.sockets.world.now() + 30.0))


def test_a_whole_answer_counts() -> None:
    with line_to_one_who_says(ANSWER + READY) as line:
        assert asked(line) == [(7,)]


@pytest.mark.parametrize("cut", [0, 1, 3, len(READY) - 1])
def test_an_answer_without_its_end_does_not(cut: int) -> None:
    """Its transaction may not be committed, and its connection is gone, with any lock that lived in it."""
    with line_to_one_who_says(ANSWER + READY[:cut]) as line, pytest.raises(OutcomeUnknown):
        asked(line)
    with line_to_one_who_says(ANSWER + READY[:cut]) as line:
        line.post(Request(Statement("SELECT 7", "seven")))
        with pytest.raises(ConnectionError):
            run_blocking(line.answer(line.sockets.world.now() + 30.0))


@pytest.mark.parametrize("before", [b"", ANSWER])
def test_last_words_after_an_answer_do_not_make_it_whole(before: bytes) -> None:
    with line_to_one_who_says(before + last_words("57P01")) as line, pytest.raises(OutcomeUnknown):
        asked(line)


def test_who_was_silent_for_too_long_is_told_that_nothing_was_read() -> None:
    with line_to_one_who_says(last_words("57P05")) as line, pytest.raises(Overdue):
        asked(line)
