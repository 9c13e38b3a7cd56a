"""The ZooKeeper engine on a real server: nodes, tokens, the queue, and what a lost answer leaves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from tests.engines.driving import WORLDS, World, eventually, fresh_name, want
from tests.engines.zookeeper_help import Driven, expire, family_at
from tests.support.zookeeper_server import TICK, ZooKeeperServer, running_zookeeper

from leasehold import EngineError, EngineUnavailable, InvalidTTL, OutcomeUnknown
from leasehold.core.engine import Busy, Grant, Renewal, Want
from leasehold.testing.proxy import Proxy
from leasehold.wires import zookeeper_messages as messages


@pytest.fixture(scope="module")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    with running_zookeeper() as server:
        yield server


@pytest.fixture(params=WORLDS)
def driven(zookeeper_server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Driven]:
    world: World = request.param
    one = Driven(family_at(zookeeper_server.url), world)
    yield one
    one.close()


@pytest.fixture
def other(zookeeper_server: ZooKeeperServer) -> Iterator[Driven]:
    one = Driven(family_at(zookeeper_server.url))
    yield one
    one.close()


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", zookeeper_server.port) as one:
        yield one


@pytest.fixture(params=WORLDS)
def through_proxy(proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Driven]:
    """An engine whose requests have half a second each."""
    world: World = request.param
    one = Driven(family_at(f"zookeeper://127.0.0.1:{proxy.port}?tick={TICK}"), world, seconds=0.5)
    yield one
    one.close()


def nodes_of(server: ZooKeeperServer, driven: Driven, name: str) -> list[str]:
    """What hangs on sessions for a name, as the server says."""
    folder = driven.folder(name) + "/"
    return [path.removeprefix(folder) for path in server.ephemerals() if path.startswith(folder)]


def renewal(wanted: Want, grant: Grant, ttl: float | None = None) -> Renewal:
    return Renewal(wanted.name, wanted.holder, grant.token, ttl or wanted.ttl)


# Tokens and nodes


def test_the_token_is_the_transaction_that_created_the_node(zookeeper_server: ZooKeeperServer, driven: Driven) -> None:
    wanted = want(fresh_name())
    grant = driven.take(wanted)
    [node] = nodes_of(zookeeper_server, driven, wanted.name)
    (reply,) = driven.ask(messages.exists(f"{driven.folder(wanted.name)}/{node}"))
    assert messages.stat_in(reply.body).created == grant.token
    assert driven.take(wanted) == grant, "the same holder gets the same token again"
    assert driven.renew([renewal(wanted, grant), renewal(wanted, Grant(grant.token + 1))]) == [True, False]
    assert wanted.holder not in node, "whoever can list the nodes must not learn the holder's id"
    assert driven.release(wanted.name, wanted.holder)
    assert not driven.release(wanted.name, wanted.holder)
    assert nodes_of(zookeeper_server, driven, wanted.name) == []


def test_taking_and_releasing_is_one_round_trip_each(proxy: Proxy, through_proxy: Driven) -> None:
    through_proxy.take(first := want(fresh_name()))
    through_proxy.release(first.name, first.holder)
    before = proxy.traffic.requests
    through_proxy.take(again := want(first.name))
    assert proxy.traffic.requests == before + 1
    through_proxy.release(again.name, again.holder)
    assert proxy.traffic.requests == before + 2


def test_tokens_go_on_when_a_name_was_forgotten(driven: Driven) -> None:
    """ZooKeeper deletes the folder of a name that nobody uses, and begins to number anew then."""
    name = fresh_name()
    tokens = []
    for _ in range(3):
        grant = driven.take(wanted := want(name))
        tokens.append(grant.token)
        driven.release(name, wanted.holder)
        (reply,) = driven.ask(messages.delete(driven.folder(name)))
        assert reply.error == messages.OK
    assert tokens == sorted(set(tokens))


def test_numbers_that_have_run_out_do_not_let_two_in(driven: Driven, other: Driven) -> None:
    """ZooKeeper gives the last number to all who come later: then the transactions tell who came first."""
    name, last = fresh_name(), "2147483647"
    held = want(name)
    driven.take(held)
    driven.release(name, held.holder)
    folder = driven.folder(name)
    path = f"{folder}/e-{'a' * 16}-{last}"
    driven.ask(messages.create(path, b"", messages.OPEN, messages.EPHEMERAL))
    late = want(name)
    assert isinstance(other.take(late, patience=5.0), Busy), "a lower number, but it came later"
    driven.ask(messages.create(f"{folder}/e-{'b' * 16}-{last}", b"", messages.OPEN, messages.EPHEMERAL))
    driven.ask(messages.delete(path))
    assert isinstance(other.take(late, patience=5.0), Grant), "a name that sorts later, and so it is"
    assert isinstance(driven.take(want(name)), Busy)


@pytest.mark.parametrize("foreign", ["notes", "e-xyz-0000000000", "x-0123456789abcdef-0000000000"])
def test_a_node_that_cannot_be_read_is_not_taken_for_nobody(driven: Driven, foreign: str) -> None:
    """It may be the holder's, with a letter changed on the way, or of a kind that a later version has."""
    name = fresh_name()
    driven.take(first := want(name))
    driven.release(name, first.holder)
    driven.ask(messages.create(f"{driven.folder(name)}/{foreign}", b"", messages.OPEN, messages.EPHEMERAL))
    wanted = want(name)
    for patience in (None, 5.0):
        with pytest.raises(EngineError, match=f"'{foreign}' among those of a lock.* by force"):
            driven.take(wanted, patience=patience)
    driven.force_release(name)
    assert isinstance(driven.take(wanted), Grant)
    driven.release(name, wanted.holder)


