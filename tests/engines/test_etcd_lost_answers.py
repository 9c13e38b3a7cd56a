"""Answers of etcd that get lost or come late, and watches that break: through a proxy that swallows them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.engines.driving import WORLDS, World, fresh_name, want
from tests.engines.etcd_help import Counted, Driven, counted, family_at, keys_of
from tests.support.etcd_server import EtcdNode, encoded, running_etcd

from leasehold import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.core.engine import Busy, Grant, Mode, Renewal
from leasehold.testing.proxy import Proxy
from leasehold.wires.etcd_messages import TXN, hang, if_modified, txn


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as node:
        yield node


@pytest.fixture
def proxy(server: EtcdNode) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as one:
        yield one


@pytest.fixture(params=WORLDS)
def through_proxy(proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Driven]:
    """An engine whose requests have half a second each."""
    world: World = request.param
    driven = Driven(family_at(f"etcd://127.0.0.1:{proxy.port}"), world, seconds=0.5)
    yield driven
    driven.close()


# Answers that get lost


def test_a_lost_answer_to_a_take_is_unknown_and_the_retry_recognises_itself(
    proxy: Proxy, through_proxy: Driven, server: EtcdNode
) -> None:
    for patience in (None, 5.0):
        through_proxy.take(want(fresh_name()))
        wanted = want(fresh_name())
        proxy.cut("replies")
        with pytest.raises(OutcomeUnknown):
            through_proxy.take(wanted, patience=patience)
        proxy.heal()
        assert isinstance(_soon(lambda: through_proxy.take(wanted, patience=patience)), Grant)  # noqa: B023
        assert len(keys_of(server, wanted.name)) == 1
        assert through_proxy.release(wanted.name, wanted.holder)


def test_a_request_that_is_carried_out_late_leaves_no_ghost(server: EtcdNode) -> None:
    """Nobody waits for it any more, yet its key hangs on a session that lives on: the next refresh removes it."""
    engine = Driven(family_at(server.url))
    lasting = want(fresh_name(), ttl=30)
    grant = engine.take(lasting)
    ghost = want(fresh_name(), ttl=30)
    session = engine.place(lasting).session
    engine.take(ghost)
    place = engine.place(ghost)
    key = place.key.decode()
    place.uncertain = True  # as after an answer that did not come
    assert engine.release(ghost.name, ghost.holder)
    server.ask("/v3/kv/put", {"key": encoded(key), "value": encoded("late"), "lease": session.id})
    assert engine.renew([Renewal(lasting.name, lasting.holder, grant.token, 30)]) == [True]
    assert keys_of(server, ghost.name) == []
    after = want(ghost.name, ttl=30)
    assert isinstance(engine.take(after), Grant)
    assert engine.place(after).key.decode() != key, "a key about which there is doubt is never used again"
    assert engine.place(after).session is not session, "and its session ends with the leases that it has"
    engine.close()


def changes_of(requests: Counted) -> list[bytes]:
    """The transactions that were sent so far."""
    return [request for method, request in zip(requests.made, requests.sent, strict=True) if method == "Txn"]


@pytest.mark.parametrize("mode", ["exclusive", "shared", "permit"])
def test_what_was_sent_while_it_waited_does_not_move_a_lease_when_it_comes_late(server: EtcdNode, mode: Mode) -> None:
    """Requests that were given up may be carried out at any time, here all of them once more after the grant."""
    before, engine = Driven(family_at(server.url)), Driven(family_at(server.url))
    name = fresh_name()
    before.take(first := want(name, mode="permit" if mode == "permit" else "exclusive"))
    engine.take(want(fresh_name(), ttl=30))  # so that its connection is there
    requests = counted(engine.family)
    wanted = want(name, ttl=30, mode=mode)
    assert isinstance(engine.take(wanted, patience=5.0), Busy)
    assert before.release(name, first.holder)
    grant = engine.take(wanted, patience=5.0)
    assert isinstance(grant, Grant)
    session, [key] = engine.place(wanted).session, keys_of(server, name)
    assert server.session_of(key) == session.id
    assert len(changes_of(requests)) >= 2
    for request in changes_of(requests):
        engine.family._lines.current().calls[TXN](request, timeout=5)
    assert server.session_of(key) == session.id, "what waiters hang on is kept alive by nobody any more"
    for ttl in (60, 90):
        earlier = changes_of(requests)
        assert engine.renew([Renewal(name, wanted.holder, grant.token, ttl)]) == [True]
        session, previous = engine.place(wanted).session, session
        assert server.session_of(key) == session.id != previous.id, "a longer TTL has another session"
        for request in earlier:
            engine.family._lines.current().calls[TXN](request, timeout=5)
        assert server.session_of(key) == session.id, "nor does what once made it the holder, or prolonged it, move it"
    for one in (before, engine):
        one.close()


def test_a_lease_that_a_late_request_could_still_move_is_written_anew(server: EtcdNode) -> None:
    """To prolong it, it was to be hung on a longer session; nobody knows whether that will still be carried out."""
    engine = Driven(family_at(server.url))
    grant = engine.take(wanted := want(fresh_name(), ttl=30))
    assert isinstance(grant, Grant)
    place, renewal = engine.place(wanted), Renewal(wanted.name, wanted.holder, grant.token, 30)
    engine.take(want(fresh_name(), ttl=60))  # so that the longer session is there
    longer = engine.family.sessions.session_for(60, engine.engine.world.now())
    late = txn([if_modified(place.key, place.modified)], [hang(place.key, longer.id)], [])
    place.loose = True  # as after an answer that did not come
    assert engine.renew([renewal]) == [True]
    engine.family._lines.current().calls[TXN](late, timeout=5)
    assert server.session_of(place.key.decode()) == place.session.id, "the late request finds another key than it saw"
    assert not place.loose
    engine.close()


def test_a_lost_answer_to_a_release_is_unknown_and_the_retry_says_so(proxy: Proxy, through_proxy: Driven) -> None:
    wanted = want(fresh_name())
    through_proxy.take(wanted)
    proxy.cut("replies")
    with pytest.raises(OutcomeUnknown):
        through_proxy.release(wanted.name, wanted.holder)
    proxy.heal()
    through_proxy.seconds = 5.0
    # The connection whose answers were swallowed may take one more request along when it breaks.
    with contextlib.suppress(OutcomeUnknown):
        assert through_proxy.release(wanted.name, wanted.holder) is False
    assert through_proxy.release(wanted.name, wanted.holder) is False
    assert isinstance(through_proxy.take(want(wanted.name)), Grant)


def test_what_could_not_be_given_back_does_not_live_on_with_the_leases_of_others(
    proxy: Proxy, through_proxy: Driven, server: EtcdNode
) -> None:
    kept, given_back = want(fresh_name()), want(fresh_name())
    grant = through_proxy.take(kept)
    through_proxy.take(given_back)
    proxy.cut("requests")
    with pytest.raises(EngineError):
        through_proxy.release(given_back.name, given_back.holder)
    proxy.heal()
    assert len(keys_of(server, given_back.name)) == 1
    through_proxy.seconds = 5.0
    renewal = Renewal(kept.name, kept.holder, grant.token, kept.ttl)
    assert _soon(lambda: through_proxy.renew([renewal])) == [True]
    assert keys_of(server, given_back.name) == [], "the session of both is kept, and the one key only"
    assert isinstance(through_proxy.take(given_back), Grant)
    assert through_proxy.renew([renewal]) == [True]
    for one in (kept, given_back):
        assert through_proxy.release(one.name, one.holder)


def test_a_lost_answer_is_not_followed_by_a_second_request(proxy: Proxy, through_proxy: Driven) -> None:
    """Nothing below the engine sends anything twice."""
    through_proxy.take(want(fresh_name()))
    requests = counted(through_proxy.family)
    proxy.cut("replies")
    with pytest.raises(OutcomeUnknown):
        through_proxy.take(want(fresh_name()))
    proxy.heal()
    assert requests.made == ["Txn"]


def test_a_black_hole_is_bounded(proxy: Proxy, through_proxy: Driven) -> None:
    proxy.black_hole()
    operations: tuple[Callable[[], object], ...] = (
        lambda: through_proxy.take(want(fresh_name())),
        lambda: through_proxy.status(fresh_name()),
        lambda: through_proxy.names(after=None, limit=5),
    )
    for operation in operations:
        since = time.monotonic()
        with pytest.raises(EngineUnavailable):
            operation()
        assert time.monotonic() - since < 2
    proxy.heal()
    through_proxy.seconds = 5.0
    assert isinstance(_soon(lambda: through_proxy.take(want(fresh_name()))), Grant)


def _soon(ask: Callable[[], object], within: float = 5.0) -> object:
    """Ask again until there is an answer, as the algorithms do."""
    give_up_at = time.monotonic() + within
    while True:
        try:
            return ask()
        except EngineError:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)


def test_a_broken_watch_is_made_good(proxy: Proxy, through_proxy: Driven, server: EtcdNode) -> None:
    holder = Driven(family_at(server.url))
    name = fresh_name()
    holder.take(held := want(name, ttl=60))
    through_proxy.seconds = 5.0
    through_proxy.take(waiting := want(name, ttl=60), patience=60.0)
    timer = threading.Timer(0.5, proxy.reset)
    timer.start()
    assert 0.4 < through_proxy.wait(waiting, 20.0) < 5, "who may have missed something asks again"
    timer.join()
    assert isinstance(_soon(lambda: through_proxy.take(waiting, patience=60.0)), Busy)
    timer = threading.Timer(0.3, lambda: holder.release(name, held.holder))
    timer.start()
    assert through_proxy.wait(waiting, 20.0) < 5
    timer.join()
    assert isinstance(through_proxy.take(waiting, patience=60.0), Grant)
    holder.close()


def test_a_watch_that_never_works_does_not_become_a_busy_loop(server: EtcdNode) -> None:
    holder, waiter = Driven(family_at(server.url)), Driven(family_at(server.url))
    name = fresh_name()
    holder.take(want(name, ttl=60))
    waiter.take(waiting := want(name, ttl=60), patience=60.0)
    hub = waiter.family.hub
    waits, over = 0, threading.Event()

    def break_it_again_and_again() -> None:
        while not over.wait(0.02):
            hub.close()

    breaker = threading.Thread(target=break_it_again_and_again)
    breaker.start()
    give_up_at = time.monotonic() + 1.5
    while time.monotonic() < give_up_at:
        waiter.wait(waiting, 20.0)
        waits += 1
    over.set()
    breaker.join()
    assert 2 <= waits <= 15
    for one in (holder, waiter):
        one.close()


def test_nobody_leaves_it_to_another_to_keep_alive_a_session_that_is_half_over(server: EtcdNode) -> None:
    engine = Driven(family_at(server.url))
    engine.take(first := want(fresh_name()))
    session, now = engine.place(first).session, engine.engine.world.now()
    session.confirmed_at = now - session.ttl * 0.6
    session.claim(now)  # whoever said so may have been interrupted
    requests = counted(engine.family)
    engine.take(second := want(fresh_name()))
    assert requests.made == ["LeaseKeepAlive", "Txn"]
    for one in (first, second):
        engine.release(one.name, one.holder)
    engine.close()
