"""PostgreSQL's advisory locks: each lease lives and dies with a connection of its own.

The server queues who waits and hands the lock over by itself. A connection that is silent for a whole TTL is ended by
the server, and its lock with it: so a lease of this kind has a deadline like any other, and is also over at once when
its process or its connection ends. Tokens come from a table, in the same statement as the lock.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Final

from leasehold.core.engine import (
    Busy,
    Grant,
    HolderStatus,
    Incumbent,
    NameStatus,
    Purpose,
    Renewal,
    Suspect,
    WaiterStatus,
    Want,
)
from leasehold.engines.postgres_facts import session_facts, warn_if_weak
from leasehold.engines.postgres_session_sql import SWEEP_AT_ONCE, session_statements
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown, quoted
from leasehold.keeping import log
from leasehold.wires.postgres_dial import dial
from leasehold.wires.postgres_errors import nonsense
from leasehold.wires.postgres_line import Line
from leasehold.wires.postgres_pins import Pin, Pins
from leasehold.wires.postgres_tables import CLOCK, Tables
from leasehold.wires.postgres_target import Target
from leasehold.wires.sockets import BlockingSockets, Sockets
from leasehold.wires.sockets_asyncio import AsyncSockets
from leasehold.wires.sql_table import Request, Row, Value

OLDEST_SERVER: Final = 140000
"""The first PostgreSQL that ends idle sessions by itself."""
SLICE: Final = 30.0
"""How long one statement waits for a lock, in seconds: while it does, the server cannot clean up dead rows."""
SHORT_WAIT: Final = 0.1
"""Who waits for no longer than this, in seconds, asks once more at the end: a wait in vain costs a connection."""
QUICK_ANSWER: Final = 0.02
SHORTEST_OPENING, SHORTEST_REQUEST = 0.15, 0.05
"""Even a caller in a hurry lets a connection be opened and used once, in seconds: without one, nobody gets anywhere."""
LOOK_EVERY: Final = 0.1
"""How soon a connection that the server has closed is noticed, in seconds: also that of a lease just taken."""
SWEEP_EVERY: Final = 256
FIRST_KEY: Final = -(2**63)


def key_of(namespace: str, name: str) -> int:
    """The key of a name's advisory lock: 64 bits of a strong hash over both, which cannot run into each other."""
    text = f"{len(namespace.encode())}:{namespace}:{name}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


