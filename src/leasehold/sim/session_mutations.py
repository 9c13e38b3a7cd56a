"""Bugs that locks of connections can have, planted in the session modes of PostgreSQL and MySQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasehold.engines import mysql_session, postgres_session, sql_session
from leasehold.sim import session_model, sql_lines
from leasehold.sim.mutating import Edit, Mutation, edit, registrar
from leasehold.wires import sql_pins

POSTGRES_SESSION_MUTATIONS: dict[str, Mutation] = {}
MYSQL_SESSION_MUTATIONS: dict[str, Mutation] = {}
_postgres, _mysql = registrar(POSTGRES_SESSION_MUTATIONS), registrar(MYSQL_SESSION_MUTATIONS)

_RECONNECT: Final = """pin.line, pin.posted = await self._pins._connect(self._sockets, until), None
        kept = await self._beat(pin, lease.ttl, began_at, until)
    finally"""

Edits = Callable[[], list[Edit]]


def _every_wait_proved() -> Edit:
    """Beside a bug that shows seldom: there is more to go wrong where a heartbeat follows each wait."""
    return edit(sql_session.SqlSessionEngine._wait, ("if pin.token and is_fresh else", "if False else"))


def _every_lock_asked_for() -> Edit:
    """Beside a bug that shows seldom: there is more to go wrong where nobody queues without asking."""
    return edit(sql_session.SqlSessionEngine._is_busy, ("if not self._busy or", "if True or"))


def _the_long_way() -> list[Edit]:
    """Beside a bug that shows seldom: there is more to go wrong where every lock is asked for in several requests."""
    engine = mysql_session.MysqlSessionEngine
    return [
        _every_lock_asked_for(),
        edit(engine._try, ("if served is not None and", "if False and served is not None and")),
        edit(engine._queue, ("if served is None or", "if True or"), ("self.world.now() + ANSWERS_WITHIN", "until"),
             ("if served.timer == ", "if False and served.timer == ")),
        edit(mysql_session.MysqlSessionFamily._is_fit, ("now < served.rests_until", "True")),
        edit(session_model.MysqlSessions._unlock, ("unlocked =", "connection.silence = 0.0\n    unlocked =")),
    ]  # fmt: skip


def _both(*judges: str) -> Callable[[Edits], Edits]:
    return lambda edits: _postgres(*judges)(_mysql(*judges)(edits))


@_both("connection")
def broken_connection_ignored() -> list[Edit]:
    """Nobody looks whether the server has closed the connection that a lease lives in."""
    return [edit(sql_session.SqlSessionEngine._look_for_losses, ("in self._pins.all:", "in list[Pin[KeyT]]():"))]


@_mysql("connection")
def broken_connection_not_seen_behind_another() -> list[Edit]:
    """Nobody looks whether a connection broke whose heartbeat is under way, while the keeper waits for another one."""
    return [
        edit(sql_session.SqlSessionEngine._look, ("is not pin:", "is not pin or pin.posted is not None:")),
        edit(sql_session.SqlSessionEngine._keep, ("self._give_up(pin)", "self._pins.unpin(pin, clean=False)")),
        _every_wait_proved(),
        *_the_long_way(),
    ]


@_both("connection")
def reconnects_silently() -> list[Edit]:
    """When the connection of a lease is gone, a heartbeat opens another one and goes on, without the lock."""
    return [
        edit(sql_session.SqlSessionEngine._look, ("if lost:", "if False:")),
        edit(
            sql_session.SqlSessionEngine._keep,
            (
                "kept = False\n    finally",
                _RECONNECT,
            ),
        ),
        edit(sql_session.SqlSessionEngine._fetch, ("answer and answer[0][0] == pin.pid", "answer")),
    ]


@_both("connection")
def session_not_compared() -> list[Edit]:
    """A heartbeat is content with any session's answer, also when a proxy has asked another one."""
    return [edit(sql_session.SqlSessionEngine._fetch, ("answer and answer[0][0] == pin.pid", "answer"))]


@_both("leftovers", "liveness", "turns")
def unlocked_by_another_connection() -> list[Edit]:
    """A release asks whichever connection is idle to unlock, and takes its word for it."""
    return [
        edit(
            sql_session.SqlSessionEngine._unlock,
            ("await pin.line.ask(self._unlocking(pin), until)",
             "await self._pins.ask(self._unlocking(pin), self._sockets, until)"),
            ("return self._was_held(pin, rows)", "return True"),
        )
    ]  # fmt: skip


@_both("exclusion", "told")
def old_answer_taken_for_a_new_one() -> list[Edit]:
    """The answer to an earlier heartbeat, which was late, prolongs a lease from the time of the next one.

    Nobody else fetches it here: it would be there too seldom.
    """
    return [
        edit(sql_session.SqlSessionEngine._beat, ("if not heard:", "if True:")),
        edit(sql_session.SqlSessionEngine._look, ("is not pin:", "is not pin or pin.posted is not None:")),
        _every_wait_proved(),
    ]


@_both("exclusion", "told")
def grant_of_a_wait_not_proved() -> list[Edit]:
    """A lock that came in the server's queue counts from when it is asked about, not from when it was had."""
    return [
        edit(
            sql_session.SqlSessionEngine._prove,
            (
                'return await self.renew([Renewal("", pin.holder, pin.token, ttl)], until=until) == [True]',
                "return True",
            ),
        ),
        _every_wait_proved(),
    ]


@_both("exclusion", "told")
def long_wait_counted_from_its_end() -> list[Edit]:
    """Whatever a wait has brought, however long ago, counts from its end."""
    counted = ("asked_at) if pin.token and is_fresh", "self.world.now()) if pin.token")
    return [edit(sql_session.SqlSessionEngine._wait, counted)]


