"""Every operation of the etcd engine on a real server, in both worlds."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.driving import WORLDS, World, eventually, fresh_name, want
from tests.engines.etcd_help import Driven, counted, family_at
from tests.support.etcd_server import EtcdNode, encoded, running_etcd

from leasehold import Leasehold, LeaseLost, Misuse, NotAcquired
from leasehold.core.engine import Busy, Grant, Mode, Renewal, Want
from leasehold.engines.etcd import ownership

MODES: tuple[Mode, ...] = ("exclusive", "shared", "permit")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as node:
        yield node


@pytest.fixture
def empty_server(tmp_path: Path) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path) as node:
        yield node


@pytest.fixture(params=WORLDS)
def engine(server: EtcdNode, request: pytest.FixtureRequest) -> Iterator[Driven]:
    world: World = request.param
    driven = Driven(family_at(server.url), world)
    yield driven
    driven.close()


@pytest.fixture
def other(server: EtcdNode) -> Iterator[Driven]:
    """Another client."""
    driven = Driven(family_at(server.url))
    yield driven
    driven.close()


def renewal(wanted: Want, grant: Grant, ttl: float | None = None) -> Renewal:
    return Renewal(wanted.name, wanted.holder, grant.token, ttl or wanted.ttl)


def test_an_uncontended_take_and_a_release_are_one_request_each(engine: Driven) -> None:
    engine.take(warm := want("warm"))
    engine.release(warm.name, warm.holder)
    requests = counted(engine.family)
    for patience in (None, 5.0):
        wanted = want(fresh_name())
        grant = engine.take(wanted, patience=patience)
        assert isinstance(grant, Grant)
        assert engine.release(wanted.name, wanted.holder)
    assert requests.made == ["Txn", "DeleteRange"] * 2


def test_tokens_are_the_revisions_and_increase(engine: Driven, server: EtcdNode) -> None:
    name, tokens = fresh_name(), []
    for patience in (None, 5.0) * 3:
        wanted = want(name)
        tokens.append(engine.take(wanted, patience=patience).token)
        assert tokens[-1] == server.revision()
        engine.release(name, wanted.holder)
    assert tokens == sorted(set(tokens))


def test_a_retry_recognises_itself_and_keeps_its_token(engine: Driven, other: Driven) -> None:
    """As after a reply that got lost. For every kind of lease, tried once or queued, with others queued since."""
    for mode in MODES:
        for patience in (None, 5.0):
            name = fresh_name()
            wanted = want(name, mode=mode, limit=2)
            grant = engine.take(wanted, patience=patience)
            rivals = [want(name) for _ in range(3)]
            assert all(isinstance(other.take(rival, patience=5.0), Busy) for rival in rivals)
            engine.place(wanted).token = None  # as if no answer had come
            again = engine.take(wanted, patience=patience)
            assert isinstance(again, Grant), (mode, patience)
            assert again.token == grant.token
            assert engine.release(name, wanted.holder)
            for rival in rivals:
                assert isinstance(other.take(rival, patience=5.0), Grant)
                assert other.release(name, rival.holder)


def test_a_refused_try_leaves_nothing_and_names_the_holder(engine: Driven, other: Driven, server: EtcdNode) -> None:
    name = fresh_name()
    holder = want(name)
    grant = other.take(holder)
    before = sorted(server.keys())
    for mode in MODES:
        busy = engine.take(want(name, mode=mode, limit=5))
        assert isinstance(busy, Busy)
        assert busy.incumbent is not None
        assert (busy.incumbent.token, busy.incumbent.about) == (grant.token, holder.about)
        assert math.isinf(busy.incumbent.lasts)
    assert sorted(server.keys()) == before
    other.release(name, holder.holder)


def test_waiters_are_served_in_the_order_in_which_they_asked(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    wanted = [want(name) for _ in range(4)]
    drivers = [engine, other, engine, other]
    answers = [driver.take(one, patience=9.0) for driver, one in zip(drivers, wanted, strict=True)]
    assert [type(answer) for answer in answers] == [Grant, Busy, Busy, Busy]
    assert isinstance(engine.take(want(name)), Busy), "a try must not pass those who wait"
    for place in range(3):
        drivers[place].release(name, wanted[place].holder)
        later = [
            isinstance(d.take(w, patience=9.0), Grant) for d, w in list(zip(drivers, wanted, strict=True))[place + 1 :]
        ]
        assert later == [True] + [False] * (2 - place)
    drivers[3].release(name, wanted[3].holder)


def test_leaving_the_queue_lets_the_next_one_in(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    holder, quitter, next_one = want(name), want(name), want(name)
    engine.take(holder)
    other.take(quitter, patience=9.0)
    engine.take(next_one, patience=9.0)
    assert other.release(name, quitter.holder) is False, "who waits does not hold"
    engine.release(name, holder.holder)
    assert isinstance(engine.take(next_one, patience=9.0), Grant)
    engine.release(name, next_one.holder)


def test_shared_leases_wait_for_exclusive_ones_before_them_only(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    readers = [want(name, mode="shared") for _ in range(3)]
    writer = want(name)
    assert all(isinstance(engine.take(one, patience=9.0), Grant) for one in readers[:2])
    assert isinstance(other.take(writer, patience=9.0), Busy)
    assert isinstance(engine.take(readers[2], patience=9.0), Busy), "a reader must not pass a writer that waits"
    assert isinstance(engine.take(want(name, mode="shared")), Busy)
    for one in readers[:2]:
        assert isinstance(other.take(writer, patience=9.0), Busy)
        engine.release(name, one.holder)
    assert isinstance(other.take(writer, patience=9.0), Grant)
    assert isinstance(engine.take(readers[2], patience=9.0), Busy)
    other.release(name, writer.holder)
    assert isinstance(engine.take(readers[2], patience=9.0), Grant)
    engine.release(name, readers[2].holder)


def test_permits_are_counted(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    holders = [want(name, mode="permit", limit=3) for _ in range(3)]
    assert all(isinstance(engine.take(one), Grant) for one in holders)
    assert isinstance(other.take(want(name, mode="permit", limit=3)), Busy)
    assert isinstance(other.take(want(name)), Busy)
    waiting = [want(name, mode="permit", limit=3) for _ in range(2)]
    assert all(isinstance(other.take(one, patience=9.0), Busy) for one in waiting)
    engine.release(name, holders[2].holder)  # not the oldest
    assert isinstance(other.take(waiting[1], patience=9.0), Busy)
    assert isinstance(other.take(waiting[0], patience=9.0), Grant)
    for one in holders[:2]:
        engine.release(name, one.holder)
    for one in waiting:
        assert isinstance(other.take(one, patience=9.0), Grant)
        other.release(name, one.holder)


def test_permits_are_counted_right_when_many_try_at_once(server: EtcdNode) -> None:
    """A try for a permit is two steps; the second must notice who came in between."""
    name = fresh_name()
    clients = [Driven(family_at(server.url)) for _ in range(6)]
    answers: list[object] = []
    together = threading.Barrier(len(clients))

    def attempt(client: Driven) -> None:
        client.take(want(fresh_name()))
        together.wait()
        answers.extend(client.take(want(name, mode="permit", limit=4)) for _ in range(5))

    threads = [threading.Thread(target=attempt, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 30
    assert sum(isinstance(answer, Grant) for answer in answers) == 4
    for client in clients:
        client.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_waiter_is_woken_when_it_could_be_served(engine: Driven, other: Driven, mode: Mode) -> None:
    name = fresh_name()
    holders = [want(name, mode="permit", limit=2) for _ in range(2)] if mode == "permit" else [want(name)]
    for one in holders:
        other.take(one)
    waiter = want(name, mode=mode, limit=2)
    assert isinstance(engine.take(waiter, patience=9.0), Busy)
    timer = threading.Timer(0.3, lambda: other.release(name, holders[-1].holder))
    timer.start()
    took = engine.wait(waiter, 9.0)
    timer.join()
    assert 0.2 < took < 3
    assert isinstance(engine.take(waiter, patience=9.0), Grant)


def test_news_since_the_latest_answer_counts(engine: Driven, other: Driven) -> None:
    """Between the answer and the wait there is no gap into which a wake-up could fall."""
    name = fresh_name()
    holder, waiter = want(name), want(name)
    other.take(holder)
    engine.take(waiter, patience=9.0)
    other.release(name, holder.holder)
    assert engine.wait(waiter, 9.0) < 3


def test_a_wait_ends_in_time(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    other.take(want(name))
    engine.take(waiter := want(name), patience=9.0)
    assert 0.2 <= engine.wait(waiter, 0.2) < 1.0
    assert 1.4 <= engine.wait(waiter, 1.4) < 3.0


def test_a_session_is_kept_alive_while_one_waits(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    other.take(holder := want(name, ttl=60))
    engine.take(waiter := want(name, ttl=2), patience=9.0)
    place = engine.place(waiter)
    key, token = place.key, place.token
    assert engine.wait(waiter, 3.2) >= 3.1, "nothing happened that it should be woken for"
    other.release(name, holder.holder)
    grant = engine.take(waiter, patience=9.0)
    assert isinstance(grant, Grant)
    assert (grant.token, engine.place(waiter).key) == (token, key)


def test_a_renewal_moves_the_deadline_and_notices_what_is_gone(engine: Driven, other: Driven) -> None:
    wanted = [want(fresh_name(), ttl=2) for _ in range(3)]
    grants = [engine.take(one) for one in wanted]
    renewals = [renewal(one, grant) for one, grant in zip(wanted, grants, strict=True)]
    asked_at = engine.engine.world.now()
    assert engine.renew(renewals) == [True] * 3
    confirmed_at = engine.place(wanted[0]).session.confirmed_at
    assert confirmed_at is not None
    assert confirmed_at >= asked_at
    other.force_release(wanted[1].name)
    engine.release(wanted[2].name, wanted[2].holder)
    assert engine.renew(renewals) == [True, False, False]
    assert engine.renew([renewals[0]._replace(token=renewals[0].token + 1)]) == [False]


def test_renewals_go_in_batches(engine: Driven) -> None:
    wanted = [want(fresh_name(), ttl=30) for _ in range(130)]
    renewals = [renewal(one, engine.take(one)) for one in wanted]
    requests = counted(engine.family)
    assert engine.renew(renewals) == [True] * 130
    assert requests.made == ["LeaseKeepAlive", "Txn", "Txn"]
    for one in wanted:
        engine.release(one.name, one.holder)


def test_extending_hangs_the_key_on_a_longer_session(engine: Driven, other: Driven, server: EtcdNode) -> None:
    wanted = want(fresh_name(), ttl=2)
    grant = engine.take(wanted)
    assert engine.renew([renewal(wanted, grant, ttl=7)]) == [True]
    assert engine.place(wanted).session.ttl == 7
    assert engine.renew([renewal(wanted, grant, ttl=2)]) == [True], "never shortened"
    assert engine.place(wanted).session.ttl == 7
    assert engine.release(wanted.name, wanted.holder)
    assert engine.renew([renewal(wanted, grant, ttl=9)]) == [False]


def test_extending_succeeds_though_the_longer_session_was_ended(engine: Driven, server: EtcdNode) -> None:
    """That one says nothing of the lease, which gets another."""
    wanted, longer = want(fresh_name(), ttl=20), want(fresh_name(), ttl=60)
    grant, lost = engine.take(wanted), engine.take(longer)
    server.revoke(engine.place(longer).session.id)
    assert engine.renew([renewal(wanted, grant, ttl=60), renewal(longer, lost)]) == [True, False]
    assert engine.place(wanted).session.ttl == 60
    assert engine.release(wanted.name, wanted.holder)
    assert not engine.release(longer.name, longer.holder)


def test_extending_says_that_the_lease_is_lost_if_both_sessions_were_ended(engine: Driven, server: EtcdNode) -> None:
    wanted, longer = want(fresh_name(), ttl=20), want(fresh_name(), ttl=60)
    grant = engine.take(wanted)
    engine.take(longer)
    for one in (wanted, longer):
        server.revoke(engine.place(one).session.id)
    assert engine.renew([renewal(wanted, grant, ttl=60)]) == [False]
    assert not engine.release(wanted.name, wanted.holder)
    assert not engine.release(longer.name, longer.holder)


def test_a_ttl_is_rounded_up_for_the_server(engine: Driven) -> None:
    engine.take(wanted := want(fresh_name(), ttl=2.2))
    assert engine.place(wanted).session.ttl == 3


def test_a_grant_counts_from_the_sessions_last_confirmation(engine: Driven) -> None:
    world = engine.engine.world
    engine.take(want(fresh_name(), ttl=60))
    threading.Event().wait(0.3)
    grant = engine.take(want(fresh_name(), ttl=60))
    assert grant.since is not None
    assert grant.since <= world.now() - 0.3, "the second lease is as old as its session"
    session = engine.family.sessions.session_for(60, world.now())
    session.confirmed_at = world.now() - 15
    grant = engine.take(want(fresh_name(), ttl=60))
    assert grant.since >= world.now() - 5, "a session that has spent a part of its TTL is refreshed first"


def test_an_ended_session_is_replaced_and_its_leases_are_refused(engine: Driven, server: EtcdNode) -> None:
    wanted = want(fresh_name(), ttl=60)
    grant = engine.take(wanted)
    server.revoke(engine.place(wanted).session.id)
    new = want(fresh_name(), ttl=60)
    assert isinstance(engine.take(new), Grant), "the put finds out, and a new session is made"
    assert engine.renew([renewal(wanted, grant)]) == [False]
    assert engine.release(wanted.name, wanted.holder) is False
    assert engine.release(new.name, new.holder)


def test_forcing_mints_a_token_above_all_and_wakes_everyone(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    holder, waiters = want(name), [want(name) for _ in range(2)]
    grant = other.take(holder)
    for one in waiters:
        engine.take(one, patience=9.0)
    token = other.force_release(name)
    assert token > grant.token
    assert engine.wait(waiters[0], 9.0) < 3
    assert other.renew([renewal(holder, grant)]) == [False]
    answers = [engine.take(one, patience=9.0) for one in waiters]
    assert [type(answer) for answer in answers] == [Grant, Busy]
    assert answers[0].token > token
    assert engine.force_release(fresh_name()) > 0


def test_status_tells_holders_and_waiters(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    assert engine.status(name) is None
    first, second, writer = want(name, mode="shared"), want(name, mode="shared"), want(name)
    tokens = [engine.take(one, patience=9.0).token for one in (first, second)]
    other.take(writer, patience=50.0)
    status = engine.status(name)
    assert (status.name, status.token) == (name, tokens[1])
    assert [(one.token, one.mode, one.about) for one in status.holders] == [
        (tokens[0], "shared", first.about),
        (tokens[1], "shared", second.about),
    ]
    assert all(0 <= one.held_for < 5 and 5 < one.expires_in <= 10 for one in status.holders)
    [waiter] = status.waiters
    assert (waiter.mode, waiter.about) == ("exclusive", writer.about)
    assert 0 <= waiter.waited_for < 5
    assert 40 < waiter.patience_left <= 50
    assert first.holder not in repr(status)


def test_names_are_listed_page_by_page(server: EtcdNode) -> None:
    names = sorted(f"{letter}{number}" for letter in "a/%é" for number in range(5))
    engine, elsewhere = (Driven(family_at(server.url, namespace=space)) for space in ("pages", "pages2"))
    wanted = [want(name) for name in names] + [want(names[0])]
    for one in wanted:
        engine.take(one, patience=9.0)
    elsewhere.take(want("elsewhere"))
    listed: list[str] = []
    while page := engine.names(after=listed[-1] if listed else None, limit=3):
        assert len(page) <= 3
        listed += page
    assert sorted(listed) == names
    for one in wanted:
        engine.release(one.name, one.holder)
    assert engine.names(after=None, limit=3) == []
    engine.close()
    elsewhere.close()


def test_closing_revokes_sessions_that_nothing_hangs_on(server: EtcdNode) -> None:
    before = set(server.leases())
    engine = Driven(family_at(server.url))
    kept, released = want(fresh_name(), ttl=70), want(fresh_name(), ttl=71)
    engine.take(kept)
    engine.take(released)
    engine.release(released.name, released.holder)
    engine.close()
    [left] = set(server.leases()) - before
    assert engine.place(kept).session.id == left
    assert engine.release(kept.name, kept.holder), "a closed engine opens again when it is used"
    engine.close()
    assert set(server.leases()) <= before


def test_a_thousand_failed_attempts_leave_no_key_and_no_session(empty_server: EtcdNode) -> None:
    holder, failing = Leasehold(empty_server.url), Leasehold(empty_server.url)
    lease = holder.lock("busy", ttl=60).acquire()
    for number in range(1000):
        lock = failing.lock("busy", ttl=30, wait=0.0 if number % 50 else 0.01)
        with pytest.raises(NotAcquired):
            lock.acquire()
    assert len(empty_server.keys()) == 1
    assert len(empty_server.leases()) == 3, "all attempts shared one session, and one to wait on"
    failing.close()
    lease.release()
    holder.close()
    assert (empty_server.keys(), empty_server.leases()) == ([], [])


def test_what_etcd_remembers_of_a_name_does_not_grow_with_use(empty_server: EtcdNode) -> None:
    """Etcd keeps deleted keys until it is compacted; so attempts that follow each other use the same key."""
    client = Leasehold(empty_server.url)
    with client.lock("often", ttl=30) as lease:
        key = ownership(lease).key
    for _ in range(20):
        with client.lock("often", ttl=30, wait=0) as lease:
            assert ownership(lease).key == key
    with client.lock("often", ttl=30) as lease:
        waiting = threading.Thread(target=lambda: client.lock("often", ttl=30, wait=10).acquire().release())
        waiting.start()
        eventually(lambda: sum("/often/" in one for one in empty_server.keys()) == 2, 5)  # noqa: SIM118
    waiting.join(10)
    with client.lock("often", ttl=30) as lease:
        assert ownership(lease).key == key
    client.close()


def test_two_threads_of_one_session_exclude_each_other(server: EtcdNode) -> None:
    client = Leasehold(server.url)
    inside, most, tokens = 0, 0, []

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with client.lock("threads", ttl=30, wait=60) as lease:
                inside += 1
                most = max(most, inside)
                tokens.append(lease.token)
                threading.Event().wait(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))
    client.close()


def test_ownership_guards_a_transaction_of_ones_own(server: EtcdNode) -> None:
    client = Leasehold(server.url)

    def write(condition: tuple[bytes, int], value: str) -> bool:
        compare = {"key": encoded(condition[0]), "target": "CREATE", "create_revision": condition[1]}
        put = {"request_put": {"key": encoded("report"), "value": encoded(value)}}
        return bool(server.ask("/v3/kv/txn", {"compare": [compare], "success": [put]}).get("succeeded"))

    lease = client.lock("report", ttl=30).acquire()
    condition = ownership(lease)
    assert condition.create_revision == lease.token
    assert write(condition, "first")
    client.force_release("report", because="a test")
    assert not write(condition, "overtaken")
    with client.lock("report", ttl=30) as second:
        assert not write(condition, "overtaken by one who uses the same key")
        assert write(ownership(second), "second")
    with pytest.raises(LeaseLost):
        ownership(second)
    with pytest.raises(LeaseLost):
        lease.release()
    client.close()


def test_ownership_is_for_etcd(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as client, client.lock("a") as lease, pytest.raises(Misuse, match="sqlite"):
        ownership(lease)
