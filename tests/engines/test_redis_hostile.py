"""A hostile server: whatever it says at whichever step, the answer is a typed error or a loss, never a false grant.

The server's side of each connection is written before the request is made, so thousands of them take no time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self

import pytest
from tests.engines.redis_help import WORLDS, family_at, want
from tests.support.liar import changed

from leasehold.core.engine import Busy, Grant, Incumbent, Renewal, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.redis import RedisEngine
from leasehold.errors import EngineError, LeaseholdError
from leasehold.wires.redis_asyncio import AsyncLine, AsyncWire
from leasehold.wires.redis_blocking import BlockingWire, Line
from leasehold.wires.redis_replies import ErrorReply, error_at_entry, error_from
from leasehold.wires.redis_setup import enter, locate
from leasehold.wires.redis_target import target_from_url
from leasehold.wires.urls import Endpoint

CASES = 1000
TARGET = target_from_url("redis://127.0.0.1:1")
SENTINELS = target_from_url("redis+sentinel://127.0.0.1:1/main")
MINE = want("n")
TOKEN = 1_794_000_000_000_000
GRANT = b"%d %b" % (TOKEN, MINE.holder.encode())
LEASE = Renewal("n", MINE.holder, TOKEN, 5.0)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


SAYS = {b"server": b"redis", b"version": b"7.0.0", b"mode": b"standalone", b"role": b"master"}
HELLO = b"%4\r\n" + b"".join(bulk(key) + bulk(value) for key, value in SAYS.items())
SUBSCRIBED = b">3\r\n" + bulk(b"subscribe") + bulk(b"lh:wake:x") + b":1\r\n"
BUSY = b"*5\r\n:1000\r\n" + bulk(b"%d" % TOKEN) + b":0\r\n:30000000\r\n" + bulk(b"worker@host:1")
MESSAGE = b">3\r\n" + bulk(b"message") + bulk(b"lh:wake:x") + bulk(MINE.holder.encode())
HANDED = b">3\r\n" + bulk(b"message") + bulk(b"lh:wake:x") + bulk(b"%b %d" % (MINE.holder.encode(), TOKEN))
EMPTY = b"*0\r\n"
STATUS = b"*6\r\n" + bulk(b"%d" % TOKEN) + bulk(b"%d" % TOKEN) + EMPTY * 4

RIGHT = {
    "enter": HELLO + SUBSCRIBED,
    "sentinel": b"*2\r\n" + bulk(b"10.0.0.1") + bulk(b"6379"),
    "take": bulk(GRANT),
    "queue": BUSY,
    "wait": MESSAGE,
    "wait_handed": HANDED,
    "renew": bulk(b"%d" % TOKEN) + b":0\r\n",
    "release": b":1\r\n",
    "status": STATUS,
    "names": b"*2\r\n" + bulk(b"0") + EMPTY,
    "force_release": bulk(b"%d" % TOKEN),
    "check_purpose": bulk(b"connected_slaves:0\r\n") * 3,
}
"""What a right server says at each step."""
WAITS = {"wait", "wait_handed"}

HOLDER = MINE.holder.encode()
WRONG_TYPES = (
    *(b"_\r\n", b"#t\r\n", b"#f\r\n", b",1.5\r\n", b",nan\r\n", b"(99999999999999999999\r\n", b":-1\r\n", b":7\r\n"),
    *(b":1\r\n", b":0\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"%0\r\n", b"~0\r\n", b">0\r\n", b">1\r\n:1\r\n"),
    *(b"+\r\n", b"+OK\r\n", b"+QUEUED\r\n", b"$0\r\n\r\n", b"=8\r\ntxt:1794\r\n", b"*1\r\n:0\r\n", b"*1\r\n:-5\r\n"),
    *(b"*1\r\n#t\r\n", b"*1\r\n:99999999999\r\n", b"*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n", b"*1\r\n*1\r\n*1\r\n:1\r\n"),
    *(b"%1\r\n*0\r\n:1\r\n", b"-ERR no\r\n", b"-NOSCRIPT no\r\n", b"-READONLY no\r\n", b"-LOADING no\r\n"),
    *(b"-MOVED 1 h:1\r\n", b"-\r\n", b"-\xff\r\n", b"$16\r\n0000000000000000\r\n", b"$17\r\n99999999999999999\r\n"),
    *(b"$16\r\n9007199254740992\r\n", b"+1794\r\n", bulk(b"%d" % TOKEN), bulk(b"%d %b" % (TOKEN, b"x" * 32))),
    *(bulk(b" " + HOLDER), bulk(b"-5 " + HOLDER), bulk(b"0 " + HOLDER), bulk("\u0661 ".encode() + HOLDER)),
    *(b"$999999999999\r\nx", b"$2147483648\r\n", b"*9999999999\r\n", b"*1000000\r\n", b"|1\r\n+a\r\n+b\r\n"),
    *(
        b"!3\r\nERR\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"",
        b"\r\n",
        b"\x00" * 100,
    ),
)
SNIPPETS = (b"\r\n", b"9", b"-", b":1\r\n", b"$3\r\n", b"*2\r\n", b"-ERR x\r\n")


def attacks(right: bytes, seed: int) -> Iterator[bytes]:
    """Wrong types, truncations, oversized lengths, flipped and repeated bytes, and noise."""
    chance = random.Random(seed)
    yield from WRONG_TYPES
    yield from (right[:cut] for cut in range(len(right)))
    while True:
        mutant = changed(right, chance, SNIPPETS)
        yield mutant if chance.randrange(5) else chance.choice(WRONG_TYPES) + mutant


def operations(engine: RedisEngine) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    until = engine.world.now() + 0.05
    return {
        "take": lambda: engine.take(MINE, until=until),
        "queue": lambda: engine.take(MINE, until=until, patience=5.0),
        "renew": lambda: engine.renew([LEASE, LEASE], until=until),
        "release": lambda: engine.release("n", MINE.holder, until=until),
        "status": lambda: engine.status("n", until=until),
        "names": lambda: engine.names(after=None, limit=5, until=until),
        "force_release": lambda: engine.force_release("n", until=until),
        "check_purpose": lambda: engine.check_purpose("correctness", until=until),
    }


def prepared(said: bytes) -> tuple[socket.socket, socket.socket]:
    """A connection on which the server has said all that it will ever say, and hung up."""
    ours, theirs = socket.socketpair()
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    return ours, theirs


class BlockingStage:
    """Steps of the blocking world on prepared connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def do(self, step: str, said: bytes) -> Any:
        ours, theirs = prepared(said)
        with theirs:
            wire = BlockingWire(SENTINELS if step == "sentinel" else TARGET, "x")
            line = Line(ours, wire.world, "here")
            line.address_argument = bulk(b"lh:wake:x")
            line.used_at = wire.world.now()  # trusted, so that the step itself meets what was said
            until = wire.world.now() + 0.05

            async def dial(_endpoint: Endpoint, _until: float) -> Line:
                return line

            if step == "sentinel":
                return run_blocking(locate(SENTINELS, dial, wire.world, until))
            if step == "enter":
                return run_blocking(enter(line, TARGET, "lh:wake:x", "x", until))
            wire._connect = _no_more_connections  # type: ignore[method-assign, assignment]
            engine = RedisEngine(family_at("redis://127.0.0.1:1"), wire)
            if step in WAITS:
                wire._kept[threading.get_ident()] = (MINE.holder, line)
                return run_blocking(engine.wait(MINE, until))
            wire._idle.append(line)
            return run_blocking(operations(engine)[step]())


