"""The protocol of MySQL and MariaDB, as far as it is needed here: bytes in, meaning out. Nothing here does I/O.

Both speak it alike. Most requests go out as text: several statements in one packet, after the first that fails none is
carried out, and each answers for itself. The few that are sent again and again are prepared.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from leasehold.wires.sql_table import Request, Row, Statement, Value

LARGEST_PACKET: Final = 0xFFFFFF
"""Longer ones would be cut in pieces; nothing that is sent or asked for here comes near."""
QUERY: Final = b"\x03"
PREPARE: Final = b"\x16"
PING: Final = b"\x0e"
QUIT: Final = b"\x01\x00\x00\x00\x01"
_HEADER: Final = struct.Struct("<I").unpack_from
_MORE_RESULTS: Final = 0x0008
PLAIN_OK, SHORTEST_ERROR = 11, 13
"""Bytes of the packet that answers a statement which changes nothing, and of an error without words."""
_INTEGERS: Final = frozenset({0, 1, 2, 3, 8, 9, 13, 246})
"""Types of columns that are numbers, fixed-point ones among them: an expression may be one of those."""


class Nonsense(Exception):
    """What came is not what a server sends here."""


class SqlError(Exception):
    """An error that the server answered a statement with. It is a value here: the request decides what it means."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(code, words)
        self.code, self.words = code, words


class Inbox:
    """Bytes as they come, and packets as they are complete."""

    __slots__ = ("_bytes", "_next", "_several")

    def __init__(self) -> None:
        self._bytes, self._next, self._several = bytearray(), 0, False

    def add(self, received: bytes) -> None:
        """Take in what came."""
        self._bytes += received

    def expect(self, number: int, *, several: bool = False) -> None:
        """The next packet has this number: each of an answer has one more than the one before.

        Of several answers, each begins with the first number again.
        """
        self._next, self._several = number, several

    def packet(self) -> bytes | None:
        """The next packet that is complete."""
        ready = self._cut(most=1)
        return ready[0] if ready else None

    def only_packet(self, received: bytes) -> bytes | None:
        """Take in what came; returns the packet that it is, if it is one and nothing else is here."""
        size = len(received) - 4
        if self._bytes or size < 0 or _HEADER(received)[0] != size | self._next << 24:
            self._bytes += received
            return None
        self._next = self._next + 1 & 0xFF
        return received[4:]

    def packets(self) -> list[bytes]:
        """All packets that are complete."""
        return self._cut(most=len(self._bytes))

    def _cut(self, *, most: int) -> list[bytes]:
        ready: list[bytes] = []
        waiting, number, at = self._bytes, self._next, 0
        end = len(waiting)
        while at + 4 <= end and len(ready) < most:
            (header,) = _HEADER(waiting, at)
            size = header & LARGEST_PACKET
            if self._several and header >> 24 == 1:
                number = 1
            if size == LARGEST_PACKET or header >> 24 != number:
                raise Nonsense("a packet that is too long or out of order")
            after = at + 4 + size
            if after > end:
                break
            ready.append(bytes(waiting[at + 4 : after]))
            at, number = after, number + 1 & 0xFF
        del waiting[:at]
        self._next = number
        return ready

    @property
    def next_number(self) -> int:
        """What the next packet is numbered, whoever sends it."""
        return self._next

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits here."""
        return not self._bytes


def framed(payload: bytes, number: int = 0) -> bytes:
    """A packet to send."""
    if len(payload) >= LARGEST_PACKET:
        raise ValueError("a request of this size is never made")
    return struct.pack("<I", len(payload) | number << 24) + payload


# Statements


def written(name: str, text: str) -> Statement:
    """A statement from a text with numbered placeholders: $1, $2 and so on."""
    for number in range(32, 0, -1):
        text = text.replace(f"${number}", f"{{{number - 1}}}")
    return Statement(" ".join(text.split()), name)


def rendered(request: Request) -> str:
    """A request with its values in it. Text is written in hexadecimal: none of it can be taken for anything else."""
    return request.statement.text.format(*map(literal, request.values))


def literal(value: Value) -> str:
    """A value as it stands in a statement."""
    if value is None:
        return "NULL"
    return f"x'{value.encode().hex()}'" if isinstance(value, str) else f"{value:d}"


@lru_cache(maxsize=128)
def asked(request: Request) -> bytes:
    """What asks for a single request. The same ones are sent again and again: to give back, to wait, to renew."""
    return QUERY + rendered(request).encode()


# Prepared statements

_PLACE: Final = re.compile(r"\{(\d+)\}")
_BYTES, _WHOLE = b"\xfc\0", b"\x08\0"
"""Types of values. Text is bytes here too, as in a statement's own text: no collation has a say."""


