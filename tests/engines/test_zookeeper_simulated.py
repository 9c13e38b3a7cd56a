"""The simulator's model of ZooKeeper beside a real one: both get the same requests, and have to answer the same."""

from __future__ import annotations

import contextlib
import itertools
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.zookeeper_server import ZooKeeperServer, running_zookeeper

from leasehold.sim.zookeeper_model import Connection, ZooKeeper
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_address import address_from_url
from leasehold.wires.zookeeper_messages import EPHEMERAL, OPEN, SEQUENTIAL, Reply, Request, Stat

CONNECTIONS = st.integers(0, 1)
NAMES = st.sampled_from(["a", "b", "c"])
VERSIONS = st.sampled_from([-1, 0, 1])
FLAGS = st.sampled_from([0, EPHEMERAL, EPHEMERAL | SEQUENTIAL, EPHEMERAL | SEQUENTIAL])
TIMEOUT = 30.0
TICK = 2.0
_runs = itertools.count(1)


class Peer(ABC):
    """One connection: to the real server, or to the model."""

    def __init__(self) -> None:
        self.received, self.numbers = bytearray(), itertools.count(1)
        self.events: list[tuple[int, str]] = []
        self.is_open = True

    @abstractmethod
    def send(self, data: bytes) -> None: ...

    @abstractmethod
    def more(self) -> None: ...

    def greet(self) -> int:
        self.send(messages.connect(seen=0, timeout=TIMEOUT, session=0, password=b""))
        while (message := messages.frame_in(self.received, 1 << 20)) is None:
            self.more()
        connected = messages.connected_in(message)
        assert connected.timeout == TIMEOUT
        return connected.session

    def ask(self, request: Request) -> Reply:
        number = next(self.numbers)
        self.send(messages.framed(number, request))
        while True:
            while (message := messages.frame_in(self.received, 1 << 20)) is None:
                self.more()
            answered, reply = messages.reply_in(message)
            if answered == number:
                return reply
            assert answered == messages.EVENT
            self.events.append(messages.event_in(reply.body))


