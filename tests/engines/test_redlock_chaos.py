"""Five real servers that are killed, stopped, restarted and wiped while workers take turns at a fenced resource."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from dataclasses import dataclass, field

import pytest
from tests.support.redis_server import RedisServer
from tests.support.redlock_servers import running_quorum

from leasehold import AsyncLeasehold, EngineError, Leasehold, LeaseLost, NotAcquired
from leasehold.wires.quorum_asyncio import AsyncQuorumWire
from leasehold.wires.quorum_blocking import BlockingQuorumWire

SECONDS = 15.0
TTL = 0.5
LONGEST_TTL = 1
KEPT_OUT = LONGEST_TTL + 5.0 + 1.0
"""For how long a wiped server is not disturbed again: until it is back."""
UNLUCKY = (EngineError, NotAcquired, LeaseLost)


@dataclass
class Turn:
    """One lease that a worker got: when it asked, when it had it, and its token."""

    asked_at: float
    had_at: float
    token: int


@dataclass
class Resource:
    """What the workers write to: it refuses a token below one that it has seen."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    highest: int = 0
    accepted: list[int] = field(default_factory=list)
    refused: int = 0

    def write(self, token: int) -> None:
        with self.lock:
            if token < self.highest:
                self.refused += 1
            else:
                self.highest = token
                self.accepted.append(token)


class Play:
    """The workers, the servers, and what is known when all is over."""

    def __init__(self, url: str, servers: list[RedisServer]) -> None:
        self.url, self.servers = url, servers
        self.resource, self.turns = Resource(), list[Turn]()
        self.ends_at = time.monotonic() + SECONDS
        self.happened: dict[str, int] = {}

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends_at

    def work_blocking(self, seed: int) -> None:
        chance = random.Random(seed)
        with Leasehold(self.url, request_timeout=1.0) as locks:
            while self.goes_on:
                asked_at = time.monotonic()
                try:
                    lease = locks.lock("turn", ttl=TTL, wait=2, renew=chance.random() < 0.8).acquire()
                except UNLUCKY:
                    continue
                self.turns.append(Turn(asked_at, time.monotonic(), lease.token))
                self.resource.write(lease.token)
                # Now and then a worker stalls past its TTL, and then writes all the same.
                time.sleep(TTL * 2 if chance.random() < 0.1 else 0.005)
                self.resource.write(lease.token)
                try:
                    lease.release()
                except UNLUCKY:
                    continue

    def work_async(self, seed: int) -> None:
        asyncio.run(self._work_async(random.Random(seed)))

    async def _work_async(self, chance: random.Random) -> None:
        async with AsyncLeasehold(self.url, request_timeout=1.0) as locks:

            async def worker() -> None:
                while self.goes_on:
                    asked_at = time.monotonic()
                    try:
                        lease = await locks.lock("turn", ttl=TTL, wait=2, renew=chance.random() < 0.8).acquire()
                    except UNLUCKY:
                        continue
                    self.turns.append(Turn(asked_at, time.monotonic(), lease.token))
                    self.resource.write(lease.token)
                    await asyncio.sleep(TTL * 2 if chance.random() < 0.1 else 0.005)
                    self.resource.write(lease.token)
                    try:
                        await lease.release()
                    except UNLUCKY:
                        continue

            await asyncio.gather(worker(), worker())

    def disturb(self, seed: int) -> None:
        """Trouble for at most two servers at a time, those that are kept out included."""
        chance = random.Random(seed)
        troubled: dict[int, tuple[float, str]] = {}
        while self.goes_on:
            for index, (over_at, kind) in list(troubled.items()):
                if time.monotonic() >= over_at:
                    self._end(self.servers[index], kind)
                    del troubled[index]
            if len(troubled) < 2:
                index = chance.choice([index for index in range(len(self.servers)) if index not in troubled])
                kind = chance.choices(["kill", "pause", "restart", "wipe"], [3, 3, 3, 1])[0]
                lasts = self._begin(self.servers[index], kind, chance)
                troubled[index] = (time.monotonic() + lasts, kind)
                self.happened[kind] = self.happened.get(kind, 0) + 1
            time.sleep(0.1)
        for index, (_, kind) in troubled.items():
            self._end(self.servers[index], kind)

    def _begin(self, server: RedisServer, kind: str, chance: random.Random) -> float:
        if kind == "kill":
            server.kill()
        elif kind == "pause":
            server.pause()
        else:
            server.kill()
            if kind == "wipe":
                shutil.rmtree(server.folder / "appendonlydir", ignore_errors=True)
                for path in server.folder.iterdir():
                    path.unlink()
            server.start()
        return KEPT_OUT if kind == "wipe" else chance.uniform(0.1, 1.5)

    def _end(self, server: RedisServer, kind: str) -> None:
        if kind == "kill":
            server.start()
        elif kind == "pause":
            server.resume()

    def judge(self) -> None:
        tokens = [turn.token for turn in self.turns]
        assert len(set(tokens)) == len(tokens), "no token was given twice"
        for turn in self.turns:
            for other in self.turns:
                assert other.had_at >= turn.asked_at or other.token < turn.token, "tokens rise in the order of turns"
        assert self.resource.accepted == sorted(self.resource.accepted)
        assert self.resource.refused > 0, "nobody stalled for long enough to be overtaken"
        assert len(tokens) > 30, f"hardly anybody got a turn: {len(tokens)}"


def test_tokens_only_rise_and_no_stale_write_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With clients whose clocks stand at 1970: were they right, even a wrong protocol would look well for a while."""
    for wire in (BlockingQuorumWire, AsyncQuorumWire):
        monkeypatch.setattr(wire, "wall", lambda _wire: 0)
    with running_quorum(5, query=f"?longest_ttl={LONGEST_TTL}") as quorum:
        play = Play(quorum.url, quorum.servers)
        troublemaker = threading.Thread(target=play.disturb, args=(7,))
        workers = [
            threading.Thread(target=work, args=(seed,))
            for seed, work in enumerate([play.work_blocking, play.work_blocking, play.work_async])
        ]
        for thread in (*workers, troublemaker):
            thread.start()
        for thread in (*workers, troublemaker):
            thread.join()
        print(f"{len(play.turns)} turns, {play.resource.refused} stale writes refused, {play.happened}")
        play.judge()
        assert {"kill", "pause", "restart", "wipe"} <= set(play.happened), "every kind of trouble"
