"""What can go wrong around one etcd server: holders that die, a server that stops, answers that get lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.driving import eventually, fresh_name, want
from tests.engines.etcd_help import Driven, family_at
from tests.support.etcd_server import EtcdNode, running_etcd

from leasehold import EngineError, EngineUnavailable, Leasehold, LeaseLost
from leasehold.core.engine import Busy, Grant
from leasehold.testing.ports import free_port
from leasehold.testing.processes import freeze


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as node:
        yield node


@pytest.fixture
def client(server: EtcdNode) -> Iterator[Leasehold]:
    one = Leasehold(server.url)
    yield one
    one.close()


HOLDER = """
import sys, time
from leasehold import Leasehold
lease = Leasehold(sys.argv[1]).lock(sys.argv[2], ttl=float(sys.argv[3])).acquire()
print(lease.token, flush=True)
time.sleep(600)
"""


def hold_in_another_process(url: str, name: str, ttl: float) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, url, name, str(ttl)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("ttl", [2.0, 3.0])
def test_a_killed_holder_is_followed_within_its_ttl_and_three_seconds(
    server: EtcdNode, client: Leasehold, ttl: float
) -> None:
    name = fresh_name()
    process, token = hold_in_another_process(server.url, name, ttl)
    waiting = client.lock(name, ttl=ttl, wait=30)
    threading.Timer(0.5, process.kill).start()
    since = time.monotonic()
    with waiting as lease:
        took = time.monotonic() - since - 0.5
        assert lease.token > token
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert took <= ttl + 3


def test_a_stopped_holder_is_followed_and_wakes_up_knowing_that_it_lost(server: EtcdNode, client: Leasehold) -> None:
    name = fresh_name()
    script = HOLDER.replace("time.sleep(600)", "print(sys.stdin.readline(), lease.lost, flush=True)")
    process = subprocess.Popen(
        [sys.executable, "-c", script, server.url, name, "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    token = int(process.stdout.readline())
    freeze(process.pid)
    with client.lock(name, ttl=2, wait=30) as lease:
        assert lease.token > token
    process.send_signal(signal.SIGCONT)
    answer = process.communicate("go\n", timeout=20)[0]
    assert answer.split() == ["go", "True"]


# The session


def test_a_waiter_notices_that_its_own_session_ended(server: EtcdNode) -> None:
    """It waits for somebody who stays; still it must not wait in a queue in which it does not stand any more."""
    holder, waiter = Driven(family_at(server.url)), Driven(family_at(server.url))
    name = fresh_name()
    holder.take(held := want(name, ttl=60))
    waiter.take(waiting := want(name, ttl=60), patience=60.0)
    place = waiter.place(waiting)
    threading.Timer(0.5, lambda: server.revoke(place.session.id)).start()
    assert 0.4 < waiter.wait(waiting, 20.0) < 5, "its own key is watched"
    assert isinstance(waiter.take(waiting, patience=60.0), Busy)
    new = waiter.place(waiting)
    assert new.session is not place.session
    assert new.token is not None
    assert place.token is None or new.token > place.token
    holder.release(name, held.holder)
    assert isinstance(waiter.take(waiting, patience=60.0), Grant)
    for one in (holder, waiter):
        one.close()


def test_being_woken_proves_nothing(server: EtcdNode) -> None:
    """The predecessor leaves and the waiter's own session ends: it must not take itself for the holder."""
    holder, waiter, third = (Driven(family_at(server.url)) for _ in range(3))
    name = fresh_name()
    holder.take(held := want(name, ttl=60))
    waiter.take(waiting := want(name, ttl=60), patience=60.0)
    third.take(last := want(name, ttl=60), patience=60.0)
    place = waiter.place(waiting)
    token = place.token
    server.revoke(place.session.id)
    holder.release(name, held.holder)
    grant = third.take(last, patience=60.0)
    assert isinstance(grant, Grant)
    assert isinstance(waiter.take(waiting, patience=60.0), Busy)
    third.release(name, last.holder)
    late = waiter.take(waiting, patience=60.0)
    assert isinstance(late, Grant)
    assert token is not None
    assert token < grant.token < late.token, "a new place in the queue has a new token"
    for one in (holder, waiter, third):
        one.close()


def test_a_holder_whose_session_was_revoked_is_told(server: EtcdNode, client: Leasehold) -> None:
    leases = [client.lock(fresh_name(), ttl=ttl).acquire() for ttl in (3, 3, 60)]
    before = client._family.sessions  # type: ignore[attr-defined]
    server.revoke(before.known(leases[0]._held.want.holder).session.id)
    for lease in leases[:2]:
        assert lease.wait_lost(10), "all leases of a session are lost together"
        with pytest.raises(LeaseLost):
            lease.release()
    leases[2].check()
    with client.lock(fresh_name(), ttl=3) as lease:
        lease.check()
    leases[2].release()


