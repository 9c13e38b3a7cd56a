"""What can go wrong around one etcd server: holders that die, a server that stops, answers that get lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.etcd_help import WORLDS, Driven, World, counted, eventually, family_at, fresh_name, want
from tests.support.etcd_server import EtcdNode, encoded, free_port, running_etcd

from leasehold import AsyncLeasehold, EngineError, EngineUnavailable, Leasehold, LeaseLost, OutcomeUnknown
from leasehold.core.engine import Busy, Grant, Renewal
from leasehold.testing.processes import freeze
from leasehold.testing.proxy import Proxy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as node:
        yield node


@pytest.fixture
def client(server: EtcdNode) -> Iterator[Leasehold]:
    one = Leasehold(server.url)
    yield one
    one.close()


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
        assert len(_keys_of(server, wanted.name)) == 1
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
    assert _keys_of(server, ghost.name) == []
    after = want(ghost.name, ttl=30)
    assert isinstance(engine.take(after), Grant)
    assert engine.place(after).key.decode() != key, "a key about which there is doubt is never used again"
    assert engine.place(after).session is not session, "and its session ends with the leases that it has"
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
    waits = 0
    give_up_at = time.monotonic() + 1.5
    while time.monotonic() < give_up_at:
        threading.Timer(0.02, hub.close).start()
        waiter.wait(waiting, 20.0)
        waits += 1
    assert 2 <= waits <= 15
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


# Processes and loops


def test_a_forked_child_has_sessions_and_connections_of_its_own(server: EtcdNode, client: Leasehold) -> None:
    """While other threads of the parent ask and wait, and its keeper renews."""
    mine = client.lock(fresh_name(), ttl=2).acquire()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with client.lock("shared-by-threads", ttl=30, wait=30):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        codes = [_in_child(lambda: _child_works(client, mine.name)) for _ in range(2)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert codes == [0, 0]
    mine.check()
    mine.release()


def _child_works(client: Leasehold, held_by_parent: str) -> bool:
    if client.lock(held_by_parent, ttl=2).try_acquire() is not None:
        return False
    with client.lock("of a child", ttl=2, wait=10) as lease:
        time.sleep(2.1)
        lease.check()

    async def in_a_loop() -> bool:
        async with AsyncLeasehold(client.facts.address) as other, other.lock("of its loop", ttl=2, wait=10) as one:
            return not one.lost

    return asyncio.run(in_a_loop())


def _in_child(works: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            code = 0 if works() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


FORK_WITHOUT_SUPPORT = """
import os, sys
import grpc
from leasehold import Leasehold, Misuse
client = Leasehold(sys.argv[1])
client.lock("a", ttl=5, wait=5).acquire().release()
child = os.fork()
if child == 0:
    try:
        client.lock("a", ttl=5, wait=0).acquire()
    except Misuse as error:
        os._exit(7 if "GRPC_ENABLE_FORK_SUPPORT=1" in str(error) else 8)
    os._exit(9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_where_a_forked_child_would_hang_it_is_told_what_to_do(server: EtcdNode) -> None:
    """The program loaded gRPC itself, and did not ask it to survive forks."""
    program = [sys.executable, "-c", FORK_WITHOUT_SUPPORT, server.url]
    assert subprocess.run(program, check=False, timeout=30).returncode == 7


def test_two_event_loops_share_a_server(server: EtcdNode) -> None:
    """The caller's and the keeper's are two; here are four, in two threads."""

    async def work(name: str) -> list[int]:
        tokens = []
        async with AsyncLeasehold(server.url) as client:
            for _ in range(5):
                async with client.lock(name, ttl=2, wait=20) as lease:
                    await asyncio.sleep(0.02)
                    tokens.append(lease.token)
        return tokens

    answers: list[list[int]] = []
    name = fresh_name()
    threads = [threading.Thread(target=lambda: answers.append(asyncio.run(work(name)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(len(one) for one in answers) == [5, 5]
    assert len({token for one in answers for token in one}) == 10


def test_cancelling_a_wait_leaves_the_queue_at_once(server: EtcdNode, client: Leasehold) -> None:
    name = fresh_name()
    lease = client.lock(name, ttl=30).acquire()

    async def cancelled() -> None:
        async with AsyncLeasehold(server.url) as other:
            task = asyncio.create_task(other.lock(name, ttl=30, wait=30).acquire())
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: len(_keys_of(server, name)) == 1, 5)

    asyncio.run(cancelled())
    lease.release()
    assert _keys_of(server, name) == []


def _keys_of(server: EtcdNode, name: str) -> list[str]:
    return [key for key in server.keys() if f"/{name}/" in key]  # noqa: SIM118