def test_a_ttl_that_no_session_can_bear_is_refused_and_leaves_nothing(
    zookeeper_server: ZooKeeperServer, driven: Driven
) -> None:
    wanted = want(fresh_name(), ttl=500.0)
    for _ in range(2):
        with pytest.raises(InvalidTTL, match="maxSessionTimeout"):
            driven.take(wanted)
    assert nodes_of(zookeeper_server, driven, wanted.name) == []
    held = want(fresh_name())
    grant = driven.take(held)
    with pytest.raises(InvalidTTL):
        driven.renew([renewal(held, grant, ttl=500.0)])
    assert driven.renew([renewal(held, grant)]) == [True]
    driven.release(held.name, held.holder)


# The queue


def test_a_waiter_moves_its_node_and_keeps_its_token(
    zookeeper_server: ZooKeeperServer, driven: Driven, other: Driven
) -> None:
    name = fresh_name()
    other.take(held := want(name))
    wanted = want(name)
    assert isinstance(driven.take(wanted, patience=10.0), Busy)
    place = driven.place(wanted)
    assert place.waits
    assert place.session is not None
    assert place.session.timeout < place.lease.timeout, "one that dies while it waits holds up nobody for long"
    token = place.token
    other.release(name, held.holder)
    assert driven.wait(wanted, 5.0) < 2
    assert driven.take(wanted, patience=10.0) == Grant(token)
    assert not driven.place(wanted).waits
    assert len(nodes_of(zookeeper_server, driven, name)) == 1
    assert driven.renew([renewal(wanted, Grant(token))]) == [True]
    assert driven.release(name, wanted.holder)


def test_who_would_share_is_told_who_holds_the_name_and_not_who_waits_before_it(driven: Driven) -> None:
    name = fresh_name()
    driven.take(held := want(name, mode="shared"))
    driven.take(ahead := want(name), patience=10.0)
    wanted = want(name, mode="shared")
    for _ in range(2):
        answer = driven.take(wanted, patience=10.0)
        assert isinstance(answer, Busy)
        assert answer.incumbent is not None
        assert answer.incumbent.about == held.about
    for one in (wanted, ahead, held):
        driven.release(name, one.holder)


def test_a_moved_node_does_not_let_the_next_one_in(driven: Driven, other: Driven) -> None:
    """The one before it is gone, for its watch says so; but it has only moved, and holds the name now."""
    name = fresh_name()
    other.take(held := want(name))
    other.take(first := want(name), patience=10.0)
    driven.take(second := want(name), patience=10.0)
    other.release(name, held.holder)
    assert isinstance(driven.take(second, patience=10.0), Busy), "the first is before it, and nobody else"
    moving = threading.Timer(0.3, lambda: other.take(first, patience=10.0))
    moving.start()
    assert driven.wait(second, 5.0) < 3
    moving.join()
    assert driven.place(second).is_next, "or this shows nothing"
    assert isinstance(driven.take(second, patience=10.0), Busy)
    assert other.release(name, first.holder)
    driven.wait(second, 5.0)
    assert isinstance(driven.take(second, patience=10.0), Grant)
    driven.release(name, second.holder)


