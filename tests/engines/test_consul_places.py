"""What a client remembers of its leases on Consul."""

from __future__ import annotations

from tests.engines.driving import want

from leasehold.engines.consul_sessions import Sessions
from leasehold.engines.key_queue import keys_of

TTL, DELAY = 10.0, 1.0


def test_lost_leases_with_a_lock_delay_do_not_gather() -> None:
    """Nobody gives them back, for then the name would not stay closed."""
    sessions, keys = Sessions(10.0), keys_of("", "a")
    wanted = [want("a", ttl=TTL, delay=DELAY) for _ in range(20)]
    for turn, one in enumerate(wanted):
        now = turn * 2 * TTL
        place = sessions.place_for(one, keys, now)
        home = sessions.home_for(place, TTL, DELAY, now)
        home.confirm(now)
        sessions.move(place, home)
        if turn:
            assert sessions.known(wanted[turn - 1].holder) is None, "Consul has ended its session by now"
    assert sessions.known(wanted[-1].holder) is not None
    assert len(sessions.take_out(all_idle=False)) <= 1
    assert len(sessions._others) == 1