class AsyncioStage:
    """The same in the asyncio world."""

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def do(self, step: str, said: bytes) -> Any:
        return self._runner.run(self._do(step, said))

    async def _do(self, step: str, said: bytes) -> Any:
        ours, theirs = socket.socketpair()
        wire = AsyncWire(TARGET, "x")
        line = AsyncLine(ours, wire.world, "here")
        await asyncio.get_running_loop().create_unix_connection(lambda: line, sock=ours)
        line.address_argument = bulk(b"lh:wake:x")
        line.woken, line.lost = wire._wake, wire._lost
        until = wire.world.now() + 0.05

        async def dial(_endpoint: Endpoint, _until: float) -> AsyncLine:
            return line

        def steps() -> Coroutine[Any, Any, Any]:
            if step == "sentinel":
                return locate(SENTINELS, dial, wire.world, until)
            if step == "enter":
                return enter(line, TARGET, "lh:wake:x", "x", until)
            wire._line = line
            wire._connect = _no_more_connections  # type: ignore[method-assign]
            engine = RedisEngine(family_at("redis://127.0.0.1:1"), wire)
            if step in WAITS:
                wire._wakes[MINE.holder] = None
                return engine.wait(MINE, until)
            return operations(engine)[step]()

        task = asyncio.ensure_future(steps())
        await asyncio.sleep(0)
        with theirs:
            theirs.sendall(said)
            theirs.shutdown(socket.SHUT_WR)
            try:
                return await task
            finally:
                line.abort()
                await line.closed