def test_a_prolonged_lease_keeps_its_token_and_its_name(driven: Driven, other: Driven) -> None:
    name = fresh_name()
    grant = driven.take(held := want(name, ttl=2.0))
    other.take(waiting := want(name), patience=20.0)
    moving = threading.Timer(0.3, lambda: driven.renew([renewal(held, grant, ttl=30.0)]))
    moving.start()
    assert other.wait(waiting, 5.0) < 3
    moving.join()
    assert isinstance(other.take(waiting, patience=20.0), Busy)
    assert driven.place(held).lease.ttl == 30.0
    assert driven.renew([renewal(held, grant, ttl=30.0)]) == [True]
    assert driven.take(held) == grant
    assert driven.release(name, held.holder)
    other.wait(waiting, 5.0)
    assert isinstance(other.take(waiting, patience=20.0), Grant)
    other.release(name, waiting.holder)


def test_a_lease_is_prolonged_though_the_session_for_that_was_ended(
    zookeeper_server: ZooKeeperServer, driven: Driven
) -> None:
    lost = driven.take(longer := want(fresh_name(), ttl=20.0))
    grant = driven.take(wanted := want(fresh_name(), ttl=5.0))
    expire(zookeeper_server, driven.place(longer).lease)
    with contextlib.suppress(EngineUnavailable):  # the connection is gone; only the next one tells more
        driven.renew([renewal(longer, lost)])
    assert driven.renew([renewal(wanted, grant, 20.0)]) == [True]
    assert driven.place(wanted).lease is not driven.place(longer).lease
    assert driven.release(wanted.name, wanted.holder)
    driven.release(longer.name, longer.holder)


def test_a_release_by_force_is_above_all_who_came_before_it(driven: Driven, other: Driven) -> None:
    name = fresh_name()
    held = driven.take(first := want(name))
    other.take(waiting := want(name), patience=20.0)
    token = other.force_release(name)
    assert token > held.token
    assert driven.renew([renewal(first, held)]) == [False]
    assert not driven.release(name, first.holder)
    again = other.take(waiting, patience=20.0)
    assert isinstance(again, Grant)
    assert again.token > token
    other.release(name, waiting.holder)
    assert other.force_release(fresh_name()) > again.token


