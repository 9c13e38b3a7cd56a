"""What the benchmark knows of MySQL and MariaDB: the floor, a lock by hand to compare with, and how to clear up."""

from __future__ import annotations

import contextlib
import importlib
import socket
from types import TracebackType
from typing import Any, Final

from leasehold.bench.places import Place
from leasehold.core.worlds import run_blocking
from leasehold.wires.mysql_dial import Dialer
from leasehold.wires.mysql_line import Line
from leasehold.wires.mysql_packets import QUERY, framed, literal
from leasehold.wires.mysql_target import target_from_url
from leasehold.wires.sockets import BlockingSockets
from leasehold.wires.sql_table import Request, Statement

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS `{table}` (name VARBINARY(255) PRIMARY KEY, holder VARBINARY(64), token BIGINT, "
    "expires BIGINT) ENGINE=InnoDB"
)
_TAKE: Final = (
    "INSERT INTO `{table}` VALUES ({name}, '0123456789abcdef0123456789abcdef', LAST_INSERT_ID(1), 1700000000000000) "
    "ON DUPLICATE KEY UPDATE holder = VALUES(holder), token = LAST_INSERT_ID(token + 1), expires = VALUES(expires)"
)
_RELEASE: Final = "UPDATE `{table}` SET holder = NULL WHERE name = {name}"


def connected(place: Place) -> Line:
    """A connection of Leasehold's own kind, on which nothing was set up."""
    target, sockets = target_from_url(place.on), BlockingSockets()
    return run_blocking(Dialer(target, sockets, "bench").dial(target.endpoints[0], sockets.world.now() + 10.0))


def ask(line: Line, text: str) -> list[tuple[Any, ...]]:
    """Send one statement."""
    return run_blocking(line.ask(Request(Statement(text, "bench")), BlockingSockets().world.now() + 60.0))


class RawMysql:
    """Two statements of one row each, written beforehand, on a bare socket: what any lock in a table must cost."""

    def __init__(self, place: Place, name: str) -> None:
        self._line = connected(place)
        words = {"table": f"{place.namespace}-floor", "name": literal(name)}
        ask(self._line, _TABLE.format(**words))
        self._take, self._release = (framed(QUERY + text.format(**words).encode()) for text in (_TAKE, _RELEASE))
        self._socket = socket.socket(fileno=self._line.stream.number)
        self._socket.setblocking(True)

    def __enter__(self) -> None:
        self._socket.sendall(self._take)
        if self._socket.recv(4096)[4:5] != b"\0":
            raise RuntimeError("the floor's own row could not be written")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.sendall(self._release)
        self._socket.recv(4096)

    def close(self) -> None:
        """Close the connection."""
        self._socket.detach()
        self._line.close()


class NamedLock:
    """What people write by hand: no token, no deadline, and the server waits and hands over."""

    def __init__(self, place: Place) -> None:
        target = target_from_url(place.on)
        [endpoint] = target.endpoints[:1]
        pymysql = importlib.import_module("pymysql")
        where = {"unix_socket": endpoint.path} if endpoint.path else {"host": endpoint.host, "port": endpoint.port}
        self._connection = pymysql.connect(
            user=str(target.user), password=str(target.password), database=target.database, autocommit=True, **where
        )
        self._cursor, self._name = self._connection.cursor(), place.namespace

    def __enter__(self) -> None:
        self._cursor.execute("SELECT GET_LOCK(%s, 600)", (self._name,))
        if self._cursor.fetchall() != ((1,),):
            raise RuntimeError("the lock was not had within ten minutes")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cursor.execute("SELECT RELEASE_LOCK(%s)", (self._name,))
        self._cursor.fetchall()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def version(place: Place) -> str:
    """The server's own, and which of the two it is."""
    with contextlib.closing(connected(place)) as line:
        [(text,)] = ask(line, "SELECT VERSION()")
    return str(text)


def clear(place: Place) -> None:
    """Remove what the benchmark has written."""
    with contextlib.closing(connected(place)) as line:
        ask(line, f"DROP TABLE IF EXISTS `{place.namespace}-floor`")
        for table in ("lease", "seat", "waiter"):
            if ask(line, f"SHOW TABLES LIKE 'leasehold_{table}'"):  # session locks have none
                ask(line, f"DELETE FROM leasehold_{table} WHERE namespace = {literal(place.namespace)}")  # noqa: S608