def test_a_waiter_is_not_fooled_by_a_key_that_comes_back(server: EtcdNode) -> None:
    """A client uses its keys again: the one that was waited for may exist again, behind the waiter."""
    first, second = Driven(family_at(server.url)), Driven(family_at(server.url))
    name = fresh_name()
    first.take(held := want(name))
    second.take(waiting := want(name), patience=60.0)
    key = first.place(held).key
    first.release(name, held.holder)
    first.take(again := want(name), patience=60.0)
    assert first.place(again).key == key
    assert second.wait(waiting, 20.0) < 5, "the watch began too late, which a look makes good"
    assert isinstance(second.take(waiting, patience=60.0), Grant)
    assert isinstance(first.take(again, patience=60.0), Busy)
    for one in (first, second):
        one.close()


def test_a_deletion_between_the_answer_and_the_watch_is_not_missed(server: EtcdNode) -> None:
    """Also when the one before was a waiter itself, and other keys of the cluster change all the time."""
    engines = [Driven(family_at(server.url)) for _ in range(3)]
    name = fresh_name()
    wanted = [want(name) for _ in range(3)]
    for engine, one in zip(engines, wanted, strict=True):
        engine.take(one, patience=60.0)
    for engine, one in zip(engines[:2], wanted[:2], strict=True):
        engine.release(name, one.holder)
    assert engines[2].wait(wanted[2], 20.0) < 5
    assert isinstance(engines[2].take(wanted[2], patience=60.0), Grant)
    for engine in engines:
        engine.close()


def test_compaction_disturbs_nobody(server: EtcdNode) -> None:
    holder, waiter = Driven(family_at(server.url)), Driven(family_at(server.url))
    name = fresh_name()
    holder.take(held := want(name))
    waiter.take(waiting := want(name), patience=60.0)

    def make_noise_and_compact() -> None:
        for _ in range(3):
            holder.take(noise := want(fresh_name()))
            holder.release(noise.name, noise.holder)
        server.compact()

    def release() -> None:
        make_noise_and_compact()
        holder.release(name, held.holder)

    make_noise_and_compact()
    timer = threading.Timer(0.5, release)
    timer.start()
    assert waiter.wait(waiting, 20.0) < 5
    timer.join()
    assert isinstance(waiter.take(waiting, patience=60.0), Grant)
    for one in (holder, waiter):
        one.close()


# The server itself


def test_an_address_where_nobody_listens() -> None:
    port = free_port()
    with Leasehold(f"etcd://user:can4ry@127.0.0.1:{port}") as client:
        since = time.monotonic()
        with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}.*refused") as caught:
            client.lock("a", ttl=5, wait=0).acquire()
        assert time.monotonic() - since < 1
        assert "can4ry" not in str(caught.value)
        with pytest.raises(EngineUnavailable):
            client.lock("a", ttl=5, wait=0.5).acquire()
        assert 0.4 < time.monotonic() - since < 2


def test_a_host_that_does_not_exist() -> None:
    with Leasehold("etcds://no-such-host.invalid") as client, pytest.raises(EngineUnavailable, match="no-such-host"):
        client.lock("a", ttl=5, wait=0).acquire()


def test_a_paused_server_delays_and_breaks_nothing(server: EtcdNode, client: Leasehold) -> None:
    name = fresh_name()
    lease = client.lock(name, ttl=6).acquire()
    server.pause()
    try:
        since = time.monotonic()
        with pytest.raises(EngineError):
            Leasehold(server.url, request_timeout=0.5).lock(name, ttl=6, wait=0).acquire()
        with pytest.raises(EngineError):
            client.lock(fresh_name(), ttl=6, wait=0.5).acquire()
        assert time.monotonic() - since < 3
        lease.check()
    finally:
        server.resume()
    with client.lock(fresh_name(), ttl=6, wait=10) as other:
        other.check()
    lease.check()
    lease.release()


def test_a_server_that_is_paused_past_the_ttl_costs_the_lease_and_nothing_else(
    server: EtcdNode, client: Leasehold
) -> None:
    name = fresh_name()
    lease = client.lock(name, ttl=2).acquire()
    server.pause()
    try:
        assert lease.wait_lost(10), "its own clock tells the holder"
    finally:
        server.resume()
    with client.lock(name, ttl=2, wait=10) as next_lease:
        assert next_lease.token > lease.token


def test_a_restart_keeps_leases_and_tokens(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as own, Leasehold(own.url) as client:
        lease = client.lock("held", ttl=20).acquire()
        tokens = [lease.token]
        waiting: list[int] = []
        thread = threading.Thread(target=lambda: waiting.append(_token_of(client, "held")))
        thread.start()
        eventually(lambda: len(own.keys()) == 2, 10)
        own.restart()
        with client.lock("other", ttl=20, wait=10) as other:
            tokens.append(other.token)
        lease.check()
        lease.release()
        thread.join(20)
        assert waiting, "who waited before the restart was served after it"
        with client.lock("held", ttl=20, wait=10) as again:
            tokens.append(again.token)
        assert tokens == sorted(set(tokens))
        assert tokens[0] < waiting[0] < tokens[2]


def _token_of(client: Leasehold, name: str) -> int:
    with client.lock(name, ttl=20, wait=20) as lease:
        return lease.token
