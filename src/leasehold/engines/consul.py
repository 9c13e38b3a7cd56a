"""Consul: one transaction to take a name, the index that it got as its token, and a queue in the order of indexes.

Each attempt writes a key that hangs on the client's session; see `consul_taking` for what that means, and
`consul_sessions` for the sessions. Whoever must wait asks to be told when the key before its own is gone; see
`consul_watch`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leasehold.core.engine import Busy, Grant, NameStatus, Purpose, Renewal, Suspect, Want
from leasehold.core.worlds import World
from leasehold.engines import consul_keys, key_queue
from leasehold.engines.about import about_in
from leasehold.engines.consul_facts import facts_of
from leasehold.engines.consul_requests import FAREWELL, Requests
from leasehold.engines.consul_sessions import Place, Session, Sessions
from leasehold.engines.consul_taking import TRIES, Taking
from leasehold.engines.consul_watch import Waiter, Watches
from leasehold.engines.key_queue import NameKeys
from leasehold.errors import EngineError, EngineUnavailable, Misuse, quoted
from leasehold.wires.consul import (
    LATE,
    MOST_OPERATIONS,
    ConsulWire,
    Refused,
    asyncio_wire,
    blocking_wire,
    deleting,
    deleting_as_seen,
    getting,
    if_on,
    setting,
)
from leasehold.wires.consul_address import Address, address_from_client, address_from_url, warn_of_transport
from leasehold.wires.consul_errors import SessionGone

if TYPE_CHECKING:
    from leasehold.lease import LeaseView

KEPT: Final = 1 / 3
"""A session that waiters hang on is renewed whenever it has spent this share of its TTL."""
LEFT_TO_ANOTHER: Final = 1 / 2
"""The same, by who does not ask for news: thousands need not wake up for what the one that asks has done by then."""
SHORT_WAIT: Final = 0.005
"""Who waits for longer than this, in seconds, hangs on a session for waiters, which costs a request or two."""


class ConsulEngine:
    """The operations, the same in both worlds: only the wire differs."""

    def __init__(self, family: ConsulFamily, wire: ConsulWire) -> None:
        self.facts = family.facts
        self.world: World = wire.world
        self._family, self._wire, self._sessions = family, wire, family.sessions
        self._requests = Requests(wire, family.sessions, family.label)
        self._taking = Taking(wire, self._requests, family.sessions, self._keys)
        self._watches = Watches(wire, family.sessions, self._keys)

    def _keys(self, name: str) -> NameKeys:
        return consul_keys.keys_of(self._family.namespace, name)

    async def take(
        self,
        want: Want,
        *,
        until: float,
        patience: float | None = None,
        suspect: Suspect | None = None,  # noqa: ARG002 -- nobody can set back the clock that ends sessions
    ) -> Grant | Busy:
        """Take the name, or say why not; with patience, queue."""
        return await self._taking.take(want, patience, until)

    # Waiting

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, None]:
        """To be awaited: returns when what stands before the asker is gone; meanwhile its session is kept alive.

        It is no coroutine of its own: each of thousands of waiting tasks would keep one.
        """
        place = self._sessions.known(want.holder)
        if place is None or place.blockade is None:
            return self._rest(until)
        return self._wait(Waiter(place, self._wire.bell(), self.world.now() + SHORT_WAIT), until)

    async def _wait(self, waiter: Waiter, until: float) -> None:
        try:
            self._watches.enter(waiter)
            # What is asked for may be answered so much later.
            while (step := self._next_step(waiter, until - LATE)) is not None:
                await step
        finally:
            self._watches.leave(waiter)
        if waiter.woken or waiter.place.session.dead:
            waiter.place.woken = True
        else:
            await self._rest(until)

    async def _rest(self, until: float) -> None:
        await self.world.sleep(max(until - self.world.now(), 0.0))

    def _next_step(self, waiter: Waiter, until: float) -> Awaitable[object] | None:
        """What one who waits does next; None when there is a reason to look again, or at `until`."""
        now, session = self.world.now(), waiter.place.session
        if waiter.woken or now >= until:
            return None
        leads = self._watches.leads(waiter)
        if waiter.settles_at is not None:
            due_at = waiter.settles_at
        elif session.dead:
            return None
        else:
            due_at = session.renew_at(KEPT if leads else LEFT_TO_ANOTHER)
        if now >= due_at:
            return self._see_to_session(waiter, until)
        return self._watches.news(waiter, min(until, due_at), leads=leads)

    async def _see_to_session(self, waiter: Waiter, until: float) -> None:
        """Hang on the right one, and later renew it; meanwhile another one asks for news."""
        self._watches.leave(waiter)
        if waiter.settles_at is not None:
            waiter.settles_at = None
            await self._settle(waiter.place, until)
        else:
            await self._refresh_while_waiting(waiter.place.session, self.world.now(), until)
        self._watches.enter(waiter)

    async def _settle(self, place: Place, until: float) -> None:
        """Hang on a session that ends sooner: should this process die, nobody waits for it for long."""
        now = self.world.now()
        session = self._sessions.waiting_for(place, now)
        if session is None or now >= until:
            return
        try:
            await self._taking.hang(place, session, min(until, now + session.ttl / 6))
        except SessionGone:
            self._sessions.bury(session)
        except EngineError:
            return  # it waits where it is; and if something is wrong, the next request says so

    async def _refresh_while_waiting(self, session: Session, now: float, until: float) -> None:
        session.claim(now)
        try:
            await self._requests.refresh(session, min(until, now + session.ttl / 6))
        except EngineError:
            return  # tried again soon; and if it stays so, the next request says it

    # Holding

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Renew each session, and look whether each key still hangs on it."""
        asked = [(lease, place) for lease in leases if (place := self._sessions.known(lease.holder)) is not None]
        for lease, place in asked:
            if lease.ttl > place.session.ttl and not place.session.dead:
                await self._prolong(lease, place, until)
        kept: set[Session] = set()
        for session in dict.fromkeys(place.session for _, place in asked):
            if not session.dead and await self._requests.refresh(session, until):
                kept.add(session)
        asked = [(lease, place) for lease, place in asked if place.session in kept]
        still: set[str] = set()
        for start in range(0, len(asked), MOST_OPERATIONS):
            still |= await self._still_held(asked[start : start + MOST_OPERATIONS], until)
        return [lease.holder in still for lease in leases]

    async def _prolong(self, lease: Renewal, place: Place, until: float) -> None:
        """Hang the key of a lease on a session that lasts as long as it is to last from now on.

        Consul may have ended that one, which says nothing of the lease: it gets another.
        """
        delay = place.session.terms.delay
        for tries_left in reversed(range(TRIES)):
            session = self._sessions.home_for(place, lease.ttl, delay, self.world.now())
            try:
                await self._taking.hang(place, session, until)
                return
            except SessionGone as error:
                self._sessions.bury(session)
                if not tries_left:
                    raise EngineUnavailable(str(error)) from None

    async def _still_held(self, asked: list[tuple[Renewal, Place]], until: float) -> set[str]:
        """The holders among these whose keys are as they were created."""
        while asked:
            found = await self._wire.txn([getting(place.key) for _, place in asked], until, changes=False)
            if not isinstance(found, Refused):
                held = {one.key: one for one in found}
                return {
                    lease.holder
                    for lease, place in asked
                    if (one := held.get(place.key)) is not None
                    and (one.created, one.lease) == (lease.token, place.session.id)
                }
            if not found.why.keys() & set(range(len(asked))):
                raise EngineError(f"{self.facts.address} refuses to read keys: {found.why}")
            asked = [one for number, one in enumerate(asked) if number not in found.why]
        return set()

    async def release(self, name: str, holder: str, *, until: float) -> bool:  # noqa: ARG002 -- the holder says it all
        """Give the name back, and leave its queue."""
        place = self._sessions.known(holder)
        if place is None:  # there is nothing of it, or it ended with its session
            return False
        try:
            was_there = await self._delete(place, until)
        except BaseException:
            self._sessions.owe(place)
            raise
        self._sessions.forget(holder)
        await self._requests.end_idle(all_idle=False, until=until)
        return was_there and not place.waits

    async def _delete(self, place: Place, until: float) -> bool:
        """Delete the key of a place; whether it was there, and still its own."""
        session = place.session.id
        if session is None:  # nothing was ever sent
            return False
        if not place.uncertain:
            operations = [if_on(place.key, session), deleting(place.key)]
            return not isinstance(await self._requests.change(place, operations, until, unread=1), Refused)
        found, _ = await self._wire.entries(place.key, until)
        await self._requests.change(place, [deleting(place.key)], until)
        return any(one.key == place.key and one.lease for one in found)

    # Operators

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits. Consul does not tell how long a session has left, so the TTL is shown.

        What remains of a lost lease keeps its place, and who came after the loss waits for the end of its lock-delay.
        """
        found, _ = await self._wire.entries(self._keys(name).all[0], until)
        if not found:
            return None
        found.sort(key=lambda one: one.created)
        remains = [one for one in found if not one.lease]
        closed_since = min((one.modified for one in remains), default=math.inf)
        let_in, others = key_queue.standing(found)
        holding = [one for one in let_in if one.lease and one.created < closed_since]
        waiting = [one for one in others if one.lease] + [one for one in let_in if one.lease][len(holding) :]
        waiting.sort(key=lambda one: one.created)
        status = key_queue.status_of(name, holding, waiting, {}, time.time())
        if not remains:
            return status
        closed_for = max(about_in(one.value).delay for one in remains)
        return status._replace(token=max(status.token, *(one.created for one in remains)), closed_for=closed_for)

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their encoded text."""
        folders = await self._wire.folders(consul_keys.namespace_start(self._family.namespace), until)
        start = b"" if after is None else self._keys(after).all[0]
        names = (consul_keys.name_in(folder, self._family.namespace) for folder in folders if folder > start)
        return [name for name in names if name is not None][:limit]

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name. Waiters lose their places too and queue again, for their tokens are older.

        A key is deleted only if it is as it was seen. Else it may have become a lease with a lock-delay since then, or
        what remains of one: to delete that would open the name at once.
        """
        folder = self._keys(name).all[0]
        token = await self._mark(folder, until)
        while True:
            found, _ = await self._wire.entries(folder, until)
            older = [one for one in found if one.created < token]
            lasting = [one for one in older if about_in(one.value).delay]
            others = [one for one in older if one not in lasting]
            held = [one.lease for one in lasting if one.lease]
            if not others and not held:
                return token
            others.sort(key=lambda one: -one.created)  # nobody comes to hold it because those before were gone first
            for start in range(0, len(others), MOST_OPERATIONS):
                some = [deleting_as_seen(one) for one in others[start : start + MOST_OPERATIONS]]
                await self._wire.txn(some, until)  # if it is refused, one was changed, and the next look shows how
            for session in held:  # with a lock-delay it has a session of its own, whose end counts as a loss
                await self._wire.destroy_session(session, until)

    async def _mark(self, folder: bytes, until: float) -> int:
        """An index of its own: whatever is created later has a higher one."""
        mark = folder + b"broken"
        outcome = await self._wire.txn([setting(mark), deleting(mark)], until)
        if isinstance(outcome, Refused) or not outcome:
            raise EngineError(f"{self.facts.address} did not carry out a release by force")
        return outcome[0].modified

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Every purpose is served: tokens increase whatever the clocks do."""

    # The end

    async def close(self) -> None:
        """End sessions that nothing hangs on, and give back the connections."""
        await self._requests.end_idle(all_idle=True, until=self.world.now() + FAREWELL)
        self._wire.close()

    def forked(self) -> None:
        """Let go of what belongs to the parent: connections, sessions, places."""
        self._family.sessions.forked()
        self._watches.forked()
        self._wire.forked()


