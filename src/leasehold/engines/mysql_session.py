"""Named locks of MySQL and MariaDB (GET_LOCK): each lease lives and dies with a connection of its own.

See `leasehold.engines.sql_session` for what that means. Lock and token are had in one round trip.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from leasehold.core.engine import Busy, HolderStatus, Incumbent, NameStatus, Purpose, WaiterStatus, Want
from leasehold.engines.mysql_facts import session_facts, warn_if_weak
from leasehold.engines.mysql_session_sql import CLOCK, SWEEP_AT_ONCE, session_statements
from leasehold.engines.sense import sensible
from leasehold.engines.sql_session import (
    ANSWERS_WITHIN,
    AT_REST,
    HEARD_LATELY,
    SHORTEST_OPENING,
    SLICE,
    WORTH_QUEUEING,
    SqlSessionEngine,
    SqlSessionFamily,
)
from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires.mysql import connected_line
from leasehold.wires.mysql_dial import Dialer
from leasehold.wires.mysql_line import Line as MysqlLine
from leasehold.wires.mysql_packets import literal
from leasehold.wires.mysql_tables import Tables
from leasehold.wires.mysql_target import Target
from leasehold.wires.sockets import Sockets
from leasehold.wires.sql_pins import Line, Pin
from leasehold.wires.sql_table import Request, Row

EARLY: Final = 0.05
"""Who comes back from the server's queue so long before its time, in seconds, met a server that waits for whole
seconds only."""
PAUSE: Final = 0.1
"""How often one asks again during the rest, in seconds."""
LONGEST_KILL: Final = 1.0
"""For how long one watches whether the connection of a holder ends that was killed, in seconds."""
SHORT_TRIES: Final = 8
"""How often the short way to a lock that is free may be in vain, one time after the other, before it is given up."""
_ABOUT: Final = re.compile(r"@leasehold_about = x'([0-9a-f]*)'")


@lru_cache(maxsize=1024)
def key_of(namespace: str, name: str) -> str:
    """The name of a name's lock in the server: 240 bits of a strong hash over both, which cannot run into each other.

    A server knows no more than 64 characters of a lock's name, and may or may not fold their case.
    """
    text = f"{len(namespace.encode())}:{namespace}:{name}"
    return f"lhs:{hashlib.sha256(text.encode()).hexdigest()[:60]}"


class Served(NamedTuple):
    """What is known of the server's side of a connection."""

    pid: int
    """Its number there."""
    timer: int
    """After how many seconds without a word the server ends it; 0 where that is as the server has it."""
    heard_at: float
    """When it last answered."""

    @property
    def rests_until(self) -> float:
        """Until when it can be used again, while it holds nothing."""
        return self.heard_at + self.timer - AT_REST if self.timer else math.inf


