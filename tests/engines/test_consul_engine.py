"""The Consul engine on a real server: one request to take, tokens, the queue, sessions, lock-delay, breaking."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.consul_help import Driven, family_at
from tests.engines.driving import WORLDS, World, eventually, fresh_name, want
from tests.support.consul_server import LEAST_TTL, ConsulNode, running_consul

from leasehold import Leasehold, LeaseLost
from leasehold.core.engine import Busy, Grant, Renewal, Want
from leasehold.engines.consul import Ownership, ownership
from leasehold.engines.consul_taking import LONGEST_DELAY
from leasehold.errors import EngineError, Misuse, OutcomeUnknown
from leasehold.testing.proxy import Proxy
from leasehold.wires.consul import MOST_OPERATIONS

Open = Callable[..., Driven]


@pytest.fixture(scope="module")
def server() -> Iterator[ConsulNode]:
    with running_consul() as node:
        yield node


@pytest.fixture(params=WORLDS)
def opened(request: pytest.FixtureRequest, server: ConsulNode) -> Iterator[Open]:
    """Opens engines of a client's own, in either world."""
    engines: list[Driven] = []

    def open_one(url: str | None = None, **settings: float) -> Driven:
        world: World = request.param
        engines.append(Driven(family_at(url or server.url), world, **settings))
        return engines[-1]

    yield open_one
    for one in engines:
        one.close()
    eventually(lambda: not server.keys(), 3 * 2 * LEAST_TTL + 10)


def renewal(wanted: Want, grant: Grant, ttl: float | None = None) -> Renewal:
    return Renewal(wanted.name, wanted.holder, grant.token, ttl or wanted.ttl)


def test_an_uncontended_take_and_release_are_one_request_each(opened: Open, server: ConsulNode) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        engine = opened(server.url_at(proxy.host, proxy.port))
        first = want(fresh_name())
        engine.take(first)
        engine.release(first.name, first.holder)
        for patience in (None, 5.0):
            before, wanted = proxy.traffic.requests, want(fresh_name())
            assert isinstance(engine.take(wanted, patience=patience), Grant)
            assert proxy.traffic.requests - before == 1
            assert engine.release(wanted.name, wanted.holder)
            assert proxy.traffic.requests - before == 2
        engine.close()


def test_a_token_is_the_index_of_its_key_and_stays_when_other_indexes_move(opened: Open, server: ConsulNode) -> None:
    """Release deletes the key, which sets LockIndex back to one; a renewal, or another session, moves ModifyIndex."""
    engine, name, tokens = opened(), fresh_name(), []
    for _ in range(3):
        wanted = want(name, ttl=1.0)
        grant = engine.take(wanted)
        tokens.append(grant.token)
        [stored] = server.ask("GET", f"kv/{server.keys()[0].replace('%', '%25')}")
        assert (stored["CreateIndex"], stored["LockIndex"]) == (grant.token, 1)
        assert engine.renew([renewal(wanted, grant, 3.0)]) == [True]
        [moved] = server.ask("GET", f"kv/{server.keys()[0].replace('%', '%25')}")
        assert moved["CreateIndex"] == grant.token < moved["ModifyIndex"]
        assert engine.take(wanted).token == grant.token, "asked again, it is the same lease"
        assert engine.release(name, wanted.holder)
    assert tokens == sorted(set(tokens))


def test_attempts_of_one_client_exclude_each_other(opened: Open) -> None:
    """They share a session, and Consul lets a session lock what it has locked already."""
    engine, name = opened(), fresh_name()
    first, second = want(name), want(name)
    assert isinstance(engine.take(first), Grant)
    busy = engine.take(second)
    assert isinstance(busy, Busy)
    assert busy.incumbent is not None
    assert busy.incumbent.about == first.about
    assert not engine.release(name, second.holder)
    assert engine.release(name, first.holder)


def test_who_tries_once_leaves_nothing_behind(opened: Open, server: ConsulNode) -> None:
    engine, name = opened(), fresh_name()
    holder = want(name)
    engine.take(holder)
    for _ in range(5):
        assert isinstance(engine.take(want(name)), Busy)
    assert len(server.keys()) == 1
    assert len(server.sessions()) >= 1
    engine.release(name, holder.holder)


