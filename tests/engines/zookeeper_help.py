"""What the tests of the ZooKeeper engine share."""

from __future__ import annotations

import socket
from typing import Any

from tests.engines import driving
from tests.support.zookeeper_server import ZooKeeperServer

from leasehold.core.engine import Want
from leasehold.engines.zookeeper import ZooKeeperFamily, open_engine
from leasehold.engines.zookeeper_places import Place
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_session import Session


def family_at(url: str, *, namespace: str = "") -> ZooKeeperFamily:
    return open_engine(url, namespace=namespace, client_label="tests")


class Driven(driving.Driven[ZooKeeperFamily]):
    """An engine, and what its family knows."""

    def ask(self, *requests: Any) -> Any:
        """Send requests of the tests' own, on the session for questions."""
        return self.run(self.engine._nodes.ask(requests, self.engine.world.now() + self.seconds))

    def folder(self, name: str) -> str:
        return str(self.engine._nodes.folder(name))

    def place(self, wanted: Want) -> Place:
        """What the family knows of an attempt."""
        place = self.family.places.known(wanted.holder)
        assert place is not None
        return place


def expire(server: ZooKeeperServer, session: Session) -> None:
    """Have the server end a session, as when nothing was heard of it for too long."""
    _, timeout, number, password = session.hello()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as connection:
        connection.sendall(messages.connect(seen=0, timeout=timeout, session=number, password=password))
        connection.recv(4096)
        connection.sendall(messages.framed(1, messages.CLOSE))
        assert connection.recv(4096)