def prepared(name: str, text: str) -> Statement:
    """A statement that a connection prepares when it sends it again; alone, it is one that answers with no rows."""
    statement = written(name, text)
    statement.order = tuple(map(int, _PLACE.findall(statement.text)))
    return statement


class Queued(Statement):
    """One that waits for others, by a first part that changes nothing, and goes on with a second that is prepared."""

    __slots__ = ("going_on", "waiting")

    def __init__(self, name: str, waiting: str, going_on: str) -> None:
        self.waiting, self.going_on = written(name, waiting), prepared(name, going_on)
        super().__init__(f"{self.waiting.text}; {self.going_on.text}", name)


def together(requests: Sequence[Request]) -> bytes:
    """What asks for several requests in one text."""
    return QUERY + ";".join(map(rendered, requests)).encode()


def to_prepare(statement: Statement) -> bytes:
    """Asks for a statement to be prepared."""
    return PREPARE + _PLACE.sub("?", statement.text).encode()


def packets_behind(answer: bytes) -> int:
    """How many packets follow the one that tells a prepared statement's number: what goes in, and what comes out."""
    if len(answer) < 9:
        raise Nonsense("an answer that ends too soon")
    columns, places = struct.unpack_from("<HH", answer, 5)
    return sum(described + 1 for described in (columns, places) if described)


def places_in(answer: bytes) -> int:
    """How many values a prepared statement takes."""
    return int.from_bytes(answer[7:9], "little")


