"""Reading answers in HTTP/1.1: however they are cut into pieces, and whatever a hostile server says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.wires.http import MOST_BODY, Answer, Answers, Malformed, headers_of, request

HEAD = b"HTTP/1.1 200 OK\r\nX-Index: 7\r\n"


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


BODIES = st.lists(st.binary(max_size=40), max_size=4)


@given(BODIES, st.booleans(), st.lists(st.integers(0, 400), max_size=6), st.integers(1, 3))
def test_an_answer_is_read_however_it_is_cut(parts: list[bytes], in_chunks: bool, cuts: list[int], times: int) -> None:
    body = b"".join(parts)
    if in_chunks:
        message = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(parts)
    else:
        message = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    answers = Answers()
    for _ in range(times):
        places = sorted({0, len(message), *(cut for cut in cuts if cut < len(message))})
        pieces = [message[start:end] for start, end in pairwise(places)]
        got = [answers.feed(piece) for piece in pieces]
        assert got[:-1] == [None] * (len(got) - 1)
        assert got[-1] is not None
        assert (got[-1].status, got[-1].headers["x-index"], got[-1].body) == (200, "7", body)


@pytest.mark.parametrize(
    "message",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: +1\r\n\r\n",
        HEAD + b"Content-Length: 0x1\r\n\r\n",
        HEAD + b"Content-Length: %d\r\n\r\n" % (MOST_BODY + 1),
        HEAD + b" folded: x\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"Content-Length : 0\r\n\r\n",
        HEAD + b"Content-Length: 0\r\n\r\nmore",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n",
        b"x" * 40_000,
    ],
)
def test_what_two_sides_could_read_differently_is_refused(message: bytes) -> None:
    with pytest.raises(Malformed):
        Answers().feed(message)


@given(st.lists(st.binary(max_size=60) | st.sampled_from([HEAD, b"\r\n", b"Content-Length: 3\r\n", b"5\r\n"])))
def test_any_bytes_are_an_answer_or_malformed(pieces: list[bytes]) -> None:
    answers = Answers()
    try:
        for piece in pieces:
            answer = answers.feed(piece)
            assert answer is None or 200 <= answer.status < 600
    except Malformed as error:
        assert len(str(error)) < 200  # noqa: PT017 -- there need not be an error


def test_the_other_end_says_whether_the_connection_stays() -> None:
    assert Answer(200, {}, b"").stays_open
    assert not Answer(200, {"connection": "Close"}, b"").stays_open


def test_nothing_can_be_smuggled_into_a_request() -> None:
    assert request("GET", "/a", headers_of({"Host": "b"}), b"") == b"GET /a HTTP/1.1\r\nHost: b\r\n\r\n"
    assert request("PUT", "/a", headers_of({}), b"{}") == b"PUT /a HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    for target, header in (("/a\r\nX: y", "b"), ("/a", "b\r\nX: y"), ("/a", "b\0")):
        with pytest.raises(ValueError, match="end it"):
            request("PUT", target, headers_of({"Host": header}), b"{}")
