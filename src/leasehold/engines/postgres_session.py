"""PostgreSQL's advisory locks: each lease lives and dies with a connection of its own.

See `leasehold.engines.sql_session` for what that means. Tokens are minted in the same statement as the lock.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from leasehold.core.acquire import GRACE, SHORTEST_REQUEST
from leasehold.core.engine import Busy, HolderStatus, Incumbent, NameStatus, Purpose, WaiterStatus, Want
from leasehold.engines.postgres_facts import session_facts, warn_if_weak
from leasehold.engines.postgres_session_sql import SWEEP_AT_ONCE, session_statements
from leasehold.engines.sense import sensible
from leasehold.engines.sql_session import (
    ANSWERS_WITHIN,
    AT_REST,
    HEARD_LATELY,
    SHORT_WAIT,
    SHORTEST_OPENING,
    SLICE,
    SqlSessionEngine,
    SqlSessionFamily,
)
from leasehold.errors import EngineError, quoted
from leasehold.wires import sql_pins
from leasehold.wires.postgres_dial import dial
from leasehold.wires.postgres_errors import nonsense
from leasehold.wires.postgres_line import Line
from leasehold.wires.postgres_tables import CLOCK, Tables
from leasehold.wires.postgres_target import Target
from leasehold.wires.sockets import Sockets
from leasehold.wires.sql_pins import Pin
from leasehold.wires.sql_table import Request, Row, Value

OLDEST_SERVER: Final = 140000
"""The first PostgreSQL that ends idle sessions by itself."""
FIRST_KEY: Final = -(2**63)
EARLIER_MS, MOST_EARLIER_MS = 5, 50
"""By so much sooner than the client the server may give up a wait, in milliseconds: who asked to wait may come to it a
little later. Not later than the client, or somebody would be seen to wait who does not."""


class Settings(NamedTuple):
    """What is set in a session before it waits for a lock, and stays set after that."""

    patience_ms: int
    about: str
    silence: Value
    """After how long the server ends it if it is silent."""

    def suffice(self, needed: Settings) -> bool:
        """Whether a wait can do with these."""
        return self[1:] == needed[1:] and 0 <= needed.patience_ms - self.patience_ms <= MOST_EARLIER_MS


class Ready(NamedTuple):
    """A session in which one can wait."""

    settings: Settings
    heard_at: float
    """When it last answered."""

    @property
    def rests_until(self) -> float:
        """Until when it can be used again, while it holds nothing: the server ends it when it is silent."""
        return self.heard_at + int(self.settings.silence or 0) / 1000 - AT_REST


@lru_cache(maxsize=1024)
def key_of(namespace: str, name: str) -> int:
    """The key of a name's advisory lock: 64 bits of a strong hash over both, which cannot run into each other."""
    text = f"{len(namespace.encode())}:{namespace}:{name}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _milliseconds(ttl: float) -> str:
    return str(math.ceil(ttl * 1000))


