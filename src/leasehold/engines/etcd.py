"""Etcd: one transaction to take a name, the revision that it got as its token, and a queue in the order of revisions.

Each attempt writes a key that hangs on the client's session; see `key_queue` for the keys and `etcd_sessions` for the
sessions. Whoever must wait watches the key before its own, and its own; when one is gone it looks again, for being
woken proves nothing: its own session may have ended meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from leasehold.core.engine import (
    Busy,
    Grant,
    NameStatus,
    Purpose,
    Renewal,
    Suspect,
    Want,
)
from leasehold.core.worlds import World
from leasehold.engines import key_queue as layout
from leasehold.engines.etcd_facts import facts_of
from leasehold.engines.etcd_requests import FRESH, Requests
from leasehold.engines.etcd_sessions import Place, Session, Sessions
from leasehold.engines.etcd_taking import SILENCE, Taking
from leasehold.engines.etcd_vigil import Vigil
from leasehold.engines.family import JoinedFamily
from leasehold.errors import EngineError, EngineUnavailable, Misuse, OutcomeUnknown, quoted
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_address import Address, address_from_client, address_from_url, warn_of_transport
from leasehold.wires.etcd_errors import LeaseGone
from leasehold.wires.etcd_messages import looking

if TYPE_CHECKING:
    from leasehold.lease import LeaseView
    from leasehold.wires.etcd import Wire
    from leasehold.wires.etcd_watch import Watch
    from leasehold.wires.sockets import Bell

T = TypeVar("T")

SHORT_WAIT: Final = 0.1
"""Who waits longer than this also watches its own key, and looks whether a watch began too late."""
FIRST_DOUBT: Final = 0.005
"""After so long, and then after twice as long each time, who listens to a new watch looks whether it was held up."""
PAGE: Final = 1000
"""So many keys are listed by one request."""
MOST_ASKED: Final = 32
"""Sessions that are asked how long they have left, to show a name."""
LOOK_WITHIN: Final = 0.5
"""A look at what was missed while a watch began gets so long, in seconds: meanwhile nothing else is heard."""
CLOSE_WITHIN: Final = 0.5


class EtcdEngine:
    """The operations, the same in both worlds: only the wire differs."""

    def __init__(self, family: EtcdFamily, wire: Wire) -> None:
        self.facts = family.facts
        self.world: World = wire.world
        self._family, self._wire, self._sessions = family, wire, family.sessions
        self._requests = Requests(wire, family.sessions, self.facts.address)
        self._taking = Taking(self._requests, family.sessions, self.world, self._keys)

    def _keys(self, name: str) -> layout.NameKeys:
        return layout.keys_of(self._family.namespace, name)

    # Taking

    def take(
        self,
        want: Want,
        *,
        until: float,
        patience: float | None = None,
        suspect: Suspect | None = None,  # noqa: ARG002 -- nobody can set etcd's clock back
    ) -> Coroutine[Any, Any, Grant | Busy]:
        """To be awaited: takes the name, or says why not; with patience, queues."""
        return self._taking.take(want, patience, until)

    # Waiting

    async def wait(self, want: Want, until: float) -> None:
        """Return when what stands before the asker is gone, or its own key is; meanwhile keep its sessions alive.

        Its own key is watched, and its sessions are kept, only after a while: most waits are over by then.
        """
        place = self._sessions.known(want.holder)
        if place is None or place.blockade is None:
            await self._pause(until)
            return
        news = _News(place, place.blockade, self._wire.bell())
        before, own = self._watch_of(place.blockade, want), self._family.hub.watch(place.key)
        # No context managers, and no coroutine but this one while it rests: each of thousands would keep them.
        try:
            self._family.hub.begin(before, news)
            if not await self._listen_in_doubt(want, place, news, before, until):
                news.patient = False
                self._family.vigil.keep((place.session, place.home), news)
                self._family.hub.begin(own, news)
                while not await self._has_reason(
                    await news.bell.wait(self._quiet_until(news, until)), want, place, news, until
                ):
                    if self.world.now() >= until or news.lost_touch:
                        break
        finally:
            self._hear_no_more(news, before, own)
        if news.broken:
            await self._pause(until)

    def _quiet_until(self, news: _News, until: float) -> float:
        """When to see again what is known of the one before, or whether there is room to look at what was missed."""
        quiet = LOOK_WITHIN * (0.5 + self.world.chance()) if news.unsure else SILENCE
        return min(until, self.world.now() + quiet)

    def _watch_of(self, blockade: layout.Blockade, want: Want) -> Watch:
        if len(blockade.keys) == 1:
            return self._family.hub.watch(*blockade.keys)
        return self._family.hub.watch(*self._keys(want.name).in_the_way_of(want.mode))

    def _hear_no_more(self, news: _News, before: Watch, own: Watch) -> None:
        """Leave all of them, though one be interrupted; some may not have begun."""
        try:
            self._family.hub.leave(before, keep=True)
        finally:
            try:
                self._family.hub.leave(own)
            finally:
                self._family.vigil.leave(news)

    async def _listen_in_doubt(self, want: Want, place: Place, news: _News, watch: Watch, latest: float) -> bool:
        """The same as `_listen` for a short wait; now and then look oneself, while a watch may tell too late."""
        until = min(latest, self.world.now() + SHORT_WAIT)
        pause = SHORT_WAIT if watch.end else FIRST_DOUBT  # to look at a whole queue is more work than it is worth
        while (look_at := self.world.now() + pause) < until and not watch.tells_at_once(place.revision):
            if await self._listen(want, place, news, look_at, latest):
                return True
            if not news.knows_better and await self._has_changed(want, place, news, latest):
                return True
            pause *= 2
        return await self._listen(want, place, news, until, latest)

    async def _listen(self, want: Want, place: Place, news: _News, until: float, latest: float) -> bool:
        """Whether there is a reason to ask again before `until`. A look may last longer, but not beyond `latest`."""
        while not await self._has_reason(await news.bell.wait(until), want, place, news, latest):
            if self.world.now() >= until:
                return False
        return True

    async def _has_reason(self, heard: bool, want: Want, place: Place, news: _News, latest: float) -> bool:
        """Whether to ask again, by what was told; or, if something may have been missed, by what a look shows."""
        if news.reason or place.session.over(self.world.now()):
            return True
        return (heard or news.unsure) and await self._has_changed(want, place, news, latest)

    async def _has_changed(self, want: Want, place: Place, news: _News, latest: float) -> bool:
        """Look whether anything happened that no watch has told of; or soon, if too many look already."""
        room, blockade = self._wire.room, place.blockade
        news.unsure = room is not None and not room.enter_at_once()
        if news.unsure:
            return False
        try:
            await self._taking.look(want, place, min(self.world.now() + LOOK_WITHIN, latest))
        except EngineError:
            return True  # whoever asks again meets the error
        finally:
            if room is not None:
                room.leave()
        return place.blockade != blockade

    async def _pause(self, until: float) -> None:
        """Do not ask again at once, for a watch that does not work would else become a busy loop."""
        await self.world.sleep(max(min(0.1 + 0.2 * self.world.chance(), until - self.world.now()), 0.0))

    # Holding

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Keep each session alive, and look whether each key is still there."""
        asked = [(lease, place) for lease in leases if (place := self._sessions.known(lease.holder)) is not None]
        for lease, place in asked:
            if not place.session.dead and math.ceil(lease.ttl) > place.session.ttl:
                await self._prolong(place, lease, until)
        now = self.world.now()
        kept: set[Session] = set()
        for session in dict.fromkeys(place.session for _, place in asked):
            if not session.over(now) and await self._requests.refresh(session, until):
                kept.add(session)
        asked = [(lease, place) for lease, place in asked if place.session in kept]
        still: set[str] = set()
        for start in range(0, len(asked), messages.MOST_OPERATIONS):
            still |= await self._still_held(asked[start : start + messages.MOST_OPERATIONS], until)
        return [lease.holder in still for lease in leases]

    async def _prolong(self, place: Place, lease: Renewal, until: float) -> None:
        """Hang the key of a lease on a session of its new TTL; if etcd has ended that one, on another."""
        for tries_left in (1, 0):
            session = self._sessions.session_for(lease.ttl, self.world.now())
            try:
                await self._hang(place, lease, session, until)
                return
            except EngineUnavailable:
                if not (session.dead and tries_left):
                    raise

    async def _still_held(self, asked: list[tuple[Renewal, Place]], until: float) -> set[str]:
        """The holders among these whose keys are as they were created."""
        outcome = await self._requests.txn([], [looking(messages.look(place.key)) for _, place in asked], [], until)
        still: set[str] = set()
        for (lease, place), found in zip(asked, outcome.found, strict=True):
            if not found or (found[0].key, found[0].created) != (place.key, lease.token):
                continue
            place.modified = found[0].modified
            # An earlier request to hang it elsewhere may have been carried out without our knowing, or still be.
            stays = found[0].lease == place.session.id and not place.loose
            if stays or await self._hang(place, lease, place.session, until):
                still.add(lease.holder)
        return still

    async def _hang(self, place: Place, lease: Renewal, session: Session, until: float) -> bool:
        """Hang the key of a lease on another session; its place and its token stay. False when it was written since."""
        try:
            await self._requests.confirm(session, until, lease.ttl * FRESH)
            self._sessions.may_hang(place, session)
            condition, hang = messages.if_modified(place.key, place.modified), messages.hang(place.key, session.id)
            place.loose = True
            outcome = await self._requests.txn([condition], [hang], [], until, place)
        except LeaseGone as error:
            self._sessions.bury(session)
            raise EngineUnavailable(str(error)) from None
        if outcome.succeeded:
            self._sessions.move(place, session)
            place.modified, place.loose = outcome.revision, False
        return outcome.succeeded

    async def release(self, name: str, holder: str, *, until: float) -> bool:  # noqa: ARG002 -- the holder says it all
        """Give the name back, and leave its queue."""
        place = self._sessions.known(holder)
        if place is None:  # there is nothing of it, or it ended with its session
            return False
        request = messages.delete(place.key)
        try:
            deleted, _ = await self._requests.ask(messages.DELETE, request, until, messages.deletion_of, place)
        except BaseException:
            self._sessions.owe(place)
            raise
        self._sessions.forget(holder)
        return deleted > 0 and place.blockade is None

    # Operators

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits."""
        request = messages.look(*self._keys(name).all, keys_only=False)
        found = await self._reading(messages.RANGE, request, until, messages.keys_in)
        if not found:
            return None
        holding, waiting = layout.standing(found)
        left: dict[int, float] = {}
        for lease in list(dict.fromkeys(one.lease for one in holding))[:MOST_ASKED]:
            request = messages.lease_id(lease)
            left[lease] = await self._reading(messages.TIME_TO_LIVE, request, until, messages.left_of_lease)
        return layout.status_of(name, holding, waiting, left, time.time())

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their encoded text."""
        start, end = layout.namespace_range(self._family.namespace)
        if after is not None:
            start = self._keys(after).all[1]
        names: list[str] = []
        while len(names) < limit:
            request = messages.list_keys(start, end, PAGE)
            found = await self._reading(messages.RANGE, request, until, messages.keys_in)
            for key in found:
                name = layout.name_in(key.key, self._family.namespace)
                if name is not None and name not in names[-1:]:
                    names.append(name)
            if len(found) < PAGE:
                break
            start = found[-1].key + b"\0"
        return names[:limit]

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name. Waiters lose their places too and queue again, for their tokens are older."""
        request = messages.delete(*self._keys(name).all)
        _, revision = await self._requests.ask(messages.DELETE, request, until, messages.deletion_of)
        return revision

    async def _reading(self, method: str, request: bytes, until: float, read: Callable[[bytes], T]) -> T:
        try:
            return await self._requests.ask(method, request, until, read)
        except OutcomeUnknown as error:  # a question leaves nothing behind
            raise EngineUnavailable(str(error)) from None

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Every purpose is served: tokens increase whatever the clocks do."""

    # The end

    async def close(self) -> None:
        """Revoke sessions that nothing hangs on, and give back the connections with the last engine of the family."""
        for session in self._sessions.retire_idle():
            request = messages.lease_id(session.id)
            with contextlib.suppress(EngineError):  # then it lapses
                await self._requests.ask(messages.REVOKE, request, self.world.now() + CLOSE_WITHIN, bytes)
        self._family.leave(self)

    def forked(self) -> None:
        """Let go of what belongs to the parent: connections, sessions, places."""
        self._family.forked()


