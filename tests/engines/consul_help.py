"""What the tests of the Consul engine share."""

from __future__ import annotations

from tests.engines import driving

from leasehold.core.engine import Want
from leasehold.engines.consul import ConsulFamily, open_engine
from leasehold.engines.consul_sessions import Place


def family_at(url: str, *, namespace: str = "") -> ConsulFamily:
    return open_engine(url, namespace=namespace, client_label="tests")


class Driven(driving.Driven[ConsulFamily]):
    """An engine, and what its family knows."""

    def place(self, wanted: Want) -> Place:
        """What the family knows of an attempt."""
        place = self.family.sessions.known(wanted.holder)
        assert place is not None
        return place