class Real(Peer):
    def __init__(self, url: str) -> None:
        super().__init__()
        endpoint = address_from_url(url).endpoints[0]
        self.socket = socket.create_connection((endpoint.host, endpoint.port), timeout=20)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def more(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the server closed the connection"
        self.received += data


class Modelled(Peer):
    def __init__(self, model: ZooKeeper) -> None:
        super().__init__()
        self.model = model
        self.connection = Connection(self.received.extend, lambda: None)

    def send(self, data: bytes) -> None:
        message = messages.frame_in(bytearray(data), 1 << 20)
        assert message is not None
        if self.connection.session:
            self.model.ask(self.connection, message, 0.0)
        else:
            self.model.connect(self.connection, message, 0.0)

    def more(self) -> None:
        raise AssertionError("the model did not answer")


class ZooKeeperAndModel(RuleBasedStateMachine):
    """Drives both."""

    url: ClassVar[str]

    @initialize()
    def begin(self) -> None:
        self.base = f"/run-{next(_runs)}"
        self.model = ZooKeeper(TICK)
        self.real: list[Real] = [Real(self.url) for _ in range(2)]
        self.modelled = [Modelled(self.model) for _ in range(2)]
        self.owners = {0: 0}
        self.order: dict[int, int] = {}
        for real, modelled in zip(self.real, self.modelled, strict=True):
            self.owners[real.greet()] = modelled.greet()
        self.ask(0, messages.create(self.base, b"", OPEN, 0))

    def teardown(self) -> None:
        with contextlib.ExitStack() as closing:
            for connection in range(2) if hasattr(self, "real") else ():
                closing.callback(self.real[connection].socket.close)
                closing.callback(self.close, connection)

    def same(self, real: Stat, modelled: Stat) -> None:
        """What a node is; transactions have other numbers, in the same order."""
        told, expected = ((one.version, one.children, one.turnover) for one in (real, modelled))
        assert told == expected
        assert self.owners[real.owner] == modelled.owner
        for number, other in ((real.created, modelled.created), (real.changed, modelled.changed)):
            assert self.order.setdefault(number, other) == other
        assert [other for _, other in sorted(self.order.items())] == sorted(self.order.values())

    def ask(self, connection: int, request: Request) -> None:
        if not self.real[connection].is_open:
            return
        real, modelled = self.real[connection].ask(request), self.modelled[connection].ask(request)
        assert real.error == modelled.error
        if real.error != messages.OK or not real.body:
            return
        readers: dict[int, Any] = {15: messages.created_in, 4: messages.data_in, 12: messages.children_in}
        if request.kind in readers:
            (said, stat), (other, other_stat) = readers[request.kind](real.body), readers[request.kind](modelled.body)
            assert sorted(said) == sorted(other)
            self.same(stat, other_stat)
        elif request.kind == 14:
            assert messages.refused_part(real) == messages.refused_part(modelled)
            if messages.error_of_multi(real) == messages.OK:
                self.same(messages.changed_in_multi(real.body), messages.changed_in_multi(modelled.body))
        elif request.kind in (3, 5):
            self.same(messages.stat_in(real.body), messages.stat_in(modelled.body))

    @rule(connection=CONNECTIONS, name=NAMES, flags=FLAGS, below=st.booleans())
    def create(self, connection: int, name: str, flags: int, below: bool) -> None:
        folder = f"{self.base}/a" if below else self.base
        self.ask(connection, messages.create(f"{folder}/{name}", b"data", OPEN, flags))

    @rule(connection=CONNECTIONS, name=NAMES)
    def create_folder(self, connection: int, name: str) -> None:
        self.ask(connection, messages.create_container(f"{self.base}/{name}", OPEN))

    def children(self) -> list[str]:
        return [f"{self.base}/{one}" for one in self.model.nodes[self.base].children] or [f"{self.base}/a"]

    @rule(connection=CONNECTIONS, data=st.data(), version=VERSIONS)
    def change(self, connection: int, data: st.DataObject, version: int) -> None:
        path = data.draw(st.sampled_from(self.children()))
        kind = data.draw(st.sampled_from(["delete", "set", "look", "watch", "list", "sync", "exists"]))
        request = {
            "delete": messages.delete(path, version),
            "set": messages.set_data(path, b"new", version),
            "look": messages.get_data(path),
            "watch": messages.get_data(path, watch=True),
            "list": messages.get_children(self.base),
            "sync": messages.sync(path),
            "exists": messages.exists(path),
        }[kind]
        self.ask(connection, request)

    @rule(connection=CONNECTIONS, data=st.data(), version=VERSIONS, checks=st.booleans(), name=NAMES)
    def move(self, connection: int, data: st.DataObject, version: int, checks: bool, name: str) -> None:
        """All or nothing: count it in the folder, delete a node, create another; if the folder is as it was."""
        path = data.draw(st.sampled_from(self.children()))
        parts = [
            messages.set_data(self.base, b"", version if checks else messages.ANY_VERSION),
            messages.delete(path),
            messages.create(f"{self.base}/moved-{name}", b"", OPEN, EPHEMERAL),
        ]
        self.ask(connection, messages.multi(parts))

    @rule(connection=CONNECTIONS, name=NAMES, flags=FLAGS)
    def come(self, connection: int, name: str, flags: int) -> None:
        """All or nothing, and one transaction: count the nodes of the folder, create another."""
        if not self.real[connection].is_open:
            return
        parts = [messages.set_data(self.base, b""), messages.create(f"{self.base}/{name}", b"", OPEN, flags)]
        request = messages.multi(parts)
        real, modelled = self.real[connection].ask(request), self.modelled[connection].ask(request)
        assert messages.refused_part(real) == messages.refused_part(modelled)
        if messages.error_of(request, real) != messages.OK:
            return
        (path, folder), (other, other_folder) = (messages.created_in_multi(one.body) for one in (real, modelled))
        assert path == other
        self.same(folder, other_folder)
        look = messages.exists(path)
        assert messages.stat_in(self.real[connection].ask(look).body).created == folder.changed
        self.ask(connection, look)

    @rule(connection=CONNECTIONS)
    def close(self, connection: int) -> None:
        """The session is over, and what hung on it is gone."""
        if self.real[connection].is_open:
            self.ask(connection, messages.CLOSE)
            self.real[connection].is_open = False

    @invariant()
    def watches_tell_the_same(self) -> None:
        for connection in range(2) if hasattr(self, "real") else ():
            self.ask(connection, messages.exists(self.base))  # events come before the answer
            if self.real[connection].is_open:
                assert sorted(self.real[connection].events) == sorted(self.modelled[connection].events)


@pytest.fixture(autouse=True, scope="module")
def _server() -> Iterator[ZooKeeperServer]:
    with running_zookeeper() as server:
        ZooKeeperAndModel.url = server.url
        yield server


TestZooKeeperAndModel = ZooKeeperAndModel.TestCase
TestZooKeeperAndModel.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