def test_somebody_who_comes_during_a_release_by_force_does_not_keep_an_older_token(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the list was made and before the nodes on it are deleted."""
    name = fresh_name()
    late: list[Busy] = []
    driven.take(want(name))
    make_folder = driven.engine._nodes.make_folder

    async def somebody_comes(folder: str, until: float) -> None:
        await make_folder(folder, until)
        if not late:
            late.append(other.take(want(name), patience=20.0))

    monkeypatch.setattr(driven.engine._nodes, "make_folder", somebody_comes)
    token = driven.force_release(name)
    assert late
    assert other.status(name) is None, "it has to come again"
    fresh = other.take(wanted := want(name))
    assert fresh.token > token
    other.release(name, wanted.holder)


# Sessions


def test_a_session_that_the_server_ended_takes_its_leases_along(
    zookeeper_server: ZooKeeperServer, driven: Driven
) -> None:
    leases = [want(fresh_name()) for _ in range(3)]
    grants = [driven.take(one) for one in leases]
    longer = want(fresh_name(), ttl=20.0)
    kept = driven.take(longer)
    expire(zookeeper_server, driven.place(leases[0]).lease)
    asked = [*(renewal(one, grant) for one, grant in zip(leases, grants, strict=True)), renewal(longer, kept)]
    answers: list[bool] = []

    def are_told() -> bool:
        with contextlib.suppress(EngineUnavailable):  # the connection is gone; only the next one tells more
            answers[:] = driven.renew(asked)
        return bool(answers)

    eventually(are_told, 5.0)
    assert answers == [False, False, False, True], "only those of this TTL"
    assert not driven.release(leases[0].name, leases[0].holder)
    again = driven.take(anew := want(leases[0].name))
    assert again.token > grants[0].token
    driven.release(anew.name, anew.holder)
    driven.release(longer.name, longer.holder)


def test_a_waiter_whose_session_ended_queues_again(
    zookeeper_server: ZooKeeperServer, driven: Driven, other: Driven
) -> None:
    name = fresh_name()
    other.take(held := want(name))
    driven.take(waiting := want(name), patience=20.0)
    session = driven.place(waiting).session
    assert session is not None
    threading.Timer(0.3, lambda: expire(zookeeper_server, session)).start()
    assert driven.wait(waiting, 10.0) < 5, "it must not wait in a queue in which it does not stand any more"
    assert isinstance(driven.take(waiting, patience=20.0), Busy)
    assert len(other.status(name).waiters) == 1
    other.release(name, held.holder)
    driven.wait(waiting, 5.0)
    assert isinstance(driven.take(waiting, patience=20.0), Grant)
    driven.release(name, waiting.holder)


def test_idle_waiters_keep_their_place_for_longer_than_their_session_lasts(driven: Driven, other: Driven) -> None:
    name = fresh_name()
    other.take(held := want(name))
    driven.take(waiting := want(name), patience=20.0)
    session, token = driven.place(waiting).session, driven.place(waiting).token
    assert session is not None
    assert driven.wait(waiting, session.timeout * 1.5) >= session.timeout * 1.4
    assert isinstance(driven.take(waiting, patience=20.0), Busy)
    assert driven.place(waiting).token == token
    other.release(name, held.holder)
    driven.release(name, waiting.holder)


def test_closing_ends_sessions_that_nothing_hangs_on(zookeeper_server: ZooKeeperServer) -> None:
    one = Driven(family_at(zookeeper_server.url))
    one.take(released := want(fresh_name()))
    one.take(held := want(fresh_name(), ttl=20.0))
    one.status(held.name)
    idle = [one.place(released).lease.id, one.family.places.waiting_session(one.engine.world.now()).id]
    used = one.place(held).lease.id
    one.release(released.name, released.holder)
    assert all(map(zookeeper_server.knows_session, [*idle, used]))
    one.close()
    assert not any(map(zookeeper_server.knows_session, idle))
    assert zookeeper_server.knows_session(used), "what is still held is not given back: it runs out"


# Lost answers


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_an_unanswered_creation_leaves_no_ghost(
    zookeeper_server: ZooKeeperServer, proxy: Proxy, through_proxy: Driven, way: str
) -> None:
    through_proxy.take(first := want(fresh_name()))
    through_proxy.release(first.name, first.holder)
    proxy.cut("requests" if way == "requests" else "replies")
    with pytest.raises(OutcomeUnknown):
        through_proxy.take(wanted := want(first.name))
    created = nodes_of(zookeeper_server, through_proxy, first.name)
    assert len(created) == (1 if way == "replies" else 0)
    proxy.heal()
    grant = through_proxy.take(wanted)
    assert isinstance(grant, Grant)
    there = nodes_of(zookeeper_server, through_proxy, first.name)
    assert len(there) == 1, "its own node is found again, and no second one made"
    assert there == created or way == "requests"
    assert through_proxy.release(first.name, wanted.holder)
    assert nodes_of(zookeeper_server, through_proxy, first.name) == []


def test_an_attempt_that_was_given_up_leaves_no_ghost(
    zookeeper_server: ZooKeeperServer, proxy: Proxy, through_proxy: Driven
) -> None:
    through_proxy.take(first := want(fresh_name()))
    proxy.cut("replies")
    with pytest.raises(OutcomeUnknown):
        through_proxy.take(lost := want(fresh_name()))
    with pytest.raises(EngineError):
        through_proxy.release(lost.name, lost.holder)
    assert len(nodes_of(zookeeper_server, through_proxy, lost.name)) <= 1
    proxy.heal()
    place = through_proxy.place(first)
    assert through_proxy.renew([renewal(first, Grant(place.token))]) == [True]
    assert nodes_of(zookeeper_server, through_proxy, lost.name) == [], "given back with the next renewal"
    through_proxy.release(first.name, first.holder)


def test_an_unanswered_move_is_found_again(
    zookeeper_server: ZooKeeperServer, proxy: Proxy, through_proxy: Driven, other: Driven
) -> None:
    name = fresh_name()
    other.take(held := want(name))
    through_proxy.take(waiting := want(name), patience=20.0)
    token = through_proxy.place(waiting).token
    other.release(name, held.holder)
    through_proxy.wait(waiting, 2.0)
    proxy.cut("replies")
    with pytest.raises(OutcomeUnknown):
        through_proxy.take(waiting, patience=20.0)
    proxy.heal()
    assert through_proxy.take(waiting, patience=20.0) == Grant(token)
    assert len(nodes_of(zookeeper_server, through_proxy, name)) == 1
    assert through_proxy.release(name, waiting.holder)


def test_an_unanswered_release_may_be_repeated(
    zookeeper_server: ZooKeeperServer, proxy: Proxy, through_proxy: Driven
) -> None:
    through_proxy.take(held := want(fresh_name()))
    proxy.cut("replies")
    with pytest.raises(OutcomeUnknown):
        through_proxy.release(held.name, held.holder)
    proxy.heal()
    through_proxy.release(held.name, held.holder)
    assert nodes_of(zookeeper_server, through_proxy, held.name) == []


def test_nothing_was_sent_is_told_apart_from_an_unknown_outcome(proxy: Proxy, through_proxy: Driven) -> None:
    proxy.refuse()
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        through_proxy.take(want(fresh_name()))