def test_a_waiter_is_told_even_when_the_key_is_in_use_again(opened: Open) -> None:
    """The path of the key before it is taken by a later attempt, which then stands behind it."""
    engine, name = opened(), fresh_name()
    first, waiter, later = want(name), want(name), want(name)
    engine.take(first)
    engine.take(waiter, patience=20.0)
    place = engine.place(first)
    engine.release(name, first.holder)
    engine.take(later, patience=20.0)
    assert engine.place(later).key == place.key, "else this proves nothing"
    assert engine.wait(waiter, 5.0) < 2.0
    assert isinstance(engine.take(waiter, patience=20.0), Grant)
    for one in (waiter, later):
        engine.release(name, one.holder)


def test_a_long_wait_hangs_on_a_short_session_and_the_lease_on_its_own(opened: Open, server: ConsulNode) -> None:
    engine, name = opened(), fresh_name()
    first, waiter = want(name, ttl=60.0), want(name, ttl=60.0)
    engine.take(first)
    engine.take(waiter, patience=20.0)
    home = engine.place(waiter).session
    engine.wait(waiter, 0.3)
    assert engine.place(waiter).session.ttl < home.ttl
    engine.release(name, first.holder)
    grant = engine.take(waiter, patience=20.0)
    assert isinstance(grant, Grant)
    assert engine.place(waiter).session is home
    assert grant.since is not None
    engine.release(name, waiter.holder)


def test_a_session_that_the_server_ended_is_told_at_the_next_renewal_and_made_anew(
    opened: Open, server: ConsulNode
) -> None:
    engine, name = opened(), fresh_name()
    lost = want(name)
    grant = engine.take(lost)
    server.destroy_sessions()
    assert engine.renew([renewal(lost, grant)]) == [False]
    assert not engine.release(name, lost.holder)
    again = want(name)
    second = engine.take(again)
    assert second.token > grant.token
    assert engine.release(name, again.holder)


def test_a_longer_ttl_is_got_though_the_server_ended_the_session_that_others_have_it_by(
    opened: Open, server: ConsulNode
) -> None:
    engine = opened()
    lease, longer = want(fresh_name(), ttl=10.0), want(fresh_name(), ttl=20.0)
    granted, lost = engine.take(lease), engine.take(longer)
    server.ask("PUT", f"session/destroy/{engine.place(longer).session.id}")
    assert engine.renew([renewal(lease, granted, 20.0), renewal(longer, lost)]) == [True, False]
    assert engine.place(lease).session.ttl == 20.0
    assert engine.release(lease.name, lease.holder)
    assert not engine.release(longer.name, longer.holder)


def test_a_lease_that_is_lost_gets_no_longer_ttl_on_a_session_that_was_ended_too(
    opened: Open, server: ConsulNode
) -> None:
    engine = opened()
    lease, longer = want(fresh_name(), ttl=10.0), want(fresh_name(), ttl=20.0)
    granted = engine.take(lease)
    engine.take(longer)
    server.destroy_sessions()
    assert engine.renew([renewal(lease, granted, 20.0)]) == [False]
    assert not engine.release(lease.name, lease.holder)
    engine.release(longer.name, longer.holder)


def test_a_waiter_whose_session_was_ended_queues_again(opened: Open, server: ConsulNode) -> None:
    engine, other, name = opened(), opened(), fresh_name()
    holder, waiter = want(name), want(name)
    engine.take(holder)
    assert isinstance(other.take(waiter, patience=20.0), Busy)
    ended = other.place(waiter).session
    server.ask("PUT", f"session/destroy/{ended.id}")
    assert isinstance(other.take(waiter, patience=20.0), Busy)
    assert other.place(waiter).session is not ended
    engine.release(name, holder.holder)
    other.wait(waiter, 3.0)
    assert isinstance(other.take(waiter, patience=20.0), Grant)
    other.release(name, waiter.holder)


