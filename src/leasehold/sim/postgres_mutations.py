"""Bugs that leases in the tables of an SQL server can have, planted in the engine, or in what its statements do."""

from __future__ import annotations

from leasehold.engines import sql_lease
from leasehold.sim import postgres_model
from leasehold.sim.mutating import Edit, Mutation, edit, registrar
from leasehold.wires import sql_listen, sql_table

POSTGRES_MUTATIONS: dict[str, Mutation] = {}
_caught_by = registrar(POSTGRES_MUTATIONS)


@_caught_by("exclusion", "told")
def release_without_the_holder() -> list[Edit]:
    """The statement that gives a lease back does not say whose."""
    return [edit(postgres_model.Database._release_alone, ("lease[HOLDER] != holder or ", ""))]


@_caught_by("tokens", "given")
def token_from_the_clock_alone() -> list[Edit]:
    """The token is the server's time, also when its clock was set back."""
    return [edit(postgres_model._seated, ("max(lease[TOKEN] + 1, now)", "now"))]


@_caught_by("order", "handover", "turns")
def queue_not_looked_at() -> list[Edit]:
    """The statement for names that are free takes one that others wait for."""
    return [
        edit(postgres_model.Database._take_free, ("if lease[CROWD] or not", "if not")),
        edit(postgres_model.Database._take_known, ("or lease[CROWD] or not", "or not")),
        edit(sql_lease.SqlLeaseEngine._take_at_once, ("if want.name not in self._crowded:", "if True:")),
    ]


@_caught_by("handover", "turns", "liveness")
def wake_up_not_sent() -> list[Edit]:
    """A release finds out that somebody listens, and does not tell it."""
    return [edit(postgres_model.Database._told, ("transaction.news.append((channel, payload))", ""))]


@_caught_by("handover", "turns", "liveness")
def nobody_hears() -> list[Edit]:
    """What comes on the connection that listens is read, and nobody is woken."""
    return [edit(sql_listen.Listener._read, ("if waiter is not None:", "if False:"))]


@_caught_by("patience")
def waits_for_another_to_connect() -> list[Edit]:
    """Who is about to wait leaves the connecting to another caller, also when its own time is up."""
    return [edit(sql_listen.Listener._open, ("if now < min(self._opened_by, until):", "if now < self._opened_by:"))]


@_caught_by("exclusion", "told", "tokens", "given")
def row_not_locked() -> list[Edit]:
    """The row is read without a lock, and what somebody else writes meanwhile is overwritten."""
    return [
        edit(sql_table.LeaseTable.load, ('"lock_lease" if lock else "read_lease"', '"read_lease"')),
        edit(sql_lease.SqlLeaseEngine._take_at_once, ("if want.name not in self._crowded:", "if False:")),
    ]


@_caught_by("handover", "turns", "liveness")
def queued_without_a_word() -> list[Edit]:
    """Who is queued in one step does not leave a mark at the name, and whoever gives it back looks for nobody."""
    return [edit(postgres_model.Database._queue, ("lease[CROWD] = QUEUE", ""))]


@_caught_by("liveness")
def handed_to_whoever_waits() -> list[Edit]:
    """A name is handed to the head of the queue for a whole TTL, however long ago anything was heard of it."""
    return [
        edit(postgres_model._may_be_handed, ("and promptly and", "and lasts and")),
        edit(postgres_model._can_move_up, (" and rows.lapses > now", "")),
    ]


@_caught_by("handover", "turns", "order")
def handed_and_still_queued() -> list[Edit]:
    """Who is handed a name keeps its place in the queue."""
    return [
        edit(postgres_model._moved_up, ("del rows.front[0]", "")),
        edit(postgres_model._gives_back, (" and not _stands_in(front, holder)", "")),
    ]


@_caught_by("tokens", "given", "exclusion", "told")
def handed_with_the_token_of_before() -> list[Edit]:
    """Who is handed a name is told the token of the one before it."""
    of_before = "{transaction.before[namespace, name].lease[TOKEN]}"
    return [edit(postgres_model.Database._hand_over, ("{lease[TOKEN]}", of_before))]


@_caught_by("given", "exclusion", "told")
def wake_up_taken_for_a_grant() -> list[Edit]:
    """Who is told to come for the name believes that it has it, with the token of before."""
    return [edit(sql_listen.Listener._read, ("_granted(token)", "_granted(token or '1')"))]


@_caught_by("order")
def pushed_in_before_others() -> list[Edit]:
    """Who finds room in the name's row is queued there, though others stand beyond it."""
    return [edit(postgres_model.Database._queue, ("not in (0, QUEUE)", "not in (0, QUEUE, QUEUE | BEYOND)"))]


@_caught_by("handover", "turns", "liveness")
def those_beyond_the_row_forgotten() -> list[Edit]:
    """Who takes the last place out of a name's row says that nobody waits, though others stand beyond it."""
    return [edit(postgres_model._can_move_up, ("QUEUE | BEYOND: 2", "QUEUE | BEYOND: 1"))]


@_caught_by("order", "handover", "turns")
def moved_up_and_still_queued() -> list[Edit]:
    """Who is moved into the name's row keeps its place beyond it as well."""
    return [edit(sql_table.Record._changed_places, ("if place is None:", "if place is None and holder not in in_row:"))]