class PostgresSessionEngine:
    """The operations, in either world. Pinned connections belong to the family: the keeper's engine uses them, too."""

    def __init__(self, family: PostgresSessionFamily, sockets: Sockets) -> None:
        self.facts, self.world = family.facts, sockets.world
        self._family, self._pins, self._sockets = family, family.pins, sockets
        self._namespace, self._address = family.namespace, family.facts.address
        self._looking: asyncio.Task[None] | None = None
        self._takes_until_sweep = 1 + int(self.world.chance() * SWEEP_EVERY)
        self._swept_to = FIRST_KEY

    def _request(self, what: str, *values: Value) -> Request:
        return Request(self._family.statements[what], values)

    async def _ask(self, request: Request, until: float) -> list[Row]:
        return await self._pins.ask(request, self._sockets, until)

    # Taking

    async def take(
        self,
        want: Want,
        *,
        until: float,
        patience: float | None = None,  # noqa: ARG002 -- who waits queues in `wait`
        suspect: Suspect | None = None,  # noqa: ARG002 -- no clock that could be set back keeps these leases
    ) -> Grant | Busy:
        """Take the lock and mint its token in one statement, or say who has it."""
        pin = self._pins.get(want.holder)
        if pin is not None and pin.token and await self._prove(pin, want.ttl, until):
            return Grant(pin.token)
        self._takes_until_sweep -= 1
        if self._takes_until_sweep <= 0:
            self._takes_until_sweep = SWEEP_EVERY
            await self._sweep(until)
        pin = await self._pins.pin(want.holder, self._family.key_of(self._namespace, want.name), self._sockets, until)
        until = max(until, self.world.now() + SHORTEST_REQUEST)
        with self._pins.closed_on_error(pin):
            [row] = await pin.line.ask(self._locking("try", want, pin), until)
            granted = self._note_grant(pin, want, row)
        if granted:
            return Grant(pin.token)
        self._pins.unpin(pin, clean=True)
        token, about = row[5:7]
        return Busy(SLICE, None if token is None else Incumbent(token, 0, math.inf, about))

    async def _prove(self, pin: Pin, ttl: float, until: float) -> bool:
        """Whether a wait has brought the lock, or an answer that came too late.

        The server's timer may have started long before the answer was here, so it is started anew.
        """
        return await self.renew([Renewal("", pin.holder, pin.token, ttl)], until=until) == [True]

    def _locking(self, how: str, want: Want, pin: Pin) -> Request:
        values = (pin.key, self._namespace, want.name, math.ceil(want.ttl * 1_000_000), want.about)
        return self._request(how, *values, str(math.ceil(want.ttl * 1000)))

    def _note_grant(self, pin: Pin, want: Want, row: Row) -> bool:
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

    async def wait(self, want: Want, until: float) -> None:
        """Wait in the server's own queue, and return with the lock, or without it at `until`.

        If the lock is granted just as the time runs out, the server reports a failure and keeps the lock all the same.
        So a connection on which waiting failed is closed, whatever the reason.
        """
        left = until - self.world.now()
        if left < SHORT_WAIT:
            await self.world.sleep(max(left, 0.0))
            return
        try:
            key = self._family.key_of(self._namespace, want.name)
            pin = await self._pins.pin(want.holder, key, self._sockets, until)
            with self._pins.closed_on_error(pin):
                patience = self._request("patience", str(math.ceil(left * 1000)), want.about)
                requests = [patience, self._locking("lock", want, pin)]
                _, [row] = await pin.line.ask_all(requests, until, commits=True)
                self._note_grant(pin, want, row)
        except EngineError as error:
            log().debug("a wait for %s ended without the lock: %s", ascii(want.name), error)

    # Keeping

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool | None]:
        """Send a heartbeat on the connection of each lease, then fetch the answers: a slow one delays no other."""
        began_at = self.world.now()
        # What is not known yet is None. A first, short look leaves nobody waiting behind one that hangs.
        kept: dict[str, bool | None] = {lease.holder: await self._keep(lease, began_at, began_at) for lease in leases}
        for give_up_at in (self.world.now() + QUICK_ANSWER, until):
            for lease in leases:
                if kept[lease.holder] is None:
                    kept[lease.holder] = await self._keep(lease, began_at, min(give_up_at, until))
        if all(one is None for one in kept.values()):
            raise OutcomeUnknown(f"{self._address} did not answer a heartbeat in time")
        return [kept[lease.holder] for lease in leases]

    async def _keep(self, lease: Renewal, began_at: float, until: float) -> bool | None:
        """Whether a lease is kept, by a heartbeat that was sent since `began_at`; None when there is no answer yet."""
        pin = self._pins.get(lease.holder)
        if pin is None or pin.token != lease.token:
            return False
        if not await pin.claim(self._sockets, until):
            return None
        try:
            pin.ttl = max(pin.ttl, lease.ttl)
            kept = await self._beat(pin, began_at, until)
        except ConnectionError:
            kept = False
        finally:
            pin.free()
        if kept is False:
            self._pins.unpin(pin, clean=False)
        return kept

    async def _beat(self, pin: Pin, began_at: float, until: float) -> bool | None:
        while True:
            if pin.posted_at is None:
                pin.line.post(self._request("heartbeat", str(math.ceil(pin.ttl * 1000))))
                pin.posted_at = self.world.now()
            posted_at = pin.posted_at
            kept = await self._fetch(pin, until)
            if not kept or posted_at >= began_at:
                return kept
            # That one was sent earlier, and proves nothing about now.

    async def _fetch(self, pin: Pin, until: float) -> bool | None:
        """The answer to a heartbeat, if one is under way; None when it has not come. Raises `ConnectionError`."""
        if pin.posted_at is None:
            return True
        answer = await pin.line.answer(until)
        if answer is None:
            return None
        pin.posted_at = None
        return bool(answer and answer[0][0] == pin.pid)

    def when_lost(self, tell: Callable[[str], object]) -> None:
        """Have `tell` called with each holder whose connection the server has closed."""
        self._looking = asyncio.get_running_loop().create_task(self._look_for_losses(tell))

    async def _look_for_losses(self, tell: Callable[[str], object]) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for pin in self._pins.broken():
                self._pins.unpin(pin, clean=False)
                tell(pin.holder)

    # Giving back

    async def release(self, name: str, holder: str, *, until: float) -> bool:  # noqa: ARG002 -- the holder is unique
        """Give the lock back. False when it was not held by this holder any more."""
        pin = self._pins.get(holder)
        if pin is None:
            return False
        if not await pin.claim(self._sockets, until):
            raise OutcomeUnknown(f"the connection of this lease to {self._address} is in use by others")
        try:
            with self._pins.closed_on_error(pin):
                held = await self._unlock(pin, until)
        finally:
            pin.free()
        self._pins.unpin(pin, clean=held)
        return held

    async def _unlock(self, pin: Pin, until: float) -> bool:
        try:
            heard = await self._fetch(pin, until)
        except ConnectionError:
            return False
        if heard is None:
            raise OutcomeUnknown(f"{self._address} did not answer in time; the lock's connection was closed")
        if not heard or not pin.token or not pin.line.is_usable():
            return False
        try:
            [[unlocked, pid, *_]] = await pin.line.ask(self._request("unlock", pin.key), until)
        except EngineUnavailable as error:
            # Even if it was not sent: the connection is closed now, and that gives the lock back.
            raise OutcomeUnknown(str(error)) from None
        return unlocked is True and pid == pin.pid

    # Looking, and force

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits; None when the server knows nothing of this name."""
        key = self._family.key_of(self._namespace, name)
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

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their bytes, following `after`."""
        return [name for [name] in await self._ask(self._request("names", self._namespace, after or "", limit), until)]

    async def force_release(self, name: str, *, until: float) -> int:
        """End the connection of whoever holds the lock, after a token above its own was minted; returns that token."""
        key = self._family.key_of(self._namespace, name)
        [[token, _]] = await self._ask(self._request("force", key, self._namespace, name), until)
        if type(token) is not int:
            raise nonsense(token, self._address)
        return token

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Warn where tokens may be lost."""
        if purpose == "correctness":
            [settings] = await self._ask(self._request("settings"), until)
            warn_if_weak(self._address, settings, durable=self._family.target.durable)

    async def _sweep(self, until: float) -> None:
        """Forget some names that nobody has used for a day; their tokens do not fall."""
        try:
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
        except EngineError as error:
            log().debug("names that nobody uses could not be swept: %s", error)

    async def close(self) -> None:
        """Close what no lease needs. Leases that are held stay so until their TTL."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._pins.close_idle()

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection of the family."""
        self._pins.forked()


class PostgresSessionFamily:
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
        self.facts = session_facts(target.address)
        self.target, self.namespace, self.key_of = target, namespace, key_of
        self.statements = session_statements(target, clock)
        self.pins = Pins(self._connect)
        self._label, self._tables = label, Tables(target)

    def __repr__(self) -> str:
        return f"<PostgresSessionFamily {self.facts.address}>"

    def blocking(self) -> PostgresSessionEngine:
        """An engine whose operations block. Threads may share it."""
        return PostgresSessionEngine(self, BlockingSockets())

    def asyncio(self) -> PostgresSessionEngine:
        """An engine for the running event loop. Tasks may share it."""
        return PostgresSessionEngine(self, AsyncSockets())

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
