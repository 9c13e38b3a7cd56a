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