class Prepared:
    """A statement that a connection has prepared. Its values are never NULL, and always of the same types."""

    __slots__ = ("_head", "_order")

    def __init__(self, answer: bytes, request: Request) -> None:
        self._order = request.statement.order or ()
        types = [_BYTES if isinstance(request.values[which], str) else _WHOLE for which in self._order]
        nulls = bytes((len(types) + 7) // 8)
        described = (nulls, b"\1", *types) if types else ()
        self._head = b"".join((b"\x17", answer[1:5], b"\0\1\0\0\0", *described))

    def executed(self, values: tuple[Value, ...]) -> bytes:
        """Asks to carry it out."""
        return self._head + b"".join([_packed(values[which]) for which in self._order])


_whole_number: Final = struct.Struct("<q").pack


@lru_cache(maxsize=1024)
def _packed(value: Value) -> bytes:
    """A value as a prepared statement takes it. Most of them are the same again and again."""
    if not isinstance(value, str):
        return _whole_number(value)
    text = value.encode()
    size = len(text)
    return (bytes((size,)) if size < 0xFB else b"\xfc" + size.to_bytes(2, "little")) + text


# Answers


class Answers:
    """The answers to the statements of one packet, understood piece by piece."""

    __slots__ = ("_columns", "_pending", "_rows", "error", "is_complete", "results")

    def __init__(self) -> None:
        self.results: list[list[Row]] = []
        """Rows of those that return rows; of the others one, with how many rows were changed and the insert id."""
        self.error: SqlError | None = None
        """What the first statement without a result failed with."""
        self.is_complete = False
        self._pending: list[bytes] = []
        """Packets that cannot be understood before more has come."""
        self._columns: list[Any] = []
        self._rows: list[Row] | None = None

    def feed(self, packets: Iterable[bytes]) -> None:
        """Take in the next packets."""
        pending, at = self._pending, 0
        pending += packets
        while at < len(pending) and not self.is_complete:
            packet = pending[at]
            kind = packet[0] if packet else -1
            if kind == 0xFF:
                self._fail(error_in(packet))
            elif self._rows is not None:
                if kind == 0xFE and len(packet) < 9:
                    self._end(self._rows, packet[3:5])
                else:
                    self._rows.append(self._row(packet))
            elif kind == 0:
                changed, after = _number(packet, 1)
                insert_id, after = _number(packet, after)
                self._end([(changed, insert_id)], packet[after : after + 2])
            elif 0 < kind < 0xFB:
                # So many columns are described next, and then comes a mark; nothing of it makes sense without the rest.
                described = at + kind + 1
                if described >= len(pending):
                    break
                self._columns, self._rows = self._described(pending[at + 1 : described]), []
                at = described
            else:
                raise Nonsense("an answer of an unknown kind")
            at += 1
        del pending[:at]

    def _described(self, columns: list[bytes]) -> list[Any]:
        return list(map(_reader, columns))

    def _row(self, packet: bytes) -> Row:
        return _row(packet, self._columns)

    def _fail(self, error: SqlError) -> None:
        self.error, self.is_complete = error, True

    def _end(self, rows: list[Row], status: bytes) -> None:
        if len(status) != 2:
            raise Nonsense("an answer that ends too soon")
        self.results.append(rows)
        self._rows = None
        self.is_complete = not int.from_bytes(status, "little") & _MORE_RESULTS


class EachAnswer(Answers):
    """The answers to several packets of one statement each. All are carried out, whatever comes of those before."""

    __slots__ = ("_packed", "succeeded")

    def __init__(self, packed: Sequence[bool]) -> None:
        """For each packet, whether it carries out what is prepared: rows come in another form then."""
        super().__init__()
        self._packed = packed
        self.succeeded = 0
        """How many have, up to the first that failed; of one that did, there are no rows among the results."""

    def _described(self, columns: list[bytes]) -> list[Any]:
        return list(map(_kind, columns)) if self._packed[len(self.results)] else super()._described(columns)

    def _row(self, packet: bytes) -> Row:
        return _packed_row(packet, self._columns) if self._packed[len(self.results)] else super()._row(packet)

    def _fail(self, error: SqlError) -> None:
        self.error = self.error or error
        self._note([])

    def _end(self, rows: list[Row], status: bytes) -> None:
        super()._end(rows, status)
        if not self.is_complete:
            raise Nonsense("more answers than were asked for")
        self._note(self.results.pop())

    def _note(self, rows: list[Row]) -> None:
        self._rows = None
        self.results.append(rows)
        if self.error is None:
            self.succeeded += 1
        self.is_complete = len(self.results) == len(self._packed)


def outcome(packet: bytes) -> Row:
    """How many rows a statement that returns none has changed, and the insert id; raises the server's error."""
    if packet[:1] == b"\xff":
        raise error_in(packet)
    if packet[:1] != b"\0":
        raise Nonsense("rows that nobody asked for")
    changed, after = _number(packet, 1)
    insert_id, after = _number(packet, after)
    if len(packet) < after + 2 or packet[after] & _MORE_RESULTS:
        raise Nonsense("an answer that ends too soon, or not at all")
    return changed, insert_id


def error_in(packet: bytes) -> SqlError:
    """An error as the server sends it, with or without its state of five characters."""
    code = int.from_bytes(packet[1:3], "little")
    words = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return SqlError(code, words.decode("utf-8", "replace"))


@lru_cache(maxsize=256)
def _reader(description: bytes) -> Callable[[bytes], Any]:
    """What reads a column's values where they come as text."""
    return int if _kind(description) in _INTEGERS else bytes.decode


@lru_cache(maxsize=256)
def _kind(description: bytes) -> int:
    """The type of a column."""
    at = 0
    for _ in range(6):  # names of the catalog, the database, the table (twice) and the column (twice)
        size, at = _number(description, at)
        at += size
    if len(description) < at + 8:
        raise Nonsense("a column that is described too briefly")
    return description[at + 7]


def _row(packet: bytes, columns: list[Callable[[bytes], Any]]) -> Row:
    values: list[Any] = []
    at = 0
    try:
        for read in columns:
            size = packet[at]
            if size < 0xFB:
                at += 1
            elif size == 0xFB:
                values.append(None)
                at += 1
                continue
            else:
                size, at = _number(packet, at)
            values.append(read(packet[at : at + size]))
            at += size
    except (IndexError, ValueError):
        raise Nonsense("a value that cannot be read") from None
    if at != len(packet):
        raise Nonsense("a row of another length")
    return tuple(values)


_WHOLE_SIZES: Final[Mapping[int, int]] = {1: 1, 2: 2, 3: 4, 8: 8}


def _packed_row(packet: bytes, kinds: list[int]) -> Row:
    """A row of a statement that is prepared: a bit for each NULL, then numbers as they are, and text as it is."""
    values: list[Any] = []
    at = 1 + (len(kinds) + 9) // 8
    nulls = int.from_bytes(packet[1:at], "little") >> 2
    try:
        for position, kind in enumerate(kinds):
            if nulls >> position & 1:
                values.append(None)
                continue
            size = _WHOLE_SIZES.get(kind)
            if size is None:
                size, at = _number(packet, at)
                values.append(packet[at : at + size].decode())
            else:
                values.append(int.from_bytes(packet[at : at + size], "little", signed=True))
            at += size
    except ValueError:
        raise Nonsense("a value that cannot be read") from None
    if at != len(packet):
        raise Nonsense("a row of another length")
    return tuple(values)


_SIZES: Final[Mapping[int, int]] = {0xFC: 2, 0xFD: 3, 0xFE: 8}


def _number(packet: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    try:
        first = packet[at]
        if first < 0xFB:
            return first, at + 1
        end = at + 1 + _SIZES[first]
    except (IndexError, KeyError):
        raise Nonsense("a number that is none") from None
    return int.from_bytes(packet[at + 1 : end], "little"), end
