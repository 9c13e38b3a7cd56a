"""Redis and Valkey Cluster: the engine for one primary, once for each node, and a map that says whose turn it is.

All keys of a name are in one slot, so each operation is one script at one node. What is here finds that node: by the
cluster's map, by redirections, and by asking the other nodes when one does not answer.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

from leasehold.core.engine import Busy, Grant, NameStatus, Purpose, Renewal, Suspect, Want
from leasehold.engines.redis import MOST_REMEMBERED, RedisEngine, RedisFamily, Wire
from leasehold.engines.redis_facts import cluster_facts, refuse_sentinel
from leasehold.engines.redis_keys import keys_of
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.wires.redis_cluster import AskingWire
from leasehold.wires.redis_cluster_target import Cluster, cluster_from
from leasehold.wires.redis_replies import Redirected
from leasehold.wires.redis_setup import Link
from leasehold.wires.redis_slots import SlotMap, order_of, redirection, slot_of
from leasehold.wires.redis_target import warn_of_transport
from leasehold.wires.urls import Endpoint, Hidden

T = TypeVar("T")
MOST_REDIRECTIONS: Final = 5
"""So often a request follows from node to node; a cluster that agrees needs one."""
LEARN_EVERY: Final = 0.2
"""The map is not asked for more often than this, in seconds: thousands may notice at once that a node is gone."""


class NodeWire(Wire, Protocol):
    """Our path to one node, in one of the worlds."""

    async def dial(self, endpoint: Endpoint, until: float) -> Link:
        """A fresh connection to any node, in which nothing was said yet."""
        ...


class Nodes(Protocol):
    """How a world reaches the nodes of a cluster."""

    def wire_to(self, endpoint: Endpoint) -> NodeWire:
        """A path to one node."""
        ...

    def alone(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """For what one does for all: one at a time, and who cannot in time is told by `EngineUnavailable`."""
        ...

    async def together(self, tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """What each of them returns; they raise nothing."""
        ...

    def forked(self) -> None:
        """Let go of what another thread of the parent had."""
        ...


class _Node(RedisEngine):
    """The engine for one node."""

    def __init__(self, family: RedisFamily, wire: Wire, endpoint: Endpoint, address: str, *, asks: bool) -> None:
        super().__init__(family, wire)
        self.endpoint, self.asks = endpoint, asks
        self._address = address


class ClusterEngine:
    """The operations, the same in both worlds: only how nodes are reached differs."""

    def __init__(self, family: ClusterFamily, nodes: Nodes) -> None:
        self.facts = family.facts
        self._family, self._reach, self._slots = family, nodes, family.slots
        self._scout = family.watched(nodes.wire_to(family.cluster.seeds[0]))
        """Connects to any node, to ask who serves what."""
        self.world = self._scout.world
        self._nodes: dict[Endpoint, tuple[_Node, _Node]] = {}
        """Each node, and the same for those who were told to ask there."""
        self._strays: dict[str, _Node] = {}
        """Waiters that were queued where their slot is moving to."""
        self._slot = lru_cache(MOST_REMEMBERED)(family.slot_of)

    async def take(
        self, want: Want, *, until: float, patience: float | None = None, suspect: Suspect | None = None
    ) -> Grant | Busy:
        """Take the name and mint its token, or say why not; with patience, queue."""

        async def take(node: _Node) -> Grant | Busy:
            answer = await node.take(want, until=until, patience=patience, suspect=suspect)
            if node.asks and patience is not None and type(answer) is Busy:
                self._strays[want.holder] = node
            return answer

        return await self._at_its_node(want.name, take, until)

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, Grant | None]:
        """Return when the queued asker is woken, or at `until`. One whose slot has moved since has to ask again."""
        owner = self._slots.owners[self._slot(want.name)]
        node = self._strays.pop(want.holder, None) or (self._node(owner) if owner is not None else None)
        return node.wait(want, until) if node is not None else _at_once()

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool | None]:
        """Prolong each lease that is still held, in a pipeline for each node."""

        async def renew(node: _Node, which: Sequence[int]) -> list[bool]:
            return await node.renew([leases[index] for index in which], until=until)

        answers = await self._at_their_nodes([lease.name for lease in leases], renew, until)
        failures = [answer for answer in answers if isinstance(answer, EngineError)]
        if failures and len(failures) == len(answers):
            raise failures[0]
        return [None if isinstance(answer, EngineError) else answer for answer in answers]

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue."""
        self._strays.pop(holder, None)
        return await self._at_its_node(name, lambda node: node.release(name, holder, until=until), until)

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits."""
        return await self._at_its_node(name, lambda node: node.status(name, until=until), until)

    async def statuses(self, names: Sequence[str], *, until: float) -> list[NameStatus | None]:
        """Who holds and who waits, for many names, in pipelines."""

        async def statuses(node: _Node, which: Sequence[int]) -> list[NameStatus | None]:
            return await node.statuses([names[index] for index in which], until=until)

        found: list[NameStatus | None] = []
        for answer in await self._at_their_nodes(names, statuses, until):
            if isinstance(answer, EngineError):
                raise answer
            found.append(answer)
        return found

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their text. Looks through all keys of all nodes."""
        found: set[str] = set()
        for endpoint in await self._primaries(until):
            node = self._node(endpoint)
            found.update(await self._listed(node.names(after=after, limit=limit, until=until)))
        return sorted(found)[:limit]

    async def roll(self, *, at: str, until: float) -> tuple[list[NameStatus], str]:
        """Some of these names, in no order, with who holds and who waits. Looks through one node after the other."""
        where, _, cursor = at.rpartition(" ")
        primaries = await self._primaries(until)
        node = next((one for one in primaries if str(one) == where), None)
        if node is None:  # the first one, or the one after a node that is gone
            node, cursor = next(iter(order_of(primaries, where)), None), ""
        if node is None:
            return [], ""
        some, cursor = await self._listed(self._node(node).roll(at=cursor, until=until))
        if cursor:
            return some, f"{node} {cursor}"
        following = order_of(primaries, str(node))
        return some, f"{following[0]} " if following else ""

    async def _listed(self, listing: Awaitable[T]) -> T:
        try:
            return await listing
        except Redirected as redirected:
            self._slots.doubted = True
            raise EngineUnavailable(f"a slot was moved while its names were listed: {redirected}") from redirected

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name and mint a token above theirs."""
        return await self._at_its_node(name, lambda node: node.force_release(name, until=until), until)

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:  # noqa: ARG002 -- nothing is asked
        """Refuse correctness: a replica may be promoted."""
        if purpose == "correctness":
            refuse_sentinel(self.facts.address)

    async def close(self) -> None:
        """Give back connections."""
        for node, _ in list(self._nodes.values()):
            await node.close()

    def forked(self) -> None:
        """Let go of every connection of the family: the keeper's, too, has no thread in a child."""
        self._family.forked()

    async def _at_its_node(self, name: str, ask: Callable[[_Node], Awaitable[T]], until: float) -> T:
        """What the node that serves a name answers."""
        slot = self._slot(name)
        node = await self._owner(slot, until)
        for _ in range(MOST_REDIRECTIONS):
            try:
                return await ask(node)
            except Redirected as redirected:
                node = await self._follow(redirected, node, slot, until)
            except OutcomeUnknown:
                self._slots.doubted = True
                raise
            except EngineUnavailable:
                other = await self._other_owner(slot, node, until)
                if other is None:
                    raise
                node = other
        raise EngineUnavailable(
            f"{self.facts.address} sent a request from node to node {MOST_REDIRECTIONS} times; its nodes do not agree"
        )

    async def _follow(self, redirected: Redirected, node: _Node, slot: int, until: float) -> _Node:
        """The node that a redirection leads to."""
        endpoint = redirection(redirected.to, node.endpoint)
        if redirected.once:
            return self._node(endpoint, asks=True)
        self._slots.doubted = True
        await self._learn(until)
        self._slots.owners[slot] = endpoint  # whoever told the map may not know yet
        return self._node(endpoint)

    async def _other_owner(self, slot: int, node: _Node, until: float) -> _Node | None:
        """Who serves a slot instead of a node that does not; None where nobody else does, as far as is known now."""
        self._slots.doubted = True
        if node.asks:
            return None
        await self._learn(until)
        owner = self._slots.owners[slot]
        return None if owner is None or owner == node.endpoint else self._node(owner)

    async def _owner(self, slot: int, until: float) -> _Node:
        if self._slots.doubted:
            await self._learn(until)
        owner = self._slots.owners[slot]
        if owner is None:
            self._slots.doubted = True
            raise EngineUnavailable(
                self._slots.failure or f"no node of {self.facts.address} serves slot {slot}; look at CLUSTER INFO"
            )
        return self._node(owner)

    async def _primaries(self, until: float) -> tuple[Endpoint, ...]:
        if self._slots.doubted:
            await self._learn(until)
        if not self._slots.primaries:
            raise EngineUnavailable(self._slots.failure or f"no node of {self.facts.address} serves any slot")
        return self._slots.primaries

    async def _learn(self, until: float) -> None:
        """Learn the map anew, unless somebody has just tried. Where nobody can tell it, the old one stays."""
        slots, world = self._slots, self.world
        try:
            async with self._reach.alone(until - world.now()):
                if world.now() < slots.asked_at + LEARN_EVERY:
                    return
                await slots.learn(self._family.cluster, self._scout.dial, world, until)
        except EngineUnavailable:
            return  # it is in `slots.failure`, for those who have no map at all
        for endpoint in self._nodes.keys() - set(slots.primaries):
            pair = self._nodes.pop(endpoint, None)
            if pair is not None:
                await pair[0].close()

    def _node(self, endpoint: Endpoint, *, asks: bool = False) -> _Node:
        pair = self._nodes.get(endpoint)
        if pair is None:
            wire = self._family.watched(self._reach.wire_to(endpoint))
            address = self._family.cluster.at(endpoint).address
            one, asking = (
                _Node(self._family.shared, one, endpoint, address, asks=one is not wire)
                for one in (wire, AskingWire(wire))
            )
            pair = self._nodes.setdefault(endpoint, (one, asking))
        return pair[asks]

    async def _at_their_nodes(
        self, names: Sequence[str], ask: Callable[[_Node, Sequence[int]], Awaitable[list[T]]], until: float
    ) -> list[T | EngineError]:
        """What the nodes answer of many names; `ask` is given a node and which of the names are to be asked there."""
        groups: dict[Endpoint | None, list[int]] = {}
        if self._slots.doubted:
            await self._learn(until)
        for index, name in enumerate(names):
            groups.setdefault(self._slots.owners[self._slot(name)], []).append(index)
        answered = await self._reach.together(
            [self._some(names, which, endpoint, ask, until) for endpoint, which in groups.items()]
        )
        answers: dict[int, T | EngineError] = {}
        for which, some in zip(groups.values(), answered, strict=True):
            answers.update(zip(which, some, strict=True))
        return [answers[index] for index in range(len(names))]

    async def _some(
        self,
        names: Sequence[str],
        which: Sequence[int],
        endpoint: Endpoint | None,
        ask: Callable[[_Node, Sequence[int]], Awaitable[list[T]]],
        until: float,
    ) -> list[T | EngineError]:
        """What one node answers of some names. Where it refuses them together, each half is asked."""
        try:
            if len(which) == 1:
                return [*await self._at_its_node(names[which[0]], lambda node: ask(node, which), until)]
            if endpoint is not None:
                return [*await ask(self._node(endpoint), which)]
        except EngineError as error:
            if len(which) == 1 or isinstance(error, OutcomeUnknown) or self.world.now() >= until:
                self._slots.doubted = True
                return [error] * len(which)
        half = len(which) // 2
        return [
            *await self._some(names, which[:half], endpoint, ask, until),
            *await self._some(names, which[half:], endpoint, ask, until),
        ]