async def _no_more_connections(*_: object) -> Any:
    raise EngineError("no more connections")


@pytest.fixture(params=WORLDS)
def stage(request: pytest.FixtureRequest) -> Iterator[BlockingStage | AsyncioStage]:
    with BlockingStage() if request.param == "blocking" else AsyncioStage() as stage:
        yield stage


@pytest.mark.filterwarnings("ignore::leasehold.errors.GuaranteeWarning")
@pytest.mark.parametrize("step", RIGHT)
def test_a_right_server_is_understood(stage: BlockingStage | AsyncioStage, step: str) -> None:
    answer = stage.do(step, RIGHT[step])
    expected = {
        "take": Grant(TOKEN),
        "queue": Busy(0.001, Incumbent(TOKEN, 0, 30.0, "worker@host:1")),
        "renew": [True, False],
        "release": True,
        "sentinel": Endpoint("10.0.0.1", 6379),
        "names": [],
        "force_release": TOKEN,
        "wait": None,
        "wait_handed": Grant(TOKEN),
    }
    if step in expected:
        assert answer == expected[step]


@pytest.mark.filterwarnings("ignore::leasehold.errors.GuaranteeWarning")
@pytest.mark.parametrize("step", RIGHT)
def test_a_hostile_server_gets_a_typed_error_and_never_a_false_grant(
    stage: BlockingStage | AsyncioStage, step: str
) -> None:
    words = []
    for said in itertools.islice(attacks(RIGHT[step], seed=1), CASES):
        try:
            answer = stage.do(step, said)
        except LeaseholdError as error:
            words.append(str(error))
        else:
            assert is_honest(step, answer, said), said
    assert step in {*WAITS, "check_purpose"} or len(words) > CASES / 2
    assert not [text for text in words if "\n" in text or len(text) > 1000]


def is_honest(step: str, answer: Any, said: bytes) -> bool:
    """Whether an answer that was believed is one that a right server could have meant."""
    if step in {"take", "queue"} and isinstance(answer, Grant):
        return b"%d %b" % (answer.token, MINE.holder.encode()) in said
    if step in WAITS and answer is not None:
        return b"%b %d" % (MINE.holder.encode(), answer.token) in said
    if step == "renew":
        return bool(answer.count(True) <= said.count(b"%d" % TOKEN))
    if step == "force_release":
        return str(answer).encode() in said
    return True


def test_an_old_server_that_repeats_our_words_does_not_leak_the_password() -> None:
    old = ErrorReply("ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `me`, `s3cret`, ")
    assert "s3cret" not in str(error_at_entry(old, "redis://h:1"))
    assert "6.2" in str(error_at_entry(old, "redis://h:1"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("LOADING Redis is loading the dataset in memory", "loading"),
        ("READONLY You can't write against a read only replica. script: x, on @user_script:1.", "replica"),
        (
            "ERR Error running script (call to f_x): @user_script:9: @user_script: 9: -OOM command not allowed",
            "no memory",
        ),
        ("MASTERDOWN Link with MASTER is down", "lost its primary"),
        ("BUSY Redis is busy running a script.", "busy"),
        ("CLUSTERDOWN The cluster is down", "cluster"),
        ("MISCONF Redis is configured to save RDB snapshots", "disk"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
    ],
)
def test_a_server_that_did_nothing_is_unavailable(words: str, told: str) -> None:
    error = error_from(ErrorReply(words), "redis://h:1")
    assert type(error).__name__ == "EngineUnavailable"
    assert told in str(error)


def test_the_servers_words_are_quoted_and_cut() -> None:
    error = error_from(ErrorReply("ERR \x1b[31m" + "x" * 10_000 + "\n"), "redis://h:1")
    assert len(str(error)) < 200
    assert "\x1b" not in str(error)


def test_a_wake_up_for_somebody_else_wakes_nobody() -> None:
    other: Want = want("n")
    message = MESSAGE.replace(MINE.holder.encode(), other.holder.encode())
    ours, theirs = socket.socketpair()
    with theirs:
        wire = BlockingWire(TARGET, "x")
        line = Line(ours, wire.world, "here")
        theirs.sendall(message * 50)
        started = wire.world.now()
        assert line.listen(MINE.holder, started + 0.1) == b""
        assert wire.world.now() - started >= 0.1
        theirs.sendall(message + MESSAGE)
        assert line.listen(MINE.holder, wire.world.now() + 10.0) == b""
        assert wire.world.now() - started < 5.0
        line.close()
