"""How those wait for a name on Consul who leave it to another to ask for news."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.engines.consul_help import Driven, family_at
from tests.engines.driving import WORLDS, fresh_name, want
from tests.support.consul_server import ConsulNode, running_consul

from leasehold.core.engine import Busy, Want
from leasehold.core.worlds import run_blocking
from leasehold.worlds import AsyncWorld


@pytest.fixture(scope="module")
def server() -> Iterator[ConsulNode]:
    with running_consul() as server:
        yield server


@pytest.fixture(params=WORLDS)
def driven(server: ConsulNode, request: pytest.FixtureRequest) -> Iterator[Driven]:
    one = Driven(family_at(server.url), request.param)
    yield one
    one.close()


def wait_together(driven: Driven, wanted: list[Want], seconds: float) -> None:
    """All of them at the same time, in the world of the engine."""
    engine, until = driven.engine, driven.engine.world.now() + seconds

    async def all_wait() -> None:
        await asyncio.gather(*(engine.wait(one, until) for one in wanted))

    if isinstance(engine.world, AsyncWorld):
        driven.run(all_wait())
        return
    threads = [threading.Thread(target=lambda one=one: run_blocking(engine.wait(one, until))) for one in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("leader", "follower"), [(1.0, 1.0), (2.0, 1.0), (5.0, 0.75)])
def test_every_session_that_somebody_waits_on_is_renewed(
    driven: Driven, server: ConsulNode, leader: float, follower: float
) -> None:
    """Also one that the waiter who asks for news does not hang on."""
    other = Driven(family_at(server.url))
    other.take(holder := want(fresh_name(), ttl=60.0))
    waiting = [want(holder.name, ttl=leader), want(holder.name, ttl=follower)]
    for one in waiting:
        assert isinstance(driven.take(one, patience=60.0), Busy)
    sessions = {driven.place(one).session for one in waiting}
    assert len(sessions) == (1 if leader == follower else 2)
    wait_together(driven, waiting, 6.0)
    assert not [one for one in sessions if one.dead]
    assert {one.id for one in sessions} <= {one["ID"] for one in server.sessions()}
    for one in waiting:
        driven.release(one.name, one.holder)
    other.release(holder.name, holder.holder)
    other.close()