class MysqlSessionEngine(SqlSessionEngine[str]):
    """The operations in the words of MySQL and MariaDB."""

    def __init__(self, family: MysqlSessionFamily, sockets: Sockets) -> None:
        super().__init__(family, sockets)
        self._waiting, self._swept_to = family.waiting, ("", "")
        self._short_tries = SHORT_TRIES

    async def _try(self, pin: Pin[str], want: Want, patience: float | None, until: float) -> Busy | None:  # noqa: ARG002
        served: Served | None = pin.line.is_set_for
        in_vain = False
        if served is not None and served.timer == _whole(want.ttl) and self._short_tries:
            values = (self._namespace, want.name, pin.key, _micros(want.ttl), want.about, served.pid)
            if self._note(pin, want, served, await pin.line.ask(self._request("take", *values), until)):
                self._short_tries = SHORT_TRIES
                return None
            in_vain = True
        busy = await self._lock(pin, want, 0.0, until)
        if busy is None and in_vain:  # it was free all the same, and perhaps this server does not know the short way
            self._short_tries -= 1
        return busy

    def _note(self, pin: Pin[str], want: Want, served: Served, rows: list[Row]) -> bool:
        """Take note of a grant; False when it is none."""
        [[changed, token]] = rows
        if changed and (changed != 1 or not token):
            raise ValueError("a lock is taken once, and with a token")
        if changed:
            pin.pid, pin.ttl, pin.token = served.pid, want.ttl, int(token)
        return bool(changed)

    async def _lock(self, pin: Pin[str], want: Want, patience: float, until: float) -> Busy | None:
        whole, micros = _whole(want.ttl), _micros(want.ttl)
        values = (pin.key, int(patience * 1000), self._namespace, want.name, micros, whole, want.about)
        [[got, minted, connection, token, about]] = await pin.line.ask(self._request("lock", *values), until)
        if got is None:
            raise EngineUnavailable(f"{self._address} could not decide about a lock (GET_LOCK said NULL)")
        pin.line.is_set_for = Served(int(connection), whole if int(got) else 0, self.world.now())
        if not int(got):
            return Busy(SLICE, None if token is None else Incumbent(int(token), 0, math.inf, about))
        pin.pid, pin.ttl = int(connection), want.ttl
        pin.token = int(minted)
        return None

    async def _queue(self, pin: Pin[str], want: Want, until: float) -> None:
        served: Served | None = pin.line.is_set_for
        if served is None or self.world.now() > served.heard_at + HEARD_LATELY:
            # One that has broken in silence would be waited on for long.
            soon = min(until, self.world.now() + ANSWERS_WITHIN)
            [[number]] = await pin.line.ask(self._request("self"), soon)
            timer = served.timer if served is not None and served.pid == number else 0
            served = pin.line.is_set_for = Served(int(number), timer, self.world.now())
        self._waiting[want.holder] = served.pid
        patience = max(until - self.world.now(), 0.0)
        if served.timer == _whole(want.ttl) and patience >= WORTH_QUEUEING:
            await self._stand(pin, want, served, patience, until)
            return
        # The answer gets a moment to come: a wait that is given up leaves a closed connection.
        busy = await self._lock(pin, want, patience, until + EARLY)
        del self._waiting[want.holder]
        if busy is None:
            return
        self._pins.unpin(pin, clean=True)
        left = until - self.world.now()
        if left > EARLY:
            await self.world.sleep(min(left, PAUSE))

    async def _stand(self, pin: Pin[str], want: Want, served: Served, patience: float, until: float) -> None:
        """Wait for a lock whose name has a row, and mint its token: the shortest way from one holder to the next."""
        values = (pin.key, int(patience * 1000), self._namespace, want.name, _micros(want.ttl), served.pid, want.about)
        rows = await pin.line.ask(self._request("stand", *values), until + EARLY)
        del self._waiting[want.holder]
        if not self._note(pin, want, served, rows):
            # Perhaps the lock was had, and the row was forgotten meanwhile: closing the connection gives it back.
            self._pins.unpin(pin, clean=False)

    def _heartbeat(self, pin: Pin[str]) -> Request:
        served: Served | None = pin.line.is_set_for
        timer = _whole(pin.ttl)
        pin.line.is_set_for = Served(pin.pid, timer, served.heard_at if served is not None else -math.inf)
        return self._request("heartbeat", pin.key, timer)

    def _unlocking(self, pin: Pin[str]) -> Request:
        return self._request("unlock", pin.key, pin.pid)

    def _was_held(self, pin: Pin[str], rows: list[Row]) -> bool:  # noqa: ARG002 -- the server has looked whose it is
        [[found, _]] = rows
        if found not in (0, 1):
            raise ValueError("a lock is given back once")
        return bool(found)

    async def _unlock(self, pin: Pin[str], until: float) -> bool:
        unlocked = await super()._unlock(pin, until)
        served: Served | None = pin.line.is_set_for
        if unlocked and served is not None:
            pin.line.is_set_for = Served(served.pid, served.timer, self._heard_at)
        return unlocked

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the lock back, and the place in the queue. False when it was not held by this holder any more."""
        held = await super().release(name, holder, until=until)
        connection = self._waiting.pop(holder, None)
        if connection is not None:  # a server that makes somebody wait does not look whether that one is still there
            waits = f"GET_LOCK({literal(self._key_of(self._namespace, name))}"
            await self._ask(self._request("end_wait", connection, waits), until)
        return held

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection of the family."""
        super().forked()
        self._waiting.clear()

    # Looking, and force

    @sensible
    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits; None when the server knows nothing of this name."""
        rows = await self._ask(self._request("status", self._namespace, name), until)
        if not rows:
            return None
        [[token, about, age, ttl, is_held]] = rows
        holder = HolderStatus(int(token), "exclusive", about, int(age) / 1e6, int(ttl) / 1e6)
        key = literal(self._key_of(self._namespace, name))
        asked = await self._ask(self._request("waiters", f"GET_LOCK({key}"), until)
        waiters = [_waiter(info, int(seconds)) for info, seconds in asked]
        return NameStatus(name, int(token), (holder,) if int(is_held) else (), tuple(waiters))

    @sensible
    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held, in the order of their bytes, following `after`."""
        return [name for [name] in await self._ask(self._request("names", self._namespace, after or "", limit), until)]

    @sensible
    async def force_release(self, name: str, *, until: float) -> int:
        """End the connection of whoever holds the lock, after a token above its own was minted; returns that token."""
        key = self._key_of(self._namespace, name)
        [[token, connection]] = await self._ask(self._request("mint", self._namespace, name, key), until)
        if connection is not None:
            await self._ask(self._request("kill", int(connection)), until)
            await self._watch_end(key, connection, min(until, self.world.now() + LONGEST_KILL))
        return int(token)

    async def _watch_end(self, key: str, connection: int, until: float) -> None:
        while (await self._ask(self._request("who", key), until + EARLY))[0][0] == connection:
            if self.world.now() >= until:
                raise EngineError(
                    f"the holder's connection to {self._address} was not ended; a user may end its own connections, "
                    "and those of others with CONNECTION ADMIN (or CONNECTION_ADMIN, or SUPER)"
                )
            await self.world.sleep(0.005)

    @sensible
    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Warn where tokens may be lost."""
        if purpose == "correctness":
            settings = await self._ask(self._request("settings"), until)
            [[replicas]] = await self._ask(self._request("replicas"), until)
            warn_if_weak(self._address, dict(settings), int(replicas))

    async def _sweep(self, until: float) -> None:
        page = await self._ask(self._request("page", *self._swept_to), until)
        old = [self._request("forget", *row[:3]) for row in page if int(row[3])]
        if old:
            await self._pins.ask_all(old, self._sockets, until)
        self._swept_to = (page[-1][0], page[-1][1]) if len(page) == SWEEP_AT_ONCE else ("", "")


def _micros(ttl: float) -> int:
    return math.ceil(ttl * 1_000_000)


def _whole(ttl: float) -> int:
    """The server's timer counts whole seconds."""
    return max(math.ceil(ttl), 1)