def test_all_sessions_ended_at_once_are_found_and_made_anew(opened: Open, server: ConsulNode) -> None:
    engine, name = opened(), fresh_name()
    holding, waiting = want(name, delay=1.0), want(name)
    assert isinstance(engine.take(holding), Grant)
    assert isinstance(engine.take(waiting, patience=60.0), Busy)
    assert engine.place(holding).session is not engine.place(waiting).session, "a lock-delay has a session of its own"
    server.destroy_sessions()
    while isinstance(engine.take(holding, patience=60.0), Busy):  # which meets the one, then the other
        time.sleep(0.05)
    engine.release(name, holding.holder)
    engine.release(name, waiting.holder)


def test_the_holder_hears_of_the_end_of_its_session(server: ConsulNode) -> None:
    told: list[LeaseLost] = []
    locks = Leasehold(server.url)
    lease = locks.lock(fresh_name(), ttl=3.0, on_lost=told.append).acquire()
    server.destroy_sessions()
    since = time.monotonic()
    assert lease.wait_lost(5)
    assert time.monotonic() - since < 3.0, "at the next renewal, not only at the end of the TTL"
    eventually(lambda: len(told) == 1, 2)
    assert "no longer knows" in str(told[0])
    locks.close()


def test_a_lock_delay_begins_when_the_lease_is_lost_and_leaves_nothing_behind(opened: Open, server: ConsulNode) -> None:
    engine, name = opened(), fresh_name()
    lost, next_one = want(name, ttl=1.0, delay=1.0), want(name)
    grant = engine.take(lost)
    assert isinstance(grant, Grant)
    server.ask("PUT", f"session/destroy/{engine.place(lost).session.id}")
    since = time.monotonic()
    busy = engine.take(next_one, patience=20.0)
    assert isinstance(busy, Busy)
    assert busy.ask_again < 1.0, "nobody is told of the end of a lock-delay"
    status = engine.status(name)
    assert (status.token, status.holders, status.closed_for) == (grant.token, (), 1.0)
    while isinstance(answer := engine.take(next_one, patience=20.0), Busy):
        time.sleep(0.05)
    assert 0.9 <= time.monotonic() - since < 5.0
    assert answer.token > grant.token
    assert len(server.keys()) == 1
    engine.release(name, next_one.holder)


def test_who_comes_after_the_loss_of_a_shared_lease_is_shown_to_wait_and_who_was_there_to_hold(
    opened: Open, server: ConsulNode
) -> None:
    """What remains of the lost one stands before both, with a lock-delay: it closes the name to newcomers only."""
    engine, name = opened(), fresh_name()
    first, lost, second, newcomer = (want(name, mode="shared", delay=delay) for delay in (0.0, 1.0, 0.0, 0.0))
    for one in (first, lost, second):
        assert isinstance(engine.take(one), Grant)
    server.ask("PUT", f"session/destroy/{engine.place(lost).session.id}")
    assert isinstance(engine.take(newcomer, patience=20.0), Busy)
    for holders in ([first, second], [second]):
        status = engine.status(name)
        assert [one.about for one in status.holders] == [one.about for one in holders]
        assert [one.about for one in status.waiters] == [newcomer.about]
        assert status.closed_for == 1.0
        assert engine.release(name, holders[0].holder)
    while isinstance(engine.take(newcomer, patience=20.0), Busy):
        time.sleep(0.05)
    engine.release(name, newcomer.holder)


def test_a_lock_delay_that_consul_does_not_offer_is_refused_before_anything_is_sent(opened: Open) -> None:
    with pytest.raises(Misuse, match="60 s at most"):
        opened("consul://127.0.0.1:1").take(want(fresh_name(), delay=LONGEST_DELAY + 1))


def test_a_release_by_force_ends_every_lease_and_every_place(opened: Open, server: ConsulNode) -> None:
    engine, name = opened(), fresh_name()
    readers = [want(name, mode="shared") for _ in range(3)]
    grants = [engine.take(one) for one in readers]
    writer = want(name)
    engine.take(writer, patience=20.0)
    token = engine.force_release(name)
    assert token > max(grant.token for grant in grants)
    assert server.keys() == []
    assert engine.renew([renewal(one, grant) for one, grant in zip(readers, grants, strict=True)]) == [False] * 3
    granted = engine.take(writer, patience=20.0)
    assert granted.token > token
    engine.release(name, writer.holder)


