"""What a client remembers of its attempts on ZooKeeper."""

from __future__ import annotations

import pytest
from tests.engines.driving import want

from leasehold.engines.zookeeper_places import Places
from leasehold.engines.zookeeper_queue import node_in
from leasehold.wires.zookeeper_session import Session

TICK = 0.5


def alive(session: Session, number: int, heard_at: float) -> None:
    """As after an answer to a request that was sent then."""
    session.id, session._contact = number, heard_at


@pytest.mark.parametrize(("waited", "is_new"), [(0.5, False), (0.7, False), (0.8, True), (1.1, True)])
def test_whose_turn_comes_moves_to_no_session_that_is_about_to_end(waited: float, is_new: bool) -> None:
    """Nobody has kept the session of its TTL alive while it waited on the one for waiters."""
    places, wanted = Places(TICK), want("a", ttl=3)
    place = places.place_for(wanted, 0.0)
    lease, waiting = place.lease, places.waiting_session(0.0)
    alive(lease, 1, 0.0)
    alive(waiting, 2, 0.0)
    node = node_in(f"e-{place.id}-0000000007")
    assert node is not None
    place.has_node(node, 5, waiting)
    again = places.place_for(wanted, lease.timeout * waited)
    assert again is place
    assert (place.lease is not lease) == is_new


def test_a_lease_stays_on_its_session_however_old_that_is() -> None:
    places, wanted = Places(TICK), want("a", ttl=3)
    place = places.place_for(wanted, 0.0)
    lease = place.lease
    alive(lease, 1, 0.0)
    node = node_in(f"e-{place.id}-0000000007")
    assert node is not None
    place.has_node(node, 5, lease)
    assert places.place_for(wanted, lease.timeout * 2).lease is lease
