"""Bugs that a lock on Consul can have, planted in the Consul engine."""

from __future__ import annotations

from leasehold.engines import consul, consul_requests, consul_sessions, consul_taking
from leasehold.sim.mutating import Edit, Mutation, edit, registrar

CONSUL_MUTATIONS: dict[str, Mutation] = {}
_caught_by = registrar(CONSUL_MUTATIONS)


@_caught_by("lock_delay", "given")
def lock_delay_ignored() -> list[Edit]:
    """What remains of a lost lease is no obstacle: the next one holds the name before the lock-delay is over."""
    return [edit(consul_taking.Taking._open, ("| None = remains", "| None = []"))]


@_caught_by("given", "tokens")
def token_from_the_modify_index() -> list[Edit]:
    """The token is the index at which the key was last changed, which is another one whenever it is looked at."""
    return [edit(consul_taking.Taking._take, ("return Grant(place.token,", "return Grant(place.modified,"))]


@_caught_by("given", "exclusion", "told")
def token_from_the_lock_index() -> list[Edit]:
    """The token counts how often the key was locked, and begins anew with every key."""
    return [edit(consul_taking.Taking._take, ("return Grant(place.token,", "return Grant(1,"))]


@_caught_by("exclusion", "told", "given")
def woken_is_enough() -> list[Edit]:
    """Who is woken takes it that its turn has come, and does not look."""
    return [
        edit(
            consul_taking.Taking._take,
            ("remains = await self._look(attempt)", "remains, place.blockade = [], None"),
        )
    ]


@_caught_by("turns", "liveness")
def index_of_something_else() -> list[Edit]:
    """A query waits for an index that is beyond what was seen, and misses what happens before that."""
    return [
        edit(consul_taking.Attempt.judge, ("own.created, own.modified, as_of", "own.created, own.modified, as_of + 9"))
    ]


@_caught_by("exclusion", "told", "given")
def shared_slot() -> list[Edit]:
    """All attempts of a client on a name use the same key: one that comes second finds itself holding."""
    return [
        edit(
            consul_sessions.Place.__init__,
            ("slot = str(session.slots", "slot = str(0 * session.slots"),
        ),
    ]


@_caught_by("patience")
def farewell_beyond_the_wait() -> list[Edit]:
    """Who gives up ends its sessions first, however long that takes."""
    return [
        edit(
            consul_requests.Requests.end_idle,
            (
                'self._wire.destroy_session(session.id or "", until)',
                'self._wire.destroy_session(session.id or "", self._world.now() + FAREWELL)',
            ),
        )
    ]


@_caught_by("exclusion", "told")
def session_ended_under_a_key_on_its_way() -> list[Edit]:
    """A release ends sessions on which nothing hangs, also one that the key of another lease is being moved to."""
    return [edit(consul_sessions.Sessions.take_out, (" and one not in awaited", ""))]


@_caught_by("exclusion", "told")
def late_move_not_reckoned_with() -> list[Edit]:
    """A lease stays on its session though a request to move its key, which was given up, may still be carried out."""
    return [
        edit(
            consul_sessions.Sessions.home_for,
            ("unsure = place.uncertain and home is place.session", "unsure = False"),
        )
    ]


@_caught_by("given", "lock_delay")
def loss_while_clearing_away() -> list[Edit]:
    """Who clears away what is left of a lost lease does not see that the one beside it was lost meanwhile."""
    return [
        edit(
            consul_taking.Taking._open,
            ("left = attempt.judge_written(outcome)", "left = left[1:] if left else None"),
        )
    ]


@_caught_by("lock_delay")
def broken_as_it_was_seen_long_ago() -> list[Edit]:
    """An operator deletes what has become of a key since it was looked at, and opens a name that is closed."""
    return [
        edit(
            consul.ConsulEngine.force_release,
            ("deleting_as_seen(one) for one in others", "deleting(one.key) for one in others"),
        )
    ]


@_caught_by("liveness", "leftovers", "turns", "patience")
def late_follower_not_reckoned_with() -> list[Edit]:
    """Who queues behind another of its client and hears nothing of it does not reckon with a key that comes late."""
    return [
        edit(
            consul_taking.Taking._follow,
            ("if session is not place.session:", "if False:"),
            ("found = {one.key", "self._sessions.move(place, session); found = {one.key"),
        )
    ]