class ConsulFamily:
    """One cluster as one client sees it: its agents and its sessions, shared by the worlds."""

    def __init__(self, address: Address, namespace: str, label: str) -> None:
        self.facts, self.namespace = facts_of(address), namespace
        self.label = f"leasehold {label}"
        self.sessions = Sessions(address.least_ttl)
        self._address = address

    def __repr__(self) -> str:
        return f"<ConsulFamily {self.facts.address}>"

    def blocking(self) -> ConsulEngine:
        """An engine whose operations block. Threads may share it."""
        return ConsulEngine(self, blocking_wire(self._address))

    def asyncio(self) -> ConsulEngine:
        """An engine for the running event loop. Tasks may share it."""
        return ConsulEngine(self, asyncio_wire(self._address))


class Ownership(NamedTuple):
    """That a lease is held, as a condition for a transaction of one's own: the key was last changed at this index."""

    key: str
    modify_index: int


def ownership(lease: LeaseView) -> Ownership:
    """The condition under which a lease on Consul is held.

    Data that lives in the same Consul needs no fence and no clock: let ``check-index`` compare this key with this index
    in the transaction that writes, and a holder that was overtaken writes nothing. See the page of the engine. To
    `extend` a lease beyond its first TTL changes the key, so ask again after that.
    """
    engine = lease._engine
    if not isinstance(engine, ConsulEngine):
        raise Misuse(f"ownership() is for leases on Consul, and this one is on {quoted(engine.facts.engine)}")
    lease.check()
    place = engine._sessions.known(lease._held.want.holder)
    if place is None:
        raise lease._held.loss()
    return Ownership(place.key.decode(), place.modified)


def open_engine(on: str | object, *, namespace: str, client_label: str) -> ConsulFamily:
    """Open the engine behind a URL or a client object. Nothing is sent before the first operation."""
    address = address_from_url(on) if isinstance(on, str) else address_from_client(on)
    warn_of_transport(address, stacklevel=4)
    return ConsulFamily(address, namespace, client_label)
