"""Until when the leader surely keeps a session: what proves it, and what does not."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from leasehold.engines.zookeeper_places import timeout_for
from leasehold.wires.urls import Endpoint
from leasehold.wires.zookeeper_dial import Dialled
from leasehold.wires.zookeeper_line import Line
from leasehold.wires.zookeeper_messages import Connected
from leasehold.wires.zookeeper_session import Session

TICK = 2.0
TIMEOUT = 10.0

Connect = Callable[[float], Line]


@pytest.fixture
def session() -> Session:
    return Session(6.0, TIMEOUT, TICK)


@pytest.fixture
def connect(session: Session) -> Iterator[Connect]:
    ends: list[socket.socket] = []

    def connect_at(moment: float) -> Line:
        near, far = socket.socketpair()
        ends.append(far)
        line = Line(near, "server", moment, (BlockingIOError,))
        assert session.connected(Dialled(line, Connected(TIMEOUT, 7, b"password"), moment, Endpoint("server", 1)))
        return line

    yield connect_at
    for end in ends:
        end.close()


def lasts_until(session: Session) -> float:
    """The latest moment, to a tenth of a second."""
    return max((moment / 10 for moment in range(2000) if session.lasts_until(moment / 10)), default=0.0)


def test_it_lasts_from_when_it_was_asked_for(session: Session, connect: Connect) -> None:
    assert lasts_until(session) == 0
    connect(100.0)
    assert lasts_until(session) == 110.0
    connect(105.0)
    assert lasts_until(session) == 115.0


def test_what_a_follower_answers_alone_proves_nothing(session: Session, connect: Connect) -> None:
    line = connect(100.0)
    for moment in (103.0, 106.0, 109.0):
        session.answered(line, moment, by_leader=False)
    assert lasts_until(session) == 110.0


def test_an_answer_of_the_leader_proves_what_was_sent_a_tick_earlier(session: Session, connect: Connect) -> None:
    """The news of a request reaches the leader within a tick, and before any later request of the same follower."""
    line = connect(100.0)
    session.answered(line, 103.0, by_leader=True)
    assert lasts_until(session) == 110.0, "nothing but the connection was a tick earlier"
    session.answered(line, 104.9, by_leader=True)
    assert lasts_until(session) == 110.0, "the one of 103 may not have been told yet"
    session.answered(line, 105.1, by_leader=True)
    assert lasts_until(session) == 113.0
    session.answered(line, 107.5, by_leader=True)
    assert lasts_until(session) == 114.9, "the times are kept in quarters of a tick"


def test_what_was_answered_on_an_older_connection_counts_no_more(session: Session, connect: Connect) -> None:
    """Another server knows nothing of what the first one had still to tell."""
    old = connect(100.0)
    session.answered(old, 104.0, by_leader=False)
    new = connect(101.0)
    session.answered(old, 109.0, by_leader=True)
    assert lasts_until(session) == 111.0
    session.answered(new, 109.0, by_leader=True)
    assert lasts_until(session) == 111.0
    assert old.failure is not None


def test_renewals_every_third_of_the_ttl_suffice(session: Session, connect: Connect) -> None:
    """With the timeout that leases of a TTL get, no renewal has to replace the connection."""
    ttl = 6.0
    timeout = timeout_for(ttl, TICK)
    near, far = socket.socketpair()
    line = Line(near, "server", 0.0, (BlockingIOError,))
    session.connected(Dialled(line, Connected(timeout, 7, b""), 0.0, Endpoint("server", 1)))
    for number in range(100):
        moment = number * ttl * 0.35
        session.answered(line, moment, by_leader=True)
        assert session.lasts_until(moment + ttl), f"renewal {number}"
    far.close()


def test_a_session_that_is_over_stays_over(session: Session, connect: Connect) -> None:
    connect(100.0)
    near, far = socket.socketpair()
    line = Line(near, "server", 101.0, (BlockingIOError,))
    assert not session.connected(Dialled(line, Connected(0.0, 0, b""), 101.0, Endpoint("server", 1)))
    assert session.dead
    assert not session.connected(Dialled(line, Connected(TIMEOUT, 7, b""), 102.0, Endpoint("server", 1)))
    far.close()
