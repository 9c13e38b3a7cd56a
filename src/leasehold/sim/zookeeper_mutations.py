"""Bugs that a lock on ZooKeeper can have, planted in the ZooKeeper engine."""

from __future__ import annotations

from leasehold.engines import zookeeper, zookeeper_nodes, zookeeper_places, zookeeper_queue
from leasehold.sim.mutating import Edit, Mutation, edit, registrar
from leasehold.wires import zookeeper_line

ZOOKEEPER_MUTATIONS: dict[str, Mutation] = {}
_caught_by = registrar(ZOOKEEPER_MUTATIONS)


@_caught_by("liveness", "leftovers", "turns", "patience")
def ghost_after_a_lost_reply() -> list[Edit]:
    """A creation whose answer was lost is taken not to have happened; another node is created behind its own ghost."""
    return [
        edit(zookeeper_nodes.Nodes.change, ("before, place.doubt = place.doubt, session", "before = place.doubt")),
    ]


@_caught_by("exclusion", "told", "given")
def lowest_watched() -> list[Edit]:
    """Everybody watches the lowest node, and who sees it go takes it that its turn has come."""
    return [
        edit(
            zookeeper_queue.blockade,
            ("others[-1], 0, is_all=len(others) == 1", "others[0], 0, is_all=True"),
        )
    ]


@_caught_by("exclusion", "told", "given")
def predecessor_is_all() -> list[Edit]:
    """Who sees the one before it go takes it that its turn has come; but that one may only have given up."""
    return [edit(zookeeper_queue.blockade, ("is_all=len(others) == 1", "is_all=True"))]


@_caught_by("exclusion", "told")
def believes_while_suspended() -> list[Edit]:
    """A lease is believed in for its TTL though its session is shorter, and may end while nothing is heard."""
    return [
        edit(zookeeper_places.timeout_for, ("ttl * 1.4 + tick * 1.5", "ttl * 0.5")),
        edit(
            zookeeper_nodes.Nodes.confirm,
            ("while not session.lasts_until(since + ttl):", "while not session.id:"),
            ("if session.id and not session.can_last(ttl):", "if False:"),
        ),
    ]


@_caught_by("exclusion", "told", "given")
def moves_not_counted() -> list[Edit]:
    """A node is moved to another session and nobody can tell: for those behind it, its place looks free."""
    return [
        edit(
            zookeeper_nodes.Nodes.move,
            ("place.version if place.is_next else messages.ANY_VERSION", "messages.ANY_VERSION"),
        )
    ]


@_caught_by("given")
def token_of_the_move() -> list[Edit]:
    """The token of a node that was moved is the transaction that moved it, not the one that gave it its place."""
    return [
        edit(
            zookeeper_nodes.Nodes.move,
            ("place.has_node(new, token, session)", "place.has_node(new, reply.zxid, session)"),
        )
    ]


@_caught_by("turns", "liveness")
def gone_before_it_was_watched() -> list[Edit]:
    """Who asks to be told of a node that is gone already waits for news that never come."""
    return [edit(zookeeper.ZooKeeperEngine._look, ("if reply.error != OK:", "if False:"))]


@_caught_by("liveness")
def ghost_of_one_that_gave_up() -> list[Edit]:
    """A waiter that gave up while nobody answered leaves its node to the session, which other waiters keep alive."""
    return [
        edit(
            zookeeper.ZooKeeperEngine._keep_alive,
            ("await self._pay_debts(session, min(until, now + session.timeout * PINGED))", ""),
        )
    ]


@_caught_by("soundness")
def readers_wake_each_other() -> list[Edit]:
    """Two who read the same connection, in two event loops, wake each other without end, for nothing."""
    return [edit(zookeeper_line.Line.receive, ("if heard else ()", ""))]


@_caught_by("exclusion", "told", "given")
def listed_before_it_came() -> list[Edit]:
    """Who comes lists the queue first and creates its node then: of two who do so at once, neither sees the other."""
    create = "await self._nodes.create(place, place.lease, data, "
    listed_first = f"(listed,) = await self._wire.ask(place.lease, listing, until); {create}[], until)"
    added = "queue += [place.node] if place.node and place.node not in queue else []"
    return [
        edit(zookeeper.ZooKeeperEngine._enter, (f"(listed,) = {create}listing, until)", listed_first)),
        edit(zookeeper.ZooKeeperEngine._judged, ("if place.node not in", f"{added}\n    if place.node not in")),
    ]


@_caught_by("exclusion", "told", "given")
def counted_before_it_came() -> list[Edit]:
    """Who comes has the nodes counted, and creates its own then: of two who do so at once, neither sees the other."""
    creation = "(reply,) = await self._create(place, folder, session, [request], until)"
    look = "await self._wire.ask(session, [messages.exists(folder)], until)"
    return [
        edit(
            zookeeper_nodes.Nodes.create_counting,
            (creation, f"(seen,) = {look}; {creation}"),
            ("return before.children == 0 and", "return seen.error != OK or self.stat_in(seen).children == 0 or"),
        )
    ]


@_caught_by("exclusion", "told", "given")
def one_of_them_is_its_own() -> list[Edit]:
    """The nodes are counted before the own one is there; if one is counted, it is taken for the own one."""
    return [
        edit(
            zookeeper_nodes.Nodes.create_counting,
            ("before.children == 0 and before.turnover == 2 * node.number", "before.children <= 1"),
        )
    ]


@_caught_by("given", "liveness", "told")
def token_of_the_folder() -> list[Edit]:
    """The token is the transaction that created the folder, not the one that counted its nodes and created another."""
    return [edit(zookeeper_nodes.Nodes.create_counting, ("before.changed", "before.created"))]


@_caught_by("exclusion", "told", "given")
def stranger_in_between() -> list[Edit]:
    """Who queues behind another of its own client takes it that nobody has come between the two."""
    return [edit(zookeeper_queue.behind, ("0 <= ahead.number == node.number - 1 < LAST_NUMBER - 1", "True"))]


@_caught_by("exclusion", "told", "given")
def gave_up_taken_for_moved_up() -> list[Edit]:
    """A node is gone, and so is what it would have moved to: taken for one that had its turn, it may have given up."""
    missed = "watch.begun_on.missed(watch, name)"
    believed = f"{missed}; place.blockade = seen; place.version = self._nodes.stat_in(replies[0]).version"
    return [
        edit(zookeeper.ZooKeeperEngine._stands_still, (" or other.error != OK", "")),
        edit(zookeeper.ZooKeeperEngine._look, (missed, believed)),
    ]


@_caught_by("exclusion", "told", "given")
def blockade_of_an_older_node() -> list[Edit]:
    """What was seen before a node that came early is believed of the one that was created in its stead, far behind."""
    return [edit(zookeeper_places.Place.has_node, ("= False, None", "= False, self.blockade"))]