def _waiter(info: str, seconds: int) -> WaiterStatus:
    found = _ABOUT.search(info)
    about = bytes.fromhex(found[1]).decode("utf-8", "replace") if found else ""
    return WaiterStatus("exclusive", about, float(seconds), max(SLICE - seconds, 0.0))


class MysqlSessionFamily(SqlSessionFamily[MysqlSessionEngine, str]):
    """One database, and how to reach it in each world."""

    def __init__(
        self,
        target: Target,
        namespace: str,
        label: str,
        *,
        clock: str = CLOCK,
        key_of: Callable[[str, str], str] = key_of,
    ) -> None:
        """`clock` is the server's own, except in tests."""
        super().__init__(session_facts(target.address), namespace, session_statements(clock), key_of)
        self.waiting: dict[str, int] = {}
        """The connections of holders that stand in the server's queue, or were interrupted there."""
        self.target, self._label, self._tables = target, label, Tables(target.address)

    def _is_fit(self, line: Line, now: float) -> bool:
        served: Served | None = line.is_set_for
        return line.is_usable() and (served is None or now < served.rests_until)

    def _engine_over(self, sockets: Sockets) -> MysqlSessionEngine:
        return MysqlSessionEngine(self, sockets)

    async def _connect(self, sockets: Sockets, until: float) -> MysqlLine:
        until = max(until, sockets.world.now() + SHORTEST_OPENING)
        return await connected_line(self.target, Dialer(self.target, sockets, self._label), self._tables, until)
