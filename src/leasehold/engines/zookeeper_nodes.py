"""Single steps on ZooKeeper's nodes: paths, creating and listing, and what an unanswered request has left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from leasehold.core.engine import Incumbent
from leasehold.engines import zookeeper_queue as layout
from leasehold.engines.about import about_in, value_of
from leasehold.engines.zookeeper_places import Place, Places
from leasehold.engines.zookeeper_queue import Node, Shown
from leasehold.errors import EngineError, EngineUnavailable, InvalidTTL, quoted, seconds_text
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_errors import SessionOver, nonsense, refusal
from leasehold.wires.zookeeper_messages import BAD_VERSION, NO_NODE, OK, Malformed, Reply, Request
from leasehold.wires.zookeeper_session import Session

if TYPE_CHECKING:
    from leasehold.wires.zookeeper import AnyWire
    from leasehold.wires.zookeeper_address import Address

NO_AUTH: Final = -102
NEVER: Final = float("inf")


class Nodes:
    """The nodes of one namespace, as one engine reaches them."""

    def __init__(self, wire: AnyWire, places: Places, address: Address, namespace: str) -> None:
        self._wire, self._places, self._address = wire, places, address
        self.permissions = messages.OPEN if address.login is None else messages.CREATOR_ONLY
        self.space = f"{address.chroot}/{layout.FOLDER}/{layout.encoded(namespace)}"

    def folder(self, name: str) -> str:
        """Where the nodes of a name are."""
        return layout.folder(self.space, name)

    def refused(self, reply: Reply, asking: str) -> EngineError:
        """The error for a reply that is one."""
        return refusal(reply.error, str(self._address), asking)

    def nonsense(self, what: object) -> EngineError:
        """The error for an answer that makes no sense."""
        return nonsense(str(self._address), what)

    # Sessions

    async def confirm(self, session: Session, since: float, ttl: float, until: float) -> None:
        """See to it that the leader keeps the session for as long as a lease that began then is believed in."""
        while not session.lasts_until(since + ttl):
            await self._wire.renew_line(session, until)
            if session.id and not session.can_last(ttl):
                raise InvalidTTL(
                    f"ZooKeeper at {self._address} grants sessions of {seconds_text(session.timeout)} at most, so "
                    f"that a TTL of {seconds_text(ttl)} cannot be kept; ask for a shorter one, or raise "
                    "maxSessionTimeout there"
                )

    async def ask(self, requests: Sequence[Request], until: float) -> list[Reply]:
        """Ask on the session for waiters and questions; one that has lapsed meanwhile is replaced."""
        now = self._wire.world.now
        with contextlib.suppress(SessionOver):
            return await self._wire.ask(self._places.waiting_session(now()), requests, until)
        try:
            return await self._wire.ask(self._places.waiting_session(now()), requests, until)
        except SessionOver as error:
            raise EngineUnavailable(str(error)) from None

    # Changing

    async def change(self, place: Place, session: Session, requests: Sequence[Request], until: float) -> list[Reply]:
        """Ask for changes to a place's node. Until they are answered, they are in doubt.

        The doubt is there before anything is sent: so no interruption, wherever it strikes, can lose it.
        """
        before, place.doubt = place.doubt, session
        try:
            replies = await self._wire.ask(session, requests, until)
        except (EngineUnavailable, SessionOver):  # it was not carried out
            place.doubt = before
            raise
        return replies

    async def create(
        self, place: Place, session: Session, data: bytes, more: Sequence[Request], until: float
    ) -> list[Reply]:
        """Give a place a new node at the end of the queue, then do more; an old node is deleted first.

        Returns the replies to what was done more.
        """
        folder = self.folder(place.want.name)
        old = [] if place.node is None else [messages.delete(f"{folder}/{place.node.name}")]
        requests = [*old, self._new_node(place, folder, data), *more]
        replies = await self._create(place, folder, session, requests, until, creation=len(old))
        try:
            path, stat = messages.created_in(replies[len(old)].body)
        except Malformed as error:
            raise self.nonsense(error) from None
        if stat.owner != session.id:
            raise self.nonsense("it hung a node on another session than the one that asked")
        self._created(place, session, path, stat.created)
        return replies[len(old) + 1 :]

    async def create_counting(self, place: Place, session: Session, data: bytes, until: float) -> bool:
        """Give a place its first node at the end of the queue; returns True when no node at all is before it.

        It is one transaction, so of two who come at once the second counts the first. What the folder keeps is set
        only because nothing else in a transaction tells how many nodes it has. One number that was read wrong must
        not grant a name: as many as its own number says have come before, and all are gone only if there were twice
        as many changes. When numbers have run out that cannot be told, and the answer is False.
        """
        folder = self.folder(place.want.name)
        request = messages.multi([messages.set_data(folder, b""), self._new_node(place, folder, data)])
        (reply,) = await self._create(place, folder, session, [request], until)
        try:
            path, before = messages.created_in_multi(reply.body)
        except Malformed as error:
            raise self.nonsense(error) from None
        node = self._created(place, session, path, before.changed)
        return before.children == 0 and before.turnover == 2 * node.number

    def _new_node(self, place: Place, folder: str, data: bytes) -> Request:
        path = f"{folder}/{layout.beginning(place.want.mode, place.id)}"
        return messages.create(path, data, self.permissions, messages.EPHEMERAL | messages.SEQUENTIAL)

    async def _create(
        self,
        place: Place,
        folder: str,
        session: Session,
        requests: Sequence[Request],
        until: float,
        *,
        creation: int = 0,
    ) -> list[Reply]:
        """Send requests, of which one creates a node. The folders above are made when they turn out to be missing.

        The place is in doubt until the new node was noted: an interruption in between would lose the node.
        """
        for missing in range(3):
            folders = self._all_folders(folder)[-1 if missing == 1 else 0 :] if missing else []
            replies = await self.change(place, session, [*folders, *requests], until)
            error = self.error_of(requests[creation], replies[len(folders) + creation])
            if error == OK:
                return replies[len(folders) :]
            place.lose_node()
            place.doubt = None
            if denied := [one for one in replies[: len(folders)] if one.error == NO_AUTH]:
                raise self.refused(denied[0], "creating a node")
            if error != NO_NODE:
                raise refusal(error, str(self._address), "creating a node")
        raise self.nonsense("it lacks the folders that it was asked to create")

    def _created(self, place: Place, session: Session, path: str, token: int) -> Node:
        node = layout.node_in(path.rpartition("/")[2])
        if node is None or (node.id, node.mode) != (place.id, place.want.mode):
            raise self.nonsense("it created another node than it was asked for")
        place.has_node(node, token, session)
        place.doubt = None  # not a moment earlier
        return node

    def _all_folders(self, folder: str) -> list[Request]:
        parts = self._address.chroot.split("/")[1:]
        roots = ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
        return [
            *(messages.create(path, b"", messages.OPEN, 0) for path in roots),
            messages.create_container(f"{self._address.chroot}/{layout.FOLDER}", messages.OPEN),
            messages.create_container(self.space, self.permissions),
            messages.create_container(folder, self.permissions),
        ]

    async def make_folder(self, folder: str, until: float) -> None:
        """Have the folder of a name."""
        (reply,) = await self.ask([messages.exists(folder)], until)
        if reply.error == NO_NODE:
            replies = await self.ask(self._all_folders(folder), until)
            if replies[-1].error not in (OK, messages.NODE_EXISTS):
                denied = [one for one in replies if one.error == NO_AUTH]
                raise self.refused(denied[0] if denied else replies[-1], "creating a folder")
        elif reply.error != OK:
            raise self.refused(reply, "looking at a folder")

    async def move(self, place: Place, session: Session, data: bytes, until: float) -> bool:
        """Hang a place's node on another session; its place and its token stay. False when that was not possible.

        For those who watch the old node it looks as if its place were free. So each move is counted in the folder;
        and who believes to be next because the one before it is gone moves only if nobody has moved meanwhile.
        """
        assert place.node is not None
        folder, token = self.folder(place.want.name), place.token
        new = layout.node_in(layout.moved(place.node, token))
        assert new is not None
        parts = [
            messages.set_data(folder, b"", place.version if place.is_next else messages.ANY_VERSION),
            messages.delete(f"{folder}/{place.node.name}"),
            messages.create(f"{folder}/{new.name}", data, self.permissions, messages.EPHEMERAL),
        ]
        request = messages.multi(parts)
        (reply,) = await self.change(place, session, [request], until)
        error = self.error_of(request, reply)
        if error == OK:
            place.has_node(new, token, session)
        elif error == NO_NODE:
            place.lose_node()
        place.is_next = False
        place.doubt = None
        if error not in (OK, NO_NODE, BAD_VERSION):
            raise refusal(error, str(self._address), "moving a node")
        return error == OK

    async def prolong(self, place: Place, ttl: float, until: float) -> bool:
        """Hang the node of a lease on a session for a longer TTL; if ZooKeeper has ended that one, on another."""
        data = value_of(place.want._replace(ttl=ttl), time.time(), None, with_mode=False)
        for tries_left in (1, 0):
            now = self._wire.world.now()
            longer = self._places.lease_session(ttl, now)
            try:
                await self.confirm(longer, now, ttl, until)
                moved = await self.move(place, longer, data, until)
            except SessionOver:
                if not tries_left:
                    raise
            else:
                place.lease = longer
                return moved
        raise AssertionError("the second of two tries returns or raises")

    def error_of(self, request: Request, reply: Reply) -> int:
        """Why a request was not carried out, if it was not."""
        try:
            return messages.error_of(request, reply)
        except Malformed as error:
            raise self.nonsense(error) from None

    def changed_in_multi(self, reply: Reply) -> int:
        """The number of a transaction that began with setting something."""
        try:
            return messages.changed_in_multi(reply.body).changed
        except Malformed as error:
            raise self.nonsense(error) from None

    async def resolve(self, place: Place, until: float) -> None:
        """Find out what has become of a request that was not answered.

        What was sent by the session in doubt before is carried out before this or never: on the same connection in
        this order, and from an older one not after the session was taken up on a newer.
        """
        folder = self.folder(place.want.name)
        listed = await self._ask_in_doubt(place, [messages.sync(folder), messages.get_children(folder)], until)
        for node in self._nodes_in(listed[1]):
            if node.id == place.id:
                (reply,) = await self._ask_in_doubt(place, [messages.exists(f"{folder}/{node.name}")], until)
                owner = None if reply.error else self._places.of_owner(self.stat_in(reply).owner, place)
                if owner is not None:
                    place.has_node(node, node.token or self.stat_in(reply).created, owner)
                    place.granted = False
                    place.doubt = None
                    return
        place.lose_node()
        place.doubt = None

    async def _ask_in_doubt(self, place: Place, requests: Sequence[Request], until: float) -> list[Reply]:
        """Ask by the session in doubt; one that is over can do nothing any more, and any other may look."""
        if place.doubt is not None and not place.doubt.dead:
            with contextlib.suppress(SessionOver):
                return await self._wire.ask(place.doubt, requests, until)
        return await self.ask(requests, until)

    # Looking

    def stat_in(self, reply: Reply) -> messages.Stat:
        """What a node is."""
        try:
            return messages.stat_in(reply.body)
        except Malformed as error:
            raise self.nonsense(error) from None

    def data_in(self, reply: Reply) -> tuple[bytes, messages.Stat]:
        """What a node keeps."""
        try:
            return messages.data_in(reply.body)
        except Malformed as error:
            raise self.nonsense(error) from None

    def names_in(self, reply: Reply) -> list[str]:
        """The names in a list; none when the folder is not there."""
        if reply.error not in (OK, NO_NODE):
            raise self.refused(reply, "listing nodes")
        try:
            return messages.children_in(reply.body)[0] if reply.error == OK else []
        except Malformed as error:
            raise self.nonsense(error) from None

    def version_in(self, reply: Reply) -> int:
        """How often nodes of the listed folder were moved."""
        try:
            return messages.parent_in(reply.body).version if reply.error == OK else -1
        except Malformed as error:
            raise self.nonsense(error) from None

    def _nodes_in(self, reply: Reply) -> list[Node]:
        """The attempts in a list. Whatever else is in it may be one that was read wrong, or of a kind still unknown."""
        names = self.names_in(reply)
        queue = layout.queue_in(names)
        if len(queue) != len(names):
            strange = next(name for name in names if layout.node_in(name) is None)
            raise EngineError(
                f"ZooKeeper at {self._address} has a node {quoted(strange)} among those of a lock, which is none of "
                "Leasehold's, so that nobody can tell who holds it; delete that node, or release the name by force"
            )
        return queue

    async def queue_in(self, session: Session, name: str, reply: Reply, until: float) -> list[Node]:
        """The queue of a name, given the list of its nodes.

        When ZooKeeper has run out of numbers, it gives the last one to everybody; then only the transactions that
        created the nodes tell their order.
        """
        folder = self.folder(name)
        while True:
            queue = self._nodes_in(reply)
            if not queue or (queue[0].number >= 0 and queue[-1].number < layout.LAST_NUMBER):
                return queue
            looks = [messages.exists(f"{folder}/{node.name}") for node in queue]
            *seen, reply = await self._wire.ask(session, [*looks, messages.get_children(folder)], until)
            if all(one.error == OK for one in seen):
                created = {node: node.token or self.stat_in(one).created for node, one in zip(queue, seen, strict=True)}
                return sorted(queue, key=lambda node: created[node])

    async def any_older(self, folder: str, names: Sequence[str], token: int, until: float) -> bool:
        """Whether one of these was created before a transaction."""
        replies = await self.ask([messages.exists(f"{folder}/{name}") for name in names], until) if names else []
        return any(reply.error == OK and self.stat_in(reply).created < token for reply in replies)

    def incumbent_in(self, node: Node, reply: Reply) -> Incumbent | None:
        """Who holds the name. How often it was renewed cannot be seen, so no suspicion of it ever ripens."""
        if reply.error != OK:
            return None
        data, stat = self.data_in(reply)
        return Incumbent(node.token or stat.created, 0, NEVER, about_in(data).about)

    async def shown(self, name: str, until: float) -> list[Shown]:
        """The queue of a name with all that is known of it."""
        folder = self.folder(name)
        session = self._places.waiting_session(self._wire.world.now())
        listed = await self.ask([messages.sync(folder), messages.get_children(folder)], until)
        queue = await self.queue_in(session, name, listed[1], until)
        if not queue:
            return []
        replies = await self.ask([messages.get_data(f"{folder}/{node.name}") for node in queue], until)
        shown = []
        for node, reply in zip(queue, replies, strict=True):
            if reply.error == OK:
                data, stat = self.data_in(reply)
                shown.append(Shown(node, node.token or stat.created, about_in(data)))
        return shown