@_both("liveness", "leftovers")
def silent_connection_never_ended() -> list[Edit]:
    """The server is not told to end a connection that is silent for a TTL: a host that vanished keeps its lock."""
    return [
        edit(session_model.PostgresSessions._locked, ("int(silence) / 1000", "0.0")),
        edit(session_model.PostgresSessions._patience, ("int(silence) / 1000", "0.0")),
        edit(session_model.PostgresSessions._heartbeat, ("int(milliseconds) / 1000", "0.0")),
        edit(session_model.MysqlSessions._lock, ("connection.silence = float(seconds)", "connection.silence = 0.0")),
        edit(session_model.MysqlSessions._heartbeat, ("float(seconds)", "0.0")),
    ]  # fmt: skip


@_mysql("patience")
def swept_by_one_in_a_hurry() -> list[Edit]:
    """Also who has no time left first opens a connection to look for names that nobody uses."""
    hurry = " or self.world.now() + SHORTEST_OPENING > until"
    return [edit(sql_session.SqlSessionEngine._sweep_now_and_then, (hurry, "")), _every_wait_proved(), *_the_long_way()]


@_postgres("collision", "given")
def names_of_a_key_not_compared() -> list[Edit]:
    """Two names whose hashes are the same share a lock and a row of tokens, and nobody is told."""
    return [
        edit(
            postgres_session.PostgresSessionEngine._note_grant,
            ("if is_another or (got and token is None):", "if False:"),
        ),
        edit(session_model.PostgresSessions._locked, ("if (row.namespace, row.name) == (namespace, name):", "if row:")),
    ]  # fmt: skip


@_postgres("tokens", "given")
def token_read_before_the_lock() -> list[Edit]:
    """Who has to wait for the lock has its token from before the wait."""
    return [
        edit(
            session_model.PostgresSessions._lock,
            ("raise Waits(", 'connection.__dict__.setdefault("early", self.clock())\n        raise Waits('),
        ),
        edit(
            session_model.PostgresSessions._locked,
            ("self._minted(row, about)",
             'self._minted(row, about) if "early" not in connection.__dict__ else connection.__dict__.pop("early")'),
            ("self.granted(", "row.token, row.about = token, about\n            self.granted("),
        ),
    ]  # fmt: skip


@_postgres("liveness", "leftovers", "turns")
def connection_kept_after_a_wait_in_vain() -> list[Edit]:
    """A connection whose wait for a lock failed is used again, though it may have got the lock all the same."""
    return [
        edit(sql_lines.SimLine._understood, (" and self.closes_on_error", " and False")),
        edit(sql_pins._ClosedOnError.__exit__, ("clean=False", "clean=True")),
        edit(session_model.PostgresSessions._patience, ("int(silence) / 1000", "0.0")),
    ]


@_postgres("liveness", "leftovers", "turns")
def limit_of_silence_taken_back() -> list[Edit]:
    """The limit for a silent session is set in the transaction of the wait, so that a wait in vain takes it back."""
    return [
        edit(
            postgres_session.PostgresSessionEngine._queue,
            ("if ready is None or", "if True or"),
            ("await line.ask(patience, min(until, self.world.now() + ANSWERS_WITHIN))", "pass"),
            (
                'await line.ask(self._request("lock", *terms), until) or',
                '(await line.ask_all([patience, self._request("lock", *terms)], until, commits=True))[-1] or',
            ),
        ),
        edit(
            session_model.PostgresSessions._try_first,
            ("self._patience(connection, values[6], values[4], values[5])", "pass"),
        ),
    ]


@_postgres("liveness", "leftovers", "turns")
def limit_of_silence_left_to_another_session() -> list[Edit]:
    """Who waits relies on a limit that was set before, though a proxy may have found another session since."""
    without = ("self._locked(connection, True, values)",
               "self._locked(connection, True, (*values[:5], connection.silence * 1000))")  # fmt: skip
    return [edit(session_model.PostgresSessions._lock, without)]


@_postgres("liveness")
def busy_names_remembered_on_another_server() -> list[Edit]:
    """Who had to wait for a name queues for it unasked also when another name has its key since a failover."""
    return [edit(sql_session.SqlSessionEngine._is_busy, ("self._busy.clear()", "pass"))]


@_mysql("tokens", "given")
def token_minted_before_the_lock() -> list[Edit]:
    """Who has to wait for the lock has its token from before the wait."""
    return [
        edit(
            session_model.MysqlSessions._lock,
            ("raise Waits(", 'connection.__dict__.setdefault("early", self.clock())\n        raise Waits('),
            ("minted = self._minted(row, about)",
             'minted = row.token = connection.__dict__.pop("early", 0) or self._minted(row, about); row.about = about'),
        )
    ]  # fmt: skip


@_mysql("leftovers", "liveness", "turns")
def lock_counted_twice() -> list[Edit]:
    """GET_LOCK is asked twice on the same connection, which has to give the lock back twice then, and does so once."""
    ask = "await self._lock(pin, want, 0.0, until)"
    return [edit(mysql_session.MysqlSessionEngine._try, (ask, f"{ask} or {ask}"))]


@_mysql("leftovers")
def waiter_left_in_the_queue() -> list[Edit]:
    """Who is interrupted while it waits closes its connection, and the server does not look."""
    return [edit(mysql_session.MysqlSessionEngine.release, ("if connection is not None:", "if False:"))]


@_both("liveness", "turns")
def sent_to_queue_unasked() -> list[Edit]:
    """Who finds a name likely to be busy queues without asking, also where nobody knows whether the server answers."""
    lately = " or self.world.now() > self._heard_at + HEARD_LATELY"
    return [edit(sql_session.SqlSessionEngine._is_busy, (lately, ""), ("self._busy.clear()", "pass"))]