class PostgresSessionEngine(SqlSessionEngine[int]):
    """The operations in the words of PostgreSQL."""

    def __init__(self, family: PostgresSessionFamily, sockets: Sockets) -> None:
        super().__init__(family, sockets)
        self._family, self._swept_to = family, FIRST_KEY

    async def _try(self, pin: Pin[int], want: Want, patience: float | None, until: float) -> Busy | None:
        line = pin.line
        line.is_set_for = None
        terms = self._terms(want, pin)
        asked = self._request("try", *terms)
        settings = None
        if patience is not None and patience > SHORTEST_REQUEST + GRACE + 2 * SHORT_WAIT:
            # If it has to wait, then with these settings: so that the wait is one request.
            wait = min(patience - SHORTEST_REQUEST - GRACE, SLICE)
            settings = Settings(math.floor(wait * 1000) - EARLIER_MS, want.about, terms[-1])
            asked = self._request("try_first", *terms, str(settings.patience_ms))
        [row] = await line.ask(asked, until)
        if self._note_grant(pin, want, row):
            return None
        line.is_set_for = settings and Ready(settings, self.world.now())
        token, about = row[5:7]
        return Busy(SLICE, None if token is None else Incumbent(token, 0, math.inf, about))

    def _terms(self, want: Want, pin: Pin[int]) -> tuple[Value, ...]:
        micros, silence = math.ceil(want.ttl * 1_000_000), _milliseconds(want.ttl)
        return (pin.key, self._namespace, want.name, micros, want.about, silence)

    def _note_grant(self, pin: Pin[int], want: Want, row: Row) -> bool:
        got, token, pid, namespace, name, *_ = row
        # Without a row there is no other name: whoever forgets an idle one keeps its lock for a moment.
        is_another = name is not None and (namespace, name) != (self._namespace, want.name)
        if is_another or (got and token is None):
            other = f"{quoted(name)} (in namespace {quoted(namespace)})" if is_another else "another name"
            raise EngineError(
                f"{quoted(want.name)} and {other} have the same key on {self._address} and would exclude each other; "
                "rename one of them"
            )
        if not got:
            return False
        if type(token) is not int or type(pid) is not int:
            raise nonsense(row, self._address)
        pin.pid, pin.ttl = pid, want.ttl
        pin.token = token
        return True

    async def _queue(self, pin: Pin[int], want: Want, until: float) -> None:
        # If the lock is granted just as the time runs out, the server reports a failure and keeps the lock all the
        # same. So a connection on which waiting failed is closed, whatever the reason; and if nobody hears of that, the
        # server ends it when it has been silent for a TTL. That setting is a transaction of its own: a wait in vain
        # would take it back.
        line, terms = pin.line, self._terms(want, pin)
        left_ms = math.ceil(max(until - self.world.now(), 0.001) * 1000)
        needed = Settings(left_ms, want.about, terms[-1])
        ready: Ready | None = line.is_set_for
        line.is_set_for = None
        line.doze()
        is_heard = ready is not None and self.world.now() <= ready.heard_at + HEARD_LATELY
        if ready is None or not is_heard or not ready.settings.suffice(needed):
            # By itself, and soon: on a connection that has broken in silence one would wait for long.
            settings = needed._replace(patience_ms=left_ms - EARLIER_MS)
            patience = self._request("patience", str(settings.patience_ms), want.about, needed.silence)
            await line.ask(patience, min(until, self.world.now() + ANSWERS_WITHIN))
            ready = Ready(settings, self.world.now())
        # Without a row there is a lock, and the row of another name.
        [row] = await line.ask(self._request("lock", *terms), until) or [(True, None, pin.pid, None, None)]
        if self._note_grant(pin, want, row):
            line.is_set_for = ready

    def _heartbeat(self, pin: Pin[int]) -> Request:
        silence, line = _milliseconds(pin.ttl), pin.line
        if line.is_set_for is not None and line.is_set_for.settings.silence != silence:
            line.is_set_for = None
        return self._request("heartbeat", silence)

    def _unlocking(self, pin: Pin[int]) -> Request:
        """Who had to wait may have to wait again in a moment, and leaves its session as it is."""
        return self._request("unlock" if pin.line.is_set_for is None else "unlock_only", pin.key)

    def _was_held(self, pin: Pin[int], rows: list[Row]) -> bool:
        [[unlocked, pid, *_]] = rows
        return bool(unlocked) and pid == pin.pid

    async def _unlock(self, pin: Pin[int], until: float) -> bool:
        unlocked, line = await super()._unlock(pin, until), pin.line
        if line.is_set_for is not None:
            line.is_set_for = line.is_set_for._replace(heard_at=self._heard_at)
        return unlocked

    # Looking, and force

    @sensible
    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits; None when the server knows nothing of this name."""
        key = self._key_of(self._namespace, name)
        rows = await self._ask(self._request("status", key, self._namespace, name), until)
        if not rows:
            return None
        holders, waiters = [], []
        for token, about, age, ttl, granted, application, waited in rows:
            if granted:
                holders.append(HolderStatus(token, "exclusive", about, age / 1e6, ttl / 1e6))
            elif granted is not None:
                since = (waited or 0) / 1e6
                waiters.append(WaiterStatus("exclusive", application or "", since, max(SLICE - since, 0.0)))
        return NameStatus(name, rows[0][0], tuple(holders), tuple(waiters))

    @sensible
    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their bytes, following `after`."""
        return [name for [name] in await self._ask(self._request("names", self._namespace, after or "", limit), until)]

    @sensible
    async def force_release(self, name: str, *, until: float) -> int:
        """End the connection of whoever holds the lock, after a token above its own was minted; returns that token."""
        key = self._key_of(self._namespace, name)
        [[token, _]] = await self._ask(self._request("force", key, self._namespace, name), until)
        if type(token) is not int:
            raise nonsense(token, self._address)
        return token

    @sensible
    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Warn where tokens may be lost."""
        if purpose == "correctness":
            [settings] = await self._ask(self._request("settings"), until)
            warn_if_weak(self._address, settings, durable=self._family.target.durable)

    async def _sweep(self, until: float) -> None:
        page = await self._ask(self._request("page", self._swept_to), until)
        if page:
            first, last = self._swept_to, page[-1][0]
            requests = [
                self._request("begin"),
                self._request("raise_base", first, last),
                self._request("forget", first, last),
                self._request("commit"),
            ]
            await self._pins.ask_all(requests, self._sockets, until)
        self._swept_to = page[-1][0] if len(page) == SWEEP_AT_ONCE else FIRST_KEY


class PostgresSessionFamily(SqlSessionFamily[PostgresSessionEngine, int]):
    """One database, and how to reach it in each world."""

    def __init__(
        self,
        target: Target,
        namespace: str,
        label: str,
        *,
        clock: str = CLOCK,
        key_of: Callable[[str, str], int] = key_of,
    ) -> None:
        """`clock` is the server's own and `key_of` a strong hash, except in tests."""
        super().__init__(session_facts(target.address), namespace, session_statements(target, clock), key_of)
        self.target, self._label, self._tables = target, label, Tables(target)

    def _is_fit(self, line: sql_pins.Line, now: float) -> bool:
        ready: Ready | None = line.is_set_for
        return line.is_usable() and (ready is None or now < ready.rests_until)

    def _engine_over(self, sockets: Sockets) -> PostgresSessionEngine:
        return PostgresSessionEngine(self, sockets)

    async def _connect(self, sockets: Sockets, until: float) -> Line:
        until = max(until, sockets.world.now() + SHORTEST_OPENING)
        line = await dial(self.target, self.target.endpoints, sockets, self._label, until)
        if line.server_version < OLDEST_SERVER:
            line.close()
            raise EngineError(
                f"{self.target.address} runs a PostgreSQL that is older than 14 and does not end silent sessions: a "
                "holder that vanished would keep its lock; use leases instead (postgresql://)"
            )
        if not await self._tables.enter(line, until):
            line.close()
            raise EngineError(
                f"a pooler stands before {self.target.address}; in transaction mode it would spread a lock and its "
                "unlock over several sessions, and nobody would be excluded: connect to the server itself, or use "
                "leases (postgresql://), or say ?pooler=session if it keeps one session for each connection"
            )
        return line
