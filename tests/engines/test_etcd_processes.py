"""etcd from forked processes, several event loops and cancelled tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.engines.driving import eventually, fresh_name
from tests.engines.etcd_help import keys_of
from tests.support.etcd_server import EtcdNode, running_etcd

from leasehold import AsyncLeasehold, Leasehold


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as node:
        yield node


@pytest.fixture
def client(server: EtcdNode) -> Iterator[Leasehold]:
    one = Leasehold(server.url)
    yield one
    one.close()


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
            await asyncio.to_thread(eventually, lambda: len(keys_of(server, name)) == 1, 5)

    asyncio.run(cancelled())
    lease.release()
    assert keys_of(server, name) == []
