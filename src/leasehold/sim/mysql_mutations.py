"""Bugs that leases in the tables of MySQL or MariaDB can have, planted in the engine, or in what its statements do."""

from __future__ import annotations

from leasehold.engines import mysql, sql_lease
from leasehold.sim import mysql_model, postgres_model
from leasehold.sim.mutating import Edit, Mutation, edit, registrar
from leasehold.sim.postgres_mutations import POSTGRES_MUTATIONS
from leasehold.wires import mysql_ear, sql_listen, sql_table

MYSQL_MUTATIONS: dict[str, Mutation] = {}
_caught_by = registrar(MYSQL_MUTATIONS)


@_caught_by("exclusion", "told")
def release_without_the_holder() -> list[Edit]:
    """The statement that gives a lease back does not say whose."""
    return [edit(mysql_model.MysqlDatabase._release_alone, ("lease[HOLDER] != holder or ", ""))]


@_caught_by("tokens", "given")
def token_from_the_clock_alone() -> list[Edit]:
    """The token is the server's time, also when its clock was set back."""
    return [edit(postgres_model._seated, ("max(lease[TOKEN] + 1, now)", "now"))]


@_caught_by("tokens", "given", "exclusion", "told")
def found_rows_counted() -> list[Edit]:
    """A connection counts rows that were found, not those that were changed: whoever asks seems to have the name."""
    return [
        edit(mysql_model.MysqlDatabase._take_free, ("return NONE_CHANGED", "return [(1, max(lease[0] + 1, now))]")),
    ]


@_caught_by("order", "handover", "turns")
def queue_not_looked_at() -> list[Edit]:
    """The statement for names that are free takes one that others wait for."""
    return [
        edit(mysql_model.MysqlDatabase._take_free, ("or lease[CROWD] or not", "or not")),
        edit(mysql_model.MysqlDatabase._take_known, ("or lease[CROWD] or not", "or not")),
        edit(sql_lease.SqlLeaseEngine._take_at_once, ("if want.name not in self._crowded:", "if True:")),
    ]


@_caught_by("exclusion", "told", "tokens", "given")
def row_not_locked() -> list[Edit]:
    """The row is read without a lock, and what somebody else writes meanwhile is overwritten."""
    return [
        edit(sql_table.LeaseTable.load, ('"lock_lease" if lock else "read_lease"', '"read_lease"')),
        edit(sql_lease.SqlLeaseEngine._take_at_once, ("if want.name not in self._crowded:", "if False:")),
    ]


@_caught_by("order", "handover", "turns")
def turn_of_another_taken() -> list[Edit]:
    """Whoever waits takes a name that is free, and not only the head of the queue."""
    return [edit(postgres_model.Database._take_turn, ("front[0][0] != holder", "False"))]


@_caught_by("handover", "turns", "liveness")
def letter_without_an_interruption() -> list[Edit]:
    """Who frees a name leaves a letter, and lets its reader wait on."""
    return [
        edit(mysql.MysqlEngine._nudges, ("[self._post.interrupt(place.address)]", "[]")),
        edit(mysql.MysqlEngine._pass_on, (", self._post.interrupt_next]", "]")),
    ]


@_caught_by("handover", "turns", "liveness")
def interruption_taken_for_news() -> list[Edit]:
    """After an interruption the reader does not read on, and waits for an answer that does not come."""
    reads_on_not = "self._wait() if self._answers.error is None else None"
    return [edit(mysql_ear.ListeningLine.notifications, ("self._wait()", reads_on_not))]


@_caught_by("handover", "turns", "liveness")
def lock_of_null_not_expected() -> list[Edit]:
    """The same where the server tells of an interruption by a lock of NULL instead of an error."""
    reads_on_not = "self._wait() if [(None,)] not in self._answers.results else None"
    return [edit(mysql_ear.ListeningLine.notifications, ("self._wait()", reads_on_not))]


@_caught_by("handover", "turns", "liveness")
def nobody_hears() -> list[Edit]:
    """What comes on the connection that listens is read, and nobody is woken."""
    return [edit(sql_listen.Listener._read, ("if waiter is not None:", "if False:"))]


@_caught_by("told", "exclusion")
def renewal_revives() -> list[Edit]:
    """A renewal does not look whether the lease has run out, nor whose it is by now."""
    return [
        edit(
            mysql_model.MysqlDatabase._renew_lease,
            ("if not lease or (lease[HOLDER], lease[0]) != (holder, token) or lease[EXPIRES] <= now:", "if not lease:"),
        )
    ]


@_caught_by("tokens", "given", "exclusion", "told")
def handed_with_another_token() -> list[Edit]:
    """Who is handed a name is told a token that was never minted."""
    return [edit(mysql_model.MysqlDatabase._tell_handed, ("{lease[TOKEN]}", "{lease[TOKEN] - 1}"))]


@_caught_by("given", "exclusion", "told")
def wake_up_taken_for_a_grant() -> list[Edit]:
    """Who is told to come for the name believes that it has it, with the token of before."""
    return [edit(sql_listen.Listener._read, ("_granted(token)", "_granted(token or '1')"))]


@_caught_by("exclusion", "told", "given")
def handed_over_by_anybody() -> list[Edit]:
    """The statement that hands a name over does not say whose it is."""
    return [edit(postgres_model._gives_back, ("lease[HOLDER] == holder", "True"))]


@_caught_by("tokens", "given", "exclusion", "told")
def handed_over_without_a_token_of_its_own() -> list[Edit]:
    """Who is handed a name, or takes its turn, has the token of the one before it."""
    of_before = "token, _, rows.lease[TOKEN] = rows.lease[TOKEN], _seated(rows.lease, now, values), rows.lease[TOKEN]"
    return [edit(postgres_model._moved_up, ("token = _seated(rows.lease, now, values)", of_before))]


@_caught_by("order", "handover", "turns", "liveness")
def queued_twice() -> list[Edit]:
    """Who stands in the queue and asks again is put there once more."""
    return [
        edit(sql_lease.SqlLeaseEngine._take_or_queue, (" and not comes_back", "")),
        edit(postgres_model.Database._queue, (" or _stands_in(front, holder)", "")),
        edit(postgres_model._gives_back, (" and not _stands_in(front, holder)", "")),
    ]


@_caught_by("order", "handover", "turns", "liveness")
def row_emptied_when_others_come_to_stand_beyond_it() -> list[Edit]:
    """Who comes to stand beyond a name's row has those forgotten who stand in it."""
    in_row = "_texts([] if self.crowd & BEYOND else front)"
    return [edit(sql_table.Record.changes, ("_texts(front)", in_row))]


MYSQL_MUTATIONS |= {
    name: POSTGRES_MUTATIONS[name]
    for name in (
        "queued-without-a-word",
        "handed-to-whoever-waits",
        "handed-and-still-queued",
        "pushed-in-before-others",
        "those-beyond-the-row-forgotten",
        "moved-up-and-still-queued",
    )
}
"""Bugs of what the statements of both servers do alike."""