class _News:
    """What a waiter hears of the keys that it waits for; told in the thread that reads the watches."""

    __slots__ = ("_left", "_may_stay", "_place", "_seen_at", "bell", "broken", "patient", "reason", "unsure")

    def __init__(self, place: Place, blockade: layout.Blockade, bell: Bell) -> None:
        self._place, self._seen_at, self._may_stay, self.bell = place, place.revision, blockade.may_stay, bell
        self._left = set(blockade.keys) if len(blockade.keys) > 1 else None
        """Those that are not gone yet, where it waits for several."""
        self.patient = place.incumbent is not None and place.incumbent.key not in blockade.keys
        """Whether it waits for another waiter: that one will hardly be gone before the watch has begun."""
        self.reason = False
        """Whether to ask again; without one, a ring of the bell means: look whether something was missed."""
        self.unsure = False
        """Whether it should look, and there was no room for that."""
        self.broken = False

    def began(self, revision: int) -> None:
        """What happened after the latest answer and before the watch began was missed."""
        if revision > self._seen_at and not self.patient:
            self.bell.ring()

    @property
    def knows_better(self) -> bool:
        """Whether it waits for a waiter of this client, which is known to wait still."""
        behind = self._place.behind
        return behind is not None and behind.waits

    @property
    def lost_touch(self) -> bool:
        """Whether it waits for a waiter of this client of which that is not known any more."""
        return self._place.behind is not None and not self.knows_better

    def deleted(self, key: bytes, revision: int) -> None:
        """A key is gone. One that went before the latest answer was there again when that was given."""
        if revision <= self._seen_at:
            return
        if self._left is not None:
            self._left.discard(key)
        if self._left is None or key == self._place.key or len(self._left) <= self._may_stay:
            self.reason = True
            self.bell.ring()

    def ended(self) -> None:
        """The session has ended, and the place in the queue with it."""
        self.reason = True
        self.bell.ring()

    def broke(self) -> None:
        """Nothing more will be heard."""
        self.reason = self.broken = True
        self.bell.ring()


