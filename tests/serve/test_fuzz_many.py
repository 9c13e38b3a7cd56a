"""Requests by the hundred thousand, given to the server without a network in between: what `test_fuzz` asks by day.

No answer is a mistake of ours, whatever comes: bytes of any form, any path, parameters, headers and bodies.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.serve.conftest import TOKEN
from tests.serve.test_fuzz import HOSTILE, OPERATIONS
from tests.support.liar import changed

from leasehold import Leasehold
from leasehold.serve import Server, Settings, serving

BY_DAY, BY_NIGHT = 300, 50_000
PARTS = 4
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X")
HEADERS = ("Origin", "Cookie", "Accept", "Content-Type", "Content-Length", "X-CSRF-Token", "Host", "Expect", "Range")
SNIPPETS = (b"\r\n", b"\0", b"\xff", b" ", b"%", b"HTTP/1.1", b"?", b"&", b":", b"\r\n\r\n", b"-1", b"9" * 30, b"/..")


class Sink(asyncio.Transport):
    """The server's end of a connection that goes nowhere; tells when a stream of news has begun."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent, self._closed = b"", False
        self.streams = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.sent += data
        if b"text/event-stream" in self.sent:
            self.streams.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


async def answers_to(server: Server, sent: bytes) -> bytes:
    """What the server answers to these bytes, after which nothing more comes."""
    loop, reader, sink = asyncio.get_running_loop(), asyncio.StreamReader(limit=1 << 16), Sink()
    reader.feed_data(sent)
    reader.feed_eof()
    writer = asyncio.StreamWriter(sink, asyncio.StreamReaderProtocol(reader), reader, loop)
    serving, streams = asyncio.create_task(server.connected(reader, writer)), asyncio.create_task(sink.streams.wait())
    await asyncio.wait({serving, streams}, return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, streams):
        task.cancel()
    await asyncio.gather(serving, streams, return_exceptions=True)
    return sink.sent


def some_request(chance: random.Random, port: int) -> bytes:
    """A request, more or less."""
    _, known, operation = chance.choice(OPERATIONS)
    path = known if chance.random() < 0.8 else "/" + quote(chance.choice(HOSTILE), errors="replace")
    names = [one["name"] for one in operation["parameters"]] or ["x"]
    query = "&".join(
        f"{quote(chance.choice(names))}={quote(chance.choice(HOSTILE))}" for _ in range(chance.choice([0, 0, 1, 2, 4]))
    )
    method = next(of for of, at, _ in OPERATIONS if at == known) if chance.random() < 0.7 else chance.choice(METHODS)
    body = b""
    if method in ("POST", "DELETE", "PUT", "PATCH"):
        values: list[Any] = [*HOSTILE, None, 1, [], {}, {"name": "held"}, 1e308]
        fields = ("name", "because", "x")[: chance.randrange(4)]
        body = json.dumps({field: chance.choice(values) for field in fields}).encode()
    lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"Authorization: Bearer {TOKEN}"] * (chance.random() < 0.9)
    lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"] * bool(body)
    lines += [f"{chance.choice(HEADERS)}: {chance.choice(HOSTILE)!a}" for _ in range(chance.choice([0, 0, 0, 1, 2]))]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    return changed(request, chance, SNIPPETS) if chance.random() < 0.3 else request


async def ask_many(url: str, seed: int, requests: int) -> Counter[int]:
    """Ask so many, and count the codes of the answers."""
    chance, codes = random.Random(seed), Counter[int]()
    with Leasehold(url) as locks:
        lease = locks.lock("held", ttl=3600).acquire()
        async with serving(locks, Settings(TOKEN, every=60.0)) as server:
            for _ in range(requests):
                sent = some_request(chance, server.port)
                answers = await answers_to(server, sent)
                for answer in answers.split(b"HTTP/1.1 ")[1:]:
                    code = int(answer[:3])
                    assert code < 500 or code == 501, (sent, answer[:300])
                    assert TOKEN.encode() not in answer, sent
                    codes[code] += 1
        lease.release()
    return codes


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


def check(codes: Counter[int], requests: int) -> None:
    """Whether they were of all kinds."""
    assert min(codes[200], codes[400]) > requests // 50, codes
    assert min(codes[401], codes[404]) > 0, codes


def test_hundreds_of_requests_of_any_form(url: str) -> None:
    check(asyncio.run(ask_many(url, 20_261, BY_DAY)), BY_DAY)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_hundreds_of_thousands_of_requests_of_any_form(url: str, part: int) -> None:
    check(asyncio.run(ask_many(url, part, BY_NIGHT)), BY_NIGHT)
