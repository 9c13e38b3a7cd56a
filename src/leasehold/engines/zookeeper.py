"""ZooKeeper: ephemeral nodes in the order of their numbers, and the transaction that created one as its token.

Each attempt creates a node that hangs on the client's session; see `zookeeper_queue` for the nodes and
`zookeeper_places` for the sessions. Whoever must wait watches the node before its own.

A connection that broke is not a session that is over. While it is broken, nothing is known: renewals fail, and the
holder's own clock goes on. When the ensemble is reached again, it says whether it still has the session: then all goes
on as before; or not, and every lease on it is lost at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from leasehold.core.engine import Busy, Grant, NameStatus, Purpose, Renewal, Suspect, Want
from leasehold.core.worlds import World
from leasehold.engines import zookeeper_queue as layout
from leasehold.engines.about import value_of
from leasehold.engines.family import JoinedFamily
from leasehold.engines.zookeeper_facts import facts_of
from leasehold.engines.zookeeper_nodes import Nodes
from leasehold.engines.zookeeper_places import Place, Places
from leasehold.engines.zookeeper_queue import Blockade, Node
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper import AnyWire, BlockingWire, Endpoints
from leasehold.wires.zookeeper_address import Address, address_from_client, address_from_url, warn_of_transport
from leasehold.wires.zookeeper_errors import SessionOver
from leasehold.wires.zookeeper_line import Line, Watch
from leasehold.wires.zookeeper_messages import NO_NODE, OK
from leasehold.wires.zookeeper_session import Session

if TYPE_CHECKING:
    from leasehold.wires.zookeeper_messages import Reply

SILENCE: Final = 30.0
"""A waiter asks again after so long even without news."""
PINGED: Final = 0.4
"""The session of waiters is kept alive whenever nothing was sent for this share of its timeout."""
HEARD: Final = 0.9
"""A server that was silent for this share of the timeout, although it was pinged, is left."""
LONG_PATIENCE: Final = 2.0
"""Who has as much, in seconds, need not know at once who holds the name: there is time to find out."""
TRIES: Final = 3
"""Sessions may turn out to be over: that of the TTL, and that of waiters."""
CLOSE_WITHIN: Final = 0.5


class ZooKeeperEngine:
    """The operations, the same in both worlds: only the wire differs."""

    def __init__(self, family: ZooKeeperFamily, wire: AnyWire) -> None:
        self.facts = family.facts
        self.world: World = wire.world
        self._family, self._wire, self._places = family, wire, family.places
        self._nodes = Nodes(wire, family.places, family.address, family.namespace)

    # Taking

    async def take(
        self,
        want: Want,
        *,
        until: float,
        patience: float | None = None,
        suspect: Suspect | None = None,  # noqa: ARG002 -- nobody can set ZooKeeper's clock back
    ) -> Grant | Busy:
        """Take the name, or say why not; with patience, queue."""
        failure = ""
        for _ in range(TRIES):
            place = self._places.place_for(want, self.world.now())
            try:
                answer = await self._take(place, patience, until)
                if isinstance(answer, Grant):
                    self._places.got(place)
                return answer
            except SessionOver as error:
                failure = str(error)
            except EngineUnavailable as error:
                if place.node is None and place.doubt is None:
                    self._places.forget(want.holder)
                    raise
                raise OutcomeUnknown(str(error)) from None  # an earlier step has left something
        raise OutcomeUnknown(failure)

    async def _take(self, place: Place, patience: float | None, until: float) -> Grant | Busy:
        if place.doubt is not None:
            await self._nodes.resolve(place, until)
        since, ttl = self.world.now(), place.want.ttl
        if not (place.lease.id and place.lease.can_last(ttl)):  # what it cannot bear is refused before it is created
            await self._nodes.confirm(place.lease, since, ttl, until)
        while (answer := await self._step(place, patience, until)) is None:
            pass
        if isinstance(answer, Grant) and not place.lease.lasts_until(since + ttl):
            await self._nodes.confirm(place.lease, since, ttl, until)
        return answer

    async def _step(self, place: Place, patience: float | None, until: float) -> Grant | Busy | None:
        """Go on from wherever the attempt is; None: there is more to do, or its node is gone and it begins anew."""
        session = place.session
        if session is None:
            if patience is not None and self._places.comes(place) and place.want.mode == "exclusive":
                await self._follow(place, patience, until)
                return None
            if (
                patience is not None
                and patience >= LONG_PATIENCE
                and self._places.expect_crowd(place, self.world.now())
            ):
                return await self._queue_up(place, None, patience, until)
            return await self._enter(place, patience, until)
        if place.is_next:
            return await self._move_up(place, until)
        if place.blockade is not None and await self._stands_still(place, place.blockade, session, until):
            return Busy(SILENCE, place.incumbent)
        folder = self._nodes.folder(place.want.name)
        _, listed = await self._wire.ask(session, [messages.sync(folder), messages.get_children(folder)], until)
        return await self._judged(place, session, listed, patience, until)

    async def _enter(self, place: Place, patience: float | None, until: float) -> Grant | Busy | None:
        """Create a node on the session of the TTL: who is alone then, holds the name."""
        want, listing = place.want, [messages.get_children(self._nodes.folder(place.want.name))]
        data = value_of(want, time.time(), patience, with_mode=False)
        if want.mode == "exclusive" and self._places.expect_nobody(want.name):
            if await self._nodes.create_counting(place, place.lease, data, until):
                return self._granted(place)
            (listed,) = await self._wire.ask(place.lease, listing, until)
        else:
            (listed,) = await self._nodes.create(place, place.lease, data, listing, until)
        answer = await self._judged(place, place.lease, listed, patience, until)
        if isinstance(answer, Grant):
            self._places.note_crowd(want.name, crowded=False)
        return answer

    async def _judged(
        self, place: Place, session: Session, listed: Reply, patience: float | None, until: float
    ) -> Grant | Busy | None:
        """Granted, or not, given the list of the name's nodes."""
        queue = await self._nodes.queue_in(session, place.want.name, listed, until)
        if place.node not in queue:
            place.lose_node()
            return None
        want, before = place.want, queue[: queue.index(place.node)]
        place.blockade = layout.blockade(want.mode, want.limit, before)
        if place.blockade is None:
            if place.waits:
                return await self._move_up(place, until)
            return self._granted(place)
        place.version = self._nodes.version_in(listed)
        if place.waits:
            return await self._waits(place, session, queue[0], patience, until)
        if patience is None:
            return await self._withdraw(place, queue[0], until)
        return await self._queue_up(place, queue[0], patience, until)

    async def _withdraw(self, place: Place, oldest: Node, until: float) -> Busy:
        """Leave nothing behind, and say who holds the name."""
        assert place.node is not None
        self._places.note_crowd(place.want.name, crowded=True, waited=False)
        folder = self._nodes.folder(place.want.name)
        requests = [messages.delete(f"{folder}/{place.node.name}"), messages.get_data(f"{folder}/{oldest.name}")]
        deleted, reply = await self._wire.ask(place.lease, requests, until)
        if deleted.error not in (OK, NO_NODE):
            raise self._nodes.refused(deleted, "deleting a node")
        self._places.forget(place.want.holder)
        return Busy(SILENCE, self._nodes.incumbent_in(oldest, reply))

    async def _queue_up(self, place: Place, oldest: Node | None, patience: float, until: float) -> Grant | Busy | None:
        """Wait with a node on the session for waiters; whose node is the oldest may be known, or found out later."""
        want, folder = place.want, self._nodes.folder(place.want.name)
        waiting = self._places.waiting_session(self.world.now())
        more = [messages.get_children(folder)]
        if oldest is not None:
            more.append(messages.get_data(f"{folder}/{oldest.name}"))
        data = value_of(want, time.time(), patience, with_mode=False)
        listed, *holder = await self._nodes.create(place, waiting, data, more, until)
        self._places.joined(place)
        if oldest is not None:
            self._note_incumbent(place, oldest, holder[0])
        answer = await self._judged(place, waiting, listed, patience, until)
        self._places.note_crowd(want.name, crowded=not isinstance(answer, Grant))
        return answer

    async def _follow(self, place: Place, patience: float, until: float) -> None:
        """Wait behind another of this client, whose turn comes first, whoever else waits.

        To list the queue is work that grows with it: thousands who came at once, and all listed it, brought a server
        down. Who has no one to follow still does, in the next step; and so does each when the one before it is gone.
        """
        waiting = self._places.waiting_session(self.world.now())
        data = value_of(place.want, time.time(), patience, with_mode=False)
        await self._nodes.create(place, waiting, data, [], until)
        ahead = self._places.joined(place)
        place.blockade = layout.behind(ahead, place.node) if ahead is not None and place.node is not None else None

    async def _stands_still(self, place: Place, blockade: Blockade, session: Session, until: float) -> bool:
        """Whether the only node that it waits for is there, and its own: however long the queue is, that is quick."""
        if blockade.more or place.node is None or place.company is None:
            return False
        ahead, company, folder = blockade.name, place.company, self._nodes.folder(place.want.name)
        blockade = blockade.seen()
        alone = blockade.is_all and place.want.mode == "exclusive"  # others who share may be before it
        oldest = layout.node_in(ahead) if alone else company.oldest
        # How often nodes were moved comes first: what moves later than that is noticed.
        looks = [messages.exists(path) for path in (folder, f"{folder}/{place.node.name}", f"{folder}/{ahead}")]
        if oldest is not None:
            looks.append(messages.get_data(f"{folder}/{oldest.name}"))
        moves, own, other, *holder = await self._wire.ask(session, looks, until)
        if moves.error != OK or own.error != OK or other.error != OK:
            return False
        if oldest is not None and holder[0].error != OK:
            company.oldest = None  # one of them has to look who it is now, and that is this one
            return False
        if oldest is not None and (oldest != company.oldest or company.incumbent is None):
            self._note_incumbent(place, oldest, holder[0])
        place.blockade, place.version = blockade, self._nodes.stat_in(moves).version
        return True

    async def _waits(self, place: Place, session: Session, oldest: Node, patience: float | None, until: float) -> Busy:
        """It is in the queue. Say who holds the name; one of those of this client has to find that out."""
        company = place.company
        if company is not None and (company.oldest != oldest or company.incumbent is None):
            if company.incumbent is None and patience is not None and patience >= LONG_PATIENCE:
                company.oldest = oldest  # who that is can be found out before anybody gives up
            else:
                look = messages.get_data(f"{self._nodes.folder(place.want.name)}/{oldest.name}")
                (reply,) = await self._wire.ask(session, [look], until)
                self._note_incumbent(place, oldest, reply)
        return Busy(SILENCE, place.incumbent)

    def _note_incumbent(self, place: Place, oldest: Node, reply: Reply) -> None:
        company, incumbent = place.company, self._nodes.incumbent_in(oldest, reply)
        if company is not None and incumbent is not None:
            company.oldest, company.incumbent = oldest, incumbent

    async def _move_up(self, place: Place, until: float) -> Grant | None:
        """It is this waiter's turn: hang its node on the session of its TTL."""
        data = value_of(place.want, time.time(), None, with_mode=False)
        if not await self._nodes.move(place, place.lease, data, until):
            return None
        return self._granted(place)

    def _granted(self, place: Place) -> Grant:
        place.granted, place.blockade = True, None
        return Grant(place.token)

    # Waiting

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, None]:
        """To be awaited: returns when what stands before the asker is gone; keeps the session of waiters alive.

        It is no coroutine of its own: each of thousands of waiting tasks would keep one.
        """
        place = self._places.known(want.holder)
        if place is None or place.blockade is None or place.session is None:
            return self._pause(until)
        if place.lease.line is not None:  # whose turn it is needs the processor more
            place.lease.line.lookout.doze()
        return self._wait(place, place.session, until)

    async def _wait(self, place: Place, session: Session, until: float) -> None:
        """Whatever stays while one waits is here, in one coroutine, and as little as can be."""
        try:
            while place.blockade is not None:
                watch = Watch(self._nodes.folder(place.want.name), place.blockade)
                try:
                    token = await self._look(place, watch, session, until)
                    while not watch.done:
                        try:
                            await self._listen(watch, session, until)
                        finally:
                            self._wire.listened(watch.begun_on, watch)
                        if not watch.done:
                            if self.world.now() >= until:
                                return
                            await self._keep_alive(watch.begun_on, session, until)
                finally:
                    if watch.line is not None:
                        watch.line.unwatch(watch)
                place.unblocked(token)  # who stood before it may have its turn now, and is waited for where it moved to
        except EngineError:
            await self._pause(until)  # whoever asks again meets the error

    async def _look(self, place: Place, watch: Watch, session: Session, until: float) -> int | None:
        """Look at the nodes that are in the way, and have them watched; returns the token of one that is there."""
        assert place.blockade is not None
        blockade, seen, token = place.blockade, place.blockade.seen(), None
        # How often nodes were moved comes first: what moves later than that is noticed.
        looks = [messages.exists(watch.folder)] if seen != blockade else []
        looks += [messages.get_data(f"{watch.folder}/{name}", watch=True) for name in blockade.names]
        replies = await self._wire.ask(session, looks, until, watch)
        for name, reply in zip(blockade.names, replies[-len(blockade.names) :], strict=True):
            if reply.error != OK:
                watch.begun_on.missed(watch, name)
            elif seen != blockade:
                place.blockade, place.version = seen, self._nodes.stat_in(replies[0]).version
            else:
                token = self._nodes.data_in(reply)[1].created
        return token

    def _listen(self, watch: Watch, session: Session, until: float) -> Awaitable[object]:
        """To be awaited. Whoever reads pings, for all the others."""
        line = watch.begun_on
        return self._wire.listen(line, watch, _ping_at(line, session), until)

    async def _keep_alive(self, line: Line, session: Session, until: float) -> None:
        now = self.world.now()
        if now - line.heard_at > session.timeout * HEARD:
            line.fail("it was silent for too long")
        if now >= _ping_at(line, session) or line.failure is not None:
            line.ping(now)  # which says why, if it has failed
            # One that gave up, and could not say so, would else stand before this one for as long as it waits.
            await self._pay_debts(session, min(until, now + session.timeout * PINGED))

    async def _pause(self, until: float) -> None:
        """Do not ask again at once, for a watch that does not work would else become a busy loop."""
        await self.world.sleep(max(min(0.1 + 0.2 * self.world.chance(), until - self.world.now()), 0.0))

    # Holding

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Have the leader confirm each session, and look whether each node is still there."""
        asked: dict[Session, list[tuple[Renewal, Place]]] = {}
        for lease in leases:
            place = self._places.known(lease.holder)
            if place is not None:
                session = await self._session_for(lease, place, until)
                if session is not None:
                    asked.setdefault(session, []).append((lease, place))
        kept: set[Renewal] = set()
        for session, some in asked.items():
            with contextlib.suppress(SessionOver):  # then all of them are lost
                kept |= await self._kept(session, some, until)
        return [lease in kept for lease in leases]

    async def _session_for(self, lease: Renewal, place: Place, until: float) -> Session | None:
        """The session that a lease's node hangs on, once it can bear the lease; None when the node is gone."""
        try:
            if place.doubt is not None:
                await self._nodes.resolve(place, until)
                place.granted = place.node is not None
            if place.session is not None and lease.ttl > place.session.ttl:
                place.granted = await self._nodes.prolong(place, lease.ttl, until)
        except SessionOver as error:
            raise EngineUnavailable(str(error)) from None
        return None if place.session is None or place.session.dead else place.session

    async def _kept(self, session: Session, some: Sequence[tuple[Renewal, Place]], until: float) -> set[Renewal]:
        """Those among these leases whose nodes are as they were created."""
        since, looks = self.world.now(), []
        for lease, place in some:
            name = place.node.name if place.node is not None else ""
            looks.append(messages.exists(f"{self._nodes.folder(lease.name)}/{name or '-'}"))
        _, *replies = await self._wire.ask(session, [messages.sync(self._nodes.space), *looks], until)
        kept = {lease for (lease, place), reply in zip(some, replies, strict=True) if self._is(lease, place, reply)}
        await self._nodes.confirm(session, since, max(lease.ttl for lease, _ in some), until)
        await self._pay_debts(session, until)
        return kept

    def _is(self, lease: Renewal, place: Place, reply: Reply) -> bool:
        """Whether a reply shows the node of a lease."""
        if reply.error not in (OK, NO_NODE):
            raise self._nodes.refused(reply, "looking at a node")
        if reply.error == NO_NODE or place.node is None or place.session is None:
            return False
        stat = self._nodes.stat_in(reply)
        return (place.node.token or stat.created) == lease.token and stat.owner == place.session.id

    async def _pay_debts(self, session: Session, until: float) -> None:
        """What should have been given back, and could not be, must not live on with the session."""
        for place in self._places.given_up(session):
            with contextlib.suppress(EngineError):  # tried again with the next renewal, or ping
                await self.release(place.want.name, place.want.holder, until=until)

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue."""
        place = self._places.known(holder)
        if place is None:  # there is nothing of it, or it ended with its session
            return False
        try:
            return await self._release(place, name, until)
        except BaseException:
            place.given_up = True
            raise

    async def _release(self, place: Place, name: str, until: float) -> bool:
        if place.doubt is not None:
            await self._nodes.resolve(place, until)
        deleted = False
        if place.node is not None and place.session is not None:
            request = messages.delete(f"{self._nodes.folder(name)}/{place.node.name}")
            with contextlib.suppress(SessionOver):  # its node is gone with it
                (reply,) = await self._wire.ask(place.session, [request], until)
                if reply.error not in (OK, NO_NODE):
                    raise self._nodes.refused(reply, "deleting a node")
                deleted = reply.error == OK
        self._places.forget(place.want.holder)
        return deleted and place.granted

    # Operators

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits."""
        return layout.status_of(name, await self._nodes.shown(name, until), time.time())

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their encoded text."""
        space = self._nodes.space
        _, listed = await self._nodes.ask([messages.sync(space), messages.get_children(space)], until)
        parts = sorted(part for part in self._nodes.names_in(listed) if after is None or part > layout.encoded(after))
        names: list[str] = []
        for start in range(0, len(parts), limit):
            some = parts[start : start + limit]
            replies = await self._nodes.ask([messages.exists(f"{space}/{part}") for part in some], until)
            for part, reply in zip(some, replies, strict=True):
                name = layout.decoded(part)
                if name is not None and reply.error == OK and self._nodes.stat_in(reply).children:
                    names.append(name)
            if len(names) >= limit:
                break
        return names[:limit]

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name. Waiters lose their places too and queue again, for their tokens are older."""
        folder, token = self._nodes.folder(name), 0
        listing = [messages.sync(folder), messages.get_children(folder)]
        while True:
            _, listed = await self._nodes.ask(listing, until)
            names = self._nodes.names_in(listed)
            if token and not await self._nodes.any_older(folder, names, token, until):
                return token
            await self._nodes.make_folder(folder, until)
            parts = [messages.set_data(folder, b""), *(messages.delete(f"{folder}/{one}") for one in names)]
            request = messages.multi(parts)
            (reply,) = await self._nodes.ask([request], until)
            error = self._nodes.error_of(request, reply)
            if error == OK:
                token = self._nodes.changed_in_multi(reply)
            elif error != NO_NODE:  # somebody left meanwhile; then all of it again
                raise self._nodes.refused(reply._replace(error=error), "deleting nodes")

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Every purpose is served: tokens increase whatever the clocks do."""

    # The end

    async def close(self) -> None:
        """End sessions that nothing hangs on, and give back the connections, with the last engine of the family."""
        if not self._family.leave(self):
            return
        idle, used = self._places.sessions()
        for session in idle:
            with contextlib.suppress(EngineError):  # then it lapses
                await self._wire.end(session, self.world.now() + CLOSE_WITHIN)
        for session in (*idle, *used):
            session.hang_up("this client was closed")

    def forked(self) -> None:
        """Let go of what belongs to the parent: connections, sessions, places."""
        self._family.forked()


def _ping_at(line: Line, session: Session) -> float:
    return line.sent_at + session.timeout * PINGED


class ZooKeeperFamily(JoinedFamily[ZooKeeperEngine]):
    """One ensemble as one client sees it: its servers, its sessions and its places, shared by the worlds."""

    def __init__(self, address: Address, namespace: str) -> None:
        super().__init__(facts_of(address))
        self.address, self.namespace = address, namespace
        self.places = Places(address.tick)
        self._endpoints = Endpoints(address)

    def blocking(self) -> ZooKeeperEngine:
        """An engine whose operations block. Threads may share it."""
        return self._joined(ZooKeeperEngine(self, BlockingWire(self._endpoints)))

    def asyncio(self) -> ZooKeeperEngine:
        """An engine for the running event loop. Tasks may share it."""
        from leasehold.wires.zookeeper import AsyncWire

        return self._joined(ZooKeeperEngine(self, AsyncWire(self._endpoints)))

    def forked(self) -> None:
        """In a forked child: own nothing of the parent's."""
        super().forked()
        self.places.forked()
        self._endpoints.forked()


def open_engine(on: str | object, *, namespace: str, client_label: str) -> ZooKeeperFamily:  # noqa: ARG001 -- it shows no labels
    """Open the engine behind a URL or a client object. Nothing is sent before the first operation."""
    address = address_from_url(on) if isinstance(on, str) else address_from_client(on)
    warn_of_transport(address, stacklevel=4)
    return ZooKeeperFamily(address, namespace)