class EtcdFamily(JoinedFamily[EtcdEngine]):
    """One cluster as one client sees it: its endpoints, its sessions and its watches, shared by the worlds."""

    def __init__(self, address: Address, namespace: str) -> None:
        from leasehold.wires.etcd_lines import Lines
        from leasehold.wires.etcd_watch import WatchHub

        super().__init__(facts_of(address))
        self.namespace, self.sessions = namespace, Sessions()
        self._lines = Lines(address)
        self.hub, self.vigil = WatchHub(self._lines), Vigil(self._blocking_requests)

    def blocking(self) -> EtcdEngine:
        """An engine whose operations block. Threads may share it."""
        from leasehold.wires.etcd import BlockingWire

        return self._joined(EtcdEngine(self, BlockingWire(self._lines)))

    def asyncio(self) -> EtcdEngine:
        """An engine for the running event loop. Tasks may share it."""
        from leasehold.wires.etcd import AsyncWire

        return self._joined(EtcdEngine(self, AsyncWire(self._lines)))

    def _blocking_requests(self) -> Requests:
        from leasehold.wires.etcd import BlockingWire

        return Requests(BlockingWire(self._lines), self.sessions, self.facts.address)

    def leave(self, engine: EtcdEngine) -> bool:
        """An engine is not in use any more; the last one closes the connections."""
        was_last = super().leave(engine)
        if was_last:
            self.hub.close()
            self._lines.close()
        return was_last

    def forked(self) -> None:
        """In a forked child: own nothing of the parent's."""
        super().forked()
        self.sessions.forked()
        self.hub.forked()
        self.vigil = Vigil(self._blocking_requests)
        self._lines.forked()


