"""What the contract suite needs to know of an engine, and what each of its scenarios gets to work with."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec

import pytest

from leasehold import AsyncLeasehold, Capability, Facts, Leasehold
from leasehold.testing.facade import as_async
from leasehold.testing.processes import WorkerProcess
from leasehold.testing.proxy import Proxy
from leasehold.testing.worker import Resource
from leasehold.worlds import boot_clock

World = Literal["blocking", "asyncio"]
BOTH: tuple[World, ...] = ("blocking", "asyncio")
Need = Capability | Literal["pause", "restart", "wipe", "proxy"]
SCENARIO_WITHIN = 60.0
SHORT_TTL = 0.3
BRIEF = 0.1
"""A wait that is over soon, and not before an engine on a busy machine has answered."""
MOST_PATIENCE = 3.0


@dataclass(frozen=True, kw_only=True)
class EngineUnderTest:
    """One real engine. Only `url` is needed; scenarios that need what is not given are skipped, and say so.

    What the engine can do is not repeated here: the suite reads it from the capabilities that the engine declares.
    """

    url: str
    """What users would give to `Leasehold`. Every scenario uses a namespace of its own there."""
    pause: Callable[[], object] | None = None
    """Stops the engine so that it answers nobody, without closing a connection (SIGSTOP, for a server)."""
    resume: Callable[[], object] | None = None
    """Undoes `pause`."""
    restart: Callable[[], object] | None = None
    """Ends the engine and starts it again on the same address, with what it keeps over a restart."""
    wipe: Callable[[], object] | None = None
    """Makes the engine forget everything, as when it comes back without its data."""
    address: tuple[str, int] | None = None
    """Where its server listens, if a proxy can be put before it."""
    url_at: Callable[[str, int], str] | None = None
    """The engine's URL when it is reached at another host and port: a proxy's."""
    interruptions: int | None = None
    """At how many points each kind of use is interrupted, evenly spread; None: at every one."""
    turn: float = 2.0
    """For how long a waiter that died or hangs may hold up those behind it, in seconds, when its TTL is ten."""
    slack: float = 0.5
    """How much later than promised things may happen because of the machine that runs the tests, in seconds.

    On a machine with more to do than it has processors, this and the TTLs of the scenarios grow with its load.
    """


class Stage:
    """One scenario's own clients, names, workers and proxies on the engine; cleared away when it ends."""

    def __init__(self, engine: EngineUnderTest, world: World, folder: Path) -> None:
        """Touch nothing yet."""
        self.engine, self.world, self._folder = engine, world, folder
        self.namespace = f"contract-{uuid.uuid4().hex[:12]}"
        self._patience = _patience()
        self.slack = engine.slack * self._patience
        self.brief = BRIEF * self._patience
        self._names = itertools.count(1)
        self._clients: list[AsyncLeasehold] = []
        self._workers: list[WorkerProcess] = []
        self._proxies: list[Proxy] = []
        self._paused = False
        self._resource: Resource | None = None

    @functools.cached_property
    def ttl(self) -> float:
        """A TTL that is as short as the engine and a busy machine allow."""
        return self.longer_ttl(1)

    def longer_ttl(self, times: float) -> float:
        """One that is so many times longer on an engine that allows very short ones; elsewhere, as long as need be."""
        return max(SHORT_TTL * self._patience * times, self.facts.least_ttl)

    @functools.cached_property
    def facts(self) -> Facts:
        """What the engine declares."""
        client: Leasehold = self.open(Leasehold)
        client.close()
        return client.facts

    def name(self) -> str:
        """A name that nobody has used."""
        return f"name-{next(self._names)}"

    def open(self, kind: type[Any], *, through: Proxy | None = None, **settings: Any) -> Any:
        """Open a client of the given class; the caller closes it."""
        url = self.engine.url
        if through is not None and self.engine.url_at is not None:
            url = self.engine.url_at(through.host, through.port)
        return kind(url, **{"namespace": self.namespace, **settings})

    def client(self, **settings: Any) -> AsyncLeasehold:
        """A client of this stage's world, in the shape of the asyncio world; `through` a proxy if one is given."""
        client = as_async(self.open(Leasehold if self.world == "blocking" else AsyncLeasehold, **settings))
        self._clients.append(client)
        return client

    async def worker(self) -> WorkerProcess:
        """A worker process of this stage's world."""
        worker = await WorkerProcess.start(
            url=self.engine.url, namespace=self.namespace, world=self.world, resource=str(self._resource_path)
        )
        self._workers.append(worker)
        return worker

    async def workers(self, number: int) -> list[WorkerProcess]:
        """Several worker processes, started together."""
        return await asyncio.gather(*(self.worker() for _ in range(number)))

    @property
    def _resource_path(self) -> Path:
        return self._folder / "resource.db"

    @functools.cached_property
    def resource(self) -> Resource:
        """What the workers write to."""
        resource = Resource(str(self._resource_path))
        resource.create()
        return resource

    def proxy(self) -> Proxy:
        """A proxy before the engine's server."""
        if self.engine.address is None:
            raise RuntimeError("this scenario must declare that it needs a proxy")
        proxy = Proxy(*self.engine.address)
        proxy.start()
        self._proxies.append(proxy)
        return proxy

    async def pause(self) -> None:
        """Stop the engine."""
        if self.engine.pause is not None:
            self._paused = True
            await asyncio.to_thread(self.engine.pause)

    async def resume(self) -> None:
        """Let the engine go on."""
        if self.engine.resume is not None and self._paused:
            self._paused = False
            await asyncio.to_thread(self.engine.resume)

    async def restart(self) -> None:
        """Restart the engine."""
        if self.engine.restart is not None:
            await asyncio.to_thread(self.engine.restart)

    async def wipe(self) -> None:
        """Let the engine forget everything."""
        if self.engine.wipe is not None:
            await asyncio.to_thread(self.engine.wipe)

    async def connected(self) -> AsyncLeasehold:
        """A client that has used the engine: to connect may take longer than a brief wait."""
        client = self.client()
        await (await client.lock(self.name(), ttl=self.ttl).acquire()).release()
        return client

    async def free_within(self, name: str, seconds: float) -> float:
        """Assert that somebody else can take the name within so long (and the slack); returns how long it took."""
        since = boot_clock()
        lease = await self.client(label="free-within").lock(name, ttl=self.ttl, wait=seconds + self.slack).acquire()
        took = boot_clock() - since
        await lease.release()
        return took

    def require(self, needs: Iterable[Need]) -> None:
        """Skip the scenario unless the engine has all that it needs."""
        engine = self.engine
        given = {"pause": engine.pause, "restart": engine.restart, "wipe": engine.wipe, "proxy": engine.address}
        for need in needs:
            if isinstance(need, Capability):
                if need not in self.facts.capabilities:
                    pytest.skip(f"the engine does not declare {need.name}: {need.value}")
            elif given[need] is None:
                pytest.skip(f"EngineUnderTest has no {'address' if need == 'proxy' else need}")

    async def clear(self) -> None:
        """Leave nothing behind."""
        await self.resume()
        for proxy in self._proxies:
            await asyncio.to_thread(proxy.stop)
        for worker in self._workers:
            await worker.kill()
        for client in self._clients:
            await client.close()