def test_a_release_by_force_ends_more_than_fits_in_a_transaction(opened: Open, server: ConsulNode) -> None:
    engine, name = opened(), fresh_name()
    wants = [want(name) for _ in range(MOST_OPERATIONS + 6)]
    answers = [engine.take(one, patience=20.0) for one in wants]
    assert [isinstance(one, Grant) for one in answers] == [True] + [False] * (len(wants) - 1)
    assert engine.force_release(name) > max(engine.place(one).token or 0 for one in wants)
    assert server.keys() == []
    for one in wants:
        engine.release(name, one.holder)


def when_it_has_looked(engine: Driven, happens: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Let something happen once, between what an engine has read and what it does next."""
    wire = engine.engine._wire
    looked, still_to_come = wire.entries, [happens]

    async def entries(start: bytes, until: float) -> object:
        found = await looked(start, until)
        while still_to_come:
            still_to_come.pop()()
        return found

    patch.setattr(wire, "entries", entries)


def test_a_release_by_force_closes_a_name_that_was_passed_on_while_the_operator_looked(
    opened: Open, server: ConsulNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the operator saw was a waiter, whose key may go. By now it is a lease, which must be followed by a delay."""
    operator, name = opened(), fresh_name()
    first, second, third = want(name), want(name, delay=1.0), want(name)
    with closing(Driven(family_at(server.url))) as clients:
        clients.take(first)
        assert isinstance(clients.take(second, patience=20.0), Busy)

        def passed_on() -> None:
            clients.release(name, first.holder)
            assert isinstance(clients.take(second, patience=20.0), Grant)

        when_it_has_looked(operator, passed_on, monkeypatch)
        since = time.monotonic()
        token = operator.force_release(name)
        while isinstance(answer := clients.take(third, patience=20.0), Busy):
            time.sleep(0.05)
        assert time.monotonic() - since >= 0.9
        assert answer.token > token
        clients.release(name, third.holder)


def test_a_permit_that_is_lost_while_another_ones_remains_are_cleared_away_closes_the_name_too(
    opened: Open, server: ConsulNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, name = opened(), fresh_name()
    first, second, third = (want(name, mode="permit", limit=3, delay=delay) for delay in (1.0, 0.3, 0.0))
    sessions = []
    for one in (first, second):
        assert isinstance(engine.take(one), Grant)
        sessions.append(engine.place(one).session.id)
    server.ask("PUT", f"session/destroy/{sessions[1]}")
    assert isinstance(engine.take(third, patience=20.0), Busy)
    time.sleep(0.4)
    when_it_has_looked(engine, lambda: server.ask("PUT", f"session/destroy/{sessions[0]}"), monkeypatch)
    since = time.monotonic()
    while isinstance(engine.take(third, patience=20.0), Busy):
        time.sleep(0.05)
    assert time.monotonic() - since >= 0.9
    engine.release(name, third.holder)


def test_ownership_is_a_condition_that_only_the_holder_meets(server: ConsulNode, tmp_path: Path) -> None:
    """Also when the same client takes the name again, with the same key on the same session."""

    def write(owned: Ownership) -> None:
        condition = {"KV": {"Verb": "check-index", "Key": owned.key, "Index": owned.modify_index}}
        server.ask("PUT", "txn", [condition, {"KV": {"Verb": "set", "Key": "theirs", "Value": ""}}])

    with Leasehold(server.url) as locks, Leasehold(tmp_path / "leases.db") as elsewhere:
        lock = locks.lock(fresh_name(), ttl=5, wait=5)
        with lock as first:
            write(owned := ownership(first))
            first.extend(5)
            write(owned)
            first.extend(9)
            with pytest.raises(OSError, match="409"):
                write(owned)
            write(owned := ownership(first))
        with lock as second:
            assert ownership(second).key == owned.key, "else this proves nothing"
            with pytest.raises(OSError, match="409"):
                write(owned)
            write(ownership(second))
        with elsewhere.lock("a") as stranger, pytest.raises(Misuse, match="for leases on Consul"):
            ownership(stranger)


def test_renewals_of_one_session_are_one_request_and_reading_the_keys(opened: Open, server: ConsulNode) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        engine = opened(server.url_at(proxy.host, proxy.port))
        wants = [want(fresh_name()) for _ in range(100)]
        leases = [renewal(one, engine.take(one)) for one in wants]
        server.ask("DELETE", f"kv/{engine.place(wants[70]).key.decode().replace('%', '%25')}")
        before = proxy.traffic.requests
        assert engine.renew(leases) == [number != 70 for number in range(100)]
        assert proxy.traffic.requests - before <= 4, "one renewal, and 100 keys in steps of 64, one of which is missing"
        for one in wants:
            engine.release(one.name, one.holder)
        engine.close()


def test_a_late_request_does_not_come_back_to_life(opened: Open, server: ConsulNode) -> None:
    """A take without an answer is given back; then its request arrives after all, and must not close the name."""
    with Proxy("127.0.0.1", server.port) as proxy:
        engine = opened(server.url_at(proxy.host, proxy.port), seconds=0.5)
        warm, lost = want(fresh_name()), want(fresh_name())
        engine.take(warm)
        engine.release(warm.name, warm.holder)
        proxy.cut("replies")
        with pytest.raises(OutcomeUnknown):
            engine.take(lost)
        place = engine.place(lost)
        proxy.heal()
        engine.release(lost.name, lost.holder)
        with pytest.raises(OSError, match="409"):
            body = [{"KV": {"Verb": "lock", "Key": place.key.decode(), "Session": place.session.id, "Value": ""}}]
            server.ask("PUT", "txn", body)
        assert server.keys() == [], "the session of the doubtful request was ended"
        engine.close()


def test_a_family_closes_what_it_opened(opened: Open, server: ConsulNode) -> None:
    before = {one["ID"] for one in server.sessions()}
    engine = opened()
    wanted = want(fresh_name())
    engine.take(wanted)
    assert {one["ID"] for one in server.sessions()} > before
    engine.release(wanted.name, wanted.holder)
    engine.close()
    assert {one["ID"] for one in server.sessions()} <= before


def test_sessions_end_by_their_ttl_alone(opened: Open, server: ConsulNode) -> None:
    """No health check can end one early, while its holder still believes."""
    engine = opened()
    wanted = want(fresh_name(), ttl=7.0)
    engine.take(wanted)
    [session] = [one for one in server.sessions() if one["ID"] == engine.place(wanted).session.id]
    assert (session["NodeChecks"], session["TTL"], session["LockDelay"]) == ([], "7000ms", 0)
    engine.release(wanted.name, wanted.holder)


def test_more_names_can_be_awaited_than_connections_wait(server: ConsulNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.wires.consul.MOST_WATCHES", 2)
    locks, others = Leasehold(server.url), Leasehold(server.url)
    held = [others.lock(fresh_name(), ttl=20).acquire() for _ in range(5)]
    got: list[str] = []

    def wait_for(name: str) -> None:
        with locks.lock(name, ttl=20, wait=20) as lease:
            got.append(lease.name)

    threads = [threading.Thread(target=wait_for, args=(lease.name,)) for lease in held]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    for lease in held:
        lease.release()
    for thread in threads:
        thread.join(15)
    assert sorted(got) == sorted(lease.name for lease in held)
    locks.close()
    others.close()


def test_an_answer_of_another_server_is_an_error_and_no_grant(server: ConsulNode) -> None:
    """A web server that is no Consul."""
    import http.server

    class Other(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        engine = Driven(family_at(f"consul://127.0.0.1:{web.server_port}"))
        with pytest.raises(EngineError, match="makes no sense"):
            engine.take(want(fresh_name()))
        engine.close()
        web.shutdown()
        thread.join()