class Ownership(NamedTuple):
    """That a lease is held, as a condition for a transaction of one's own: the key was created at this revision."""

    key: bytes
    create_revision: int


def ownership(lease: LeaseView) -> Ownership:
    """The condition under which a lease on etcd is held.

    Data that lives in the same cluster needs no fence and no clock: compare the create revision of this key with this
    number in the transaction that writes, and a holder that was overtaken writes nothing. See the page of the engine.
    """
    engine = lease._engine
    if not isinstance(engine, EtcdEngine):
        raise Misuse(f"ownership() is for leases on etcd, and this one is on {quoted(engine.facts.engine)}")
    lease.check()
    place = engine._sessions.known(lease._held.want.holder)
    if place is None:
        raise lease._held.loss()
    return Ownership(place.key, lease.token)


def open_engine(on: str | object, *, namespace: str, client_label: str) -> EtcdFamily:  # noqa: ARG001 -- etcd shows no labels
    """Open the engine behind a URL or a client object. Nothing is sent before the first operation."""
    address = address_from_url(on) if isinstance(on, str) else address_from_client(on)
    try:
        family = EtcdFamily(address, namespace)
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise Misuse('the etcd engine needs gRPC: pip install "leasehold[etcd]"') from None
    warn_of_transport(address, stacklevel=4)
    return family