def _patience() -> float:
    """How many times longer than on an idle machine things may take now."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(max(load / (os.cpu_count() or 1), 1.0), MOST_PATIENCE)


Parameters = ParamSpec("Parameters")
Scenario = Callable[Concatenate[Stage, Parameters], Awaitable[None]]


DISTURBING = frozenset({"pause", "restart", "wipe"})


def scenario(
    *needs: Need, worlds: tuple[World, ...] = BOTH, alone: bool = False
) -> Callable[[Scenario[Parameters]], Any]:
    """Make a test of an async scenario: once in each world, where the engine has what the scenario needs.

    The test says whether it `plays_alone`: it disturbs the engine, or (`alone`) it looks at the whole process, changes
    it or keeps it busy.
    """

    def decorate(play: Scenario[Parameters]) -> Any:
        @functools.wraps(play)
        def test(stage: Stage, *arguments: Parameters.args, **more: Parameters.kwargs) -> None:
            stage.require(needs)
            asyncio.run(perform(functools.partial(play, stage, *arguments, **more), stage))

        test.plays_alone = alone or not DISTURBING.isdisjoint(needs)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("world", worlds)(test)

    return decorate


async def perform(play: Callable[[], Awaitable[None]], stage: Stage) -> None:
    """Run a scenario to its end, and clear the stage whatever happens."""
    try:
        async with asyncio.timeout(SCENARIO_WITHIN):
            await play()
    finally:
        await stage.clear()


@pytest.fixture(name="stage")
def make_stage(engine_under_test: EngineUnderTest, world: World) -> Any:
    """Set the stage for one scenario."""
    with tempfile.TemporaryDirectory() as folder:
        yield Stage(engine_under_test, world, Path(folder))