async def _at_once() -> None:
    """Nothing is to be waited for."""


class ClusterFamily:
    """One cluster, and how to reach it in each world."""

    def __init__(self, cluster: Cluster, namespace: str, label: str) -> None:
        self.facts = cluster_facts(cluster.address)
        self.cluster, self.slots = cluster, SlotMap()
        self.shared = RedisFamily(cluster.entry, namespace, label)
        """What all nodes have in common, above all the highest token seen: a slot, or a failover, may come to any."""
        self._label = label
        self._inherited: weakref.WeakSet[NodeWire | Nodes] = weakref.WeakSet()
        """What a forked child has to let go of."""

    def __repr__(self) -> str:
        return f"<ClusterFamily {self.facts.address}>"

    def slot_of(self, name: str) -> int:
        """The slot that all keys of a name are in."""
        return slot_of(keys_of(self.shared.namespace, name)[0])

    def blocking(self) -> ClusterEngine:
        """An engine whose operations block. Threads may share it."""
        from leasehold.wires.redis_cluster import BlockingNodes

        return self._engine(BlockingNodes(self.cluster, self._label))

    def asyncio(self) -> ClusterEngine:
        """An engine for the running event loop. Tasks may share it."""
        from leasehold.wires.redis_cluster_asyncio import AsyncNodes

        return self._engine(AsyncNodes(self.cluster, self._label))

    def _engine(self, nodes: Nodes) -> ClusterEngine:
        self._inherited.add(nodes)
        return ClusterEngine(self, nodes)

    def watched(self, wire: NodeWire) -> NodeWire:
        """Remember a wire, in case of a fork."""
        self._inherited.add(wire)
        return wire

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection, of whichever engine."""
        for one in list(self._inherited):
            one.forked()


def open_engine(on: str | object, *, namespace: str, client_label: str) -> ClusterFamily:
    """Open the cluster behind a URL or a client object. Nothing is sent before the first operation."""
    cluster = cluster_from(Hidden(on) if isinstance(on, str) else on)
    for seed in cluster.seeds:
        warn_of_transport(cluster.at(seed), stacklevel=4)
    return ClusterFamily(cluster, namespace, client_label)
