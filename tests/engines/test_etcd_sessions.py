"""What a client remembers of its attempts on etcd."""

from __future__ import annotations

from tests.engines.driving import want

from leasehold.engines.etcd_sessions import Sessions
from leasehold.engines.key_queue import keys_of


def test_who_asks_again_is_remembered_when_its_session_seems_over() -> None:
    """A request of it may just be hanging its key on another session; forgotten, it would be deleted by nobody."""
    sessions, wanted = Sessions(), want("a", ttl=3)
    place = sessions.place_for(wanted, keys_of("", "a"), 0.0)
    place.home.confirm(0.0, 3.0)
    place.uncertain = True  # as while a request is under way
    sessions.rehome(place, 3, 4.0)
    waiting = sessions.waiting_for(3, 4.0)
    waiting.confirm(4.0, 3.0)
    place.may_also_hang_on(waiting)
    assert sessions.known(wanted.holder) is place
    assert sessions.place_for(wanted, keys_of("", "a"), 4.0) is not place
    assert place.key in waiting.debts, "whoever keeps this session alive deletes the key"


def test_what_was_given_up_is_forgotten_when_no_session_is_left_that_it_may_hang_on() -> None:
    sessions, wanted = Sessions(), want("a", ttl=3)
    place = sessions.place_for(wanted, keys_of("", "a"), 0.0)
    place.home.confirm(0.0, 3.0)
    sessions.owe(place)
    sessions.session_for(3, 2.0)
    assert sessions.known(wanted.holder) is place
    sessions.session_for(3, 4.0).confirm(4.0, 3.0)
    sessions.session_for(3, 8.0)
    assert sessions.known(wanted.holder) is None


def test_a_key_on_a_session_that_seems_over_is_deleted_if_that_is_kept_alive_after_all() -> None:
    sessions, wanted = Sessions(), want("a", ttl=3)
    place = sessions.place_for(wanted, keys_of("", "a"), 0.0)
    place.home.confirm(0.0, 3.0)
    place.token = 7
    again = sessions.place_for(wanted, keys_of("", "a"), 3.1)
    assert again.key != place.key
    assert place.key in place.session.debts
