r"""HTTP/1.1 as far as a lock needs it: one request at a time on a connection that stays open.

The reading of answers is a plain function of bytes: it waits for nothing, and anything but the shape that is expected
is refused, so that two sides can never disagree about where an answer ends.

>>> answers = Answers()
>>> answers.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Index: 7\r\n\r\n")
>>> answers.feed(b"{}")
Answer(status=200, headers={'content-length': '2', 'x-index': '7'}, body=b'{}')
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

from leasehold.errors import quoted

MOST_HEAD: Final = 32 * 1024
MOST_BODY: Final = 64 * 1024 * 1024
_STATUS_LINE: Final = re.compile(r"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LENGTH: Final = re.compile(r"[0-9]{1,12}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t\x20-\x7e]*)?")
_WITHOUT_BODY: Final = frozenset({204, 304})
_MEASURES: Final = frozenset({"content-length", "transfer-encoding"})


class Malformed(Exception):
    """Bytes that are no answer in HTTP/1.1."""


class Answer(NamedTuple):
    """A whole answer. The names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def stays_open(self) -> bool:
        """Whether the connection can carry another request."""
        return "close" not in self.headers.get("connection", "").lower()


def headers_of(headers: dict[str, str]) -> str:
    """What `request` sends of them. They must be ASCII without line ends, as addresses and tokens here are."""
    return "".join(f"{_checked(f'{name}: {value}')}\r\n" for name, value in headers.items())


def request(method: str, target: str, headers: str, body: bytes) -> bytes:
    """The bytes of a request, with `headers_of` something. The target, too, must be ASCII without line ends."""
    length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
    return f"{_checked(f'{method} {target} HTTP/1.1')}\r\n{headers}{length}\r\n".encode("ascii") + body


def _checked(line: str) -> str:
    if not line.isprintable():
        raise ValueError("a line of a request holds a character that would end it")
    return line


class _Head(NamedTuple):
    """What comes before the body of an answer. Nobody may change the headers: they are remembered."""

    status: int
    headers: dict[str, str]
    length: int | None
    """Of the body; None when it comes in chunks."""


@functools.lru_cache(maxsize=16)  # answers of the same second to the same kind of request differ in their bodies only
def _head_in(head: bytes) -> _Head:
    first, *rest = head.decode("latin-1").split("\r\n")
    status, headers = _STATUS_LINE.fullmatch(first), dict[str, str]()
    if status is None:
        raise Malformed(f"it begins with {quoted(first)}")
    for line in rest:
        header = _HEADER.fullmatch(line)
        name = header[1].lower() if header is not None else ""
        if header is None or (name in _MEASURES and name in headers):
            raise Malformed(f"a header that is none, or a length that is given twice: {quoted(line)}")
        headers.setdefault(name, header[2])
    return _Head(int(status[1]), headers, _length_of_body(int(status[1]), headers))


def _length_of_body(status: int, headers: dict[str, str]) -> int | None:
    encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if status in _WITHOUT_BODY:
        return 0
    if encoding is not None:
        if encoding.lower() != "chunked" or length is not None:
            raise Malformed("a body whose length is said in two ways, or in none that is known")
        return None
    if length is None or not _LENGTH.fullmatch(length) or int(length) > MOST_BODY:
        raise Malformed("a body without a length, or of an absurd one")
    return int(length)


def _whole_answer_in(data: bytes) -> Answer | None:
    """The answer, if it has come in one piece, with its length, as nearly all do."""
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD)
    if end < 0:
        return None
    head = _head_in(data[:end])
    if head.length is None or len(data) != end + 4 + head.length:
        return None
    return Answer(head.status, head.headers, data[end + 4 :])


class Answers:
    """Reads the answers on one connection, one after the other."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._buffer = bytearray()
        self._head = _Head(0, {}, 0)
        self._body: bytearray | None = None
        """What has come of the body; None before the head is complete."""
        self._left = 0
        """How much of the body, or of its current chunk, is still to come."""
        self._trailing = False

    def feed(self, data: bytes) -> Answer | None:
        """Take what has come; returns the answer once it is complete. Raises `Malformed`."""
        if self._body is None and not self._buffer and (answer := _whole_answer_in(data)) is not None:
            return answer
        self._buffer += data
        if self._body is None and not self._read_head():
            return None
        assert self._body is not None
        if not (self._read_chunks() if self._head.length is None else self._read_rest()):
            return None
        if self._buffer:
            raise Malformed("more than one answer to one request")
        answer = Answer(self._head.status, self._head.headers, bytes(self._body))
        self._body = None
        return answer

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n", 0, MOST_HEAD)
        if end < 0:
            if len(self._buffer) >= MOST_HEAD:
                raise Malformed("a head that does not end")
            return False
        self._head = _head_in(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self._body, self._trailing, self._left = bytearray(), False, self._head.length or 0
        return True

    def _read_rest(self) -> bool:
        """Take what belongs to the body, or to its current chunk; whether that was all of it."""
        assert self._body is not None
        part = self._buffer[: self._left]
        del self._buffer[: self._left]
        self._body += part
        self._left -= len(part)
        return not self._left

    def _read_chunks(self) -> bool:
        assert self._body is not None
        while self._read_rest():
            # Each chunk is followed by a line end; then comes the line with the size of the next.
            start = 2 if self._body and not self._trailing else 0
            if not b"\r\n"[:start].startswith(self._buffer[:start]):
                raise Malformed("a chunk that is longer than its size")
            end = self._buffer.find(b"\r\n", start)
            if end < 0:
                if len(self._buffer) > MOST_HEAD:
                    raise Malformed("a chunk without a size")
                return False
            line = bytes(self._buffer[start:end])
            if self._trailing:
                if line:
                    raise Malformed("a header after the body")
                del self._buffer[: end + 2]
                return True
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise Malformed("a chunk without a size")
            del self._buffer[: end + 2]
            self._left = int(size[1], 16)
            self._trailing = not self._left
            if len(self._body) + self._left > MOST_BODY:
                raise Malformed("a body of an absurd length")
        return False
