"""What PostgreSQL is told where a name has a queue: to be queued, to be served, and to pass a name on.

Each of these statements comes behind one that locks the name's row, in the same round trip and so in the same
transaction. So it sees the queue as it is, and nobody else changes it meanwhile.
"""

from __future__ import annotations

from typing import Final

from leasehold.core.table import LATENESS, LONGEST_SILENCE, NEAR, PROMPT, SLACK, TURN
from leasehold.wires.sql_table import USUAL_DEPTH

_LAZILY: Final = "set_config('synchronous_commit', 'off', true)"
_LOCK: Final = "SELECT {what} FROM {prefix}lease WHERE namespace = $1 AND name = $2 FOR UPDATE"
# Who leaves the queue is found by its number, given as a single value: in a join, all places of the name are looked at.
_HEAD: Final = """
head AS MATERIALIZED (
    SELECT seq, holder, mode, most, since, until, address, about, lasts, delay FROM {prefix}waiter
    WHERE namespace = $1 AND name = $2 AND until > {now} ORDER BY seq LIMIT 1
)"""
# Put among the others while somebody holds the name for itself, as the lease table does it. Left to that: a queue of
# which not all is looked at, one that is out of date, who stands in it already, and a clock that was set back.
_QUEUE: Final = """
WITH line AS MATERIALIZED (
    SELECT count(*) AS rank, coalesce(max(seq), 0) + 1 AS seq,
        coalesce(bool_or(holder = $3 OR until <= {now}), false) AS is_odd
    FROM (
        SELECT seq, holder, until FROM {prefix}waiter WHERE namespace = $1 AND name = $2 ORDER BY seq LIMIT {depth}
    ) AS first
), held AS MATERIALIZED (
    SELECT l.token, l.beat, l.lasts, l.about, line.seq, clock.now, greatest(least(
        least(greatest(l.expires, l.closed_until) - clock.now, l.lasts)
            + CASE WHEN line.rank > {near} THEN line.rank * {turn} ELSE 0 END,
        CASE WHEN line.rank = 0 THEN {silence} ELSE line.rank * (line.rank + 1) / 2 * {turn} END,
        {silence}
    ), 1) AS ask_again
    FROM {prefix}lease AS l, line, (SELECT {now} AS now OFFSET 0) AS clock
    WHERE l.namespace = $1 AND l.name = $2 AND l.holder <> $3 AND l.expires > clock.now AND l.turn_since <= clock.now
        AND l.crowd IN (0, 2) AND line.rank < {depth} AND NOT line.is_odd
), queued AS (
    INSERT INTO {prefix}waiter
        (namespace, name, seq, holder, mode, most, since, until, address, about, lasts, delay)
    SELECT $1, $2, seq, $3, $4, $5, now, now + least($6, ask_again) + {lateness}, $7, $8, $9, $10 FROM held
), crowded AS (
    UPDATE {prefix}lease AS l SET crowd = 2 FROM held WHERE l.namespace = $1 AND l.name = $2 AND l.crowd = 0
)
SELECT ask_again, token, beat, lasts, about FROM held
"""
# Not if the next in the queue must be told that it is the first now: that is left to the lease table.
_TAKE_TURN: Final = """
WITH {head}, taken AS (
    UPDATE {prefix}lease AS l SET
        token = greatest(l.token + 1, {now}), turn_since = {now}, holder = $3, since = {now}, expires = {now} + $4,
        lasts = $4, beat = 0, delay = $5, about = $6, crowd = CASE WHEN EXISTS (
            SELECT 1 FROM {prefix}waiter WHERE namespace = $1 AND name = $2 AND holder <> $3
        ) THEN 2 ELSE 0 END
    FROM head WHERE l.namespace = $1 AND l.name = $2 AND head.holder = $3 AND l.crowd = 2 AND l.closed_until <= {now}
        AND (l.holder IS NULL OR (l.expires <= {now} AND l.delay = 0)) AND NOT EXISTS (
            SELECT 1 FROM (
                SELECT until FROM {prefix}waiter
                WHERE namespace = $1 AND name = $2 AND holder <> $3 AND until > {now} ORDER BY seq LIMIT 1
            ) AS next WHERE until > {now} + $4 + {late}
        )
    RETURNING l.token, l.holder, head.seq
), left_queue AS (
    DELETE FROM {prefix}waiter WHERE namespace = $1 AND name = $2 AND seq = (SELECT seq FROM taken)
)
SELECT token, holder FROM taken
"""
# Who has asked only a moment ago is granted the name by the one who gives it back, and told so; who has waited for
# longer is told to come for it. Who listens holds the lock of its channel; who gets that finds nobody there, and gives
# it back with the end of the transaction. Only a grant waits for the disk.
_RELEASE_TO_NEXT: Final = """
WITH {head}, held AS MATERIALIZED (
    SELECT l.token, clock.now, head.*, CASE WHEN l.closed_until <= clock.now
            AND head.address ~ '^leasehold_[0-9a-f]{{16}}$'
        THEN NOT pg_try_advisory_xact_lock(('x' || right(head.address, 16))::bit(64)::bigint) END AS hears
    FROM {prefix}lease AS l CROSS JOIN (SELECT {now} AS now OFFSET 0) AS clock LEFT JOIN head ON true
    WHERE l.namespace = $1 AND l.name = $2 AND l.holder = $3 AND l.crowd IN (0, 2) AND l.expires > clock.now
), passed AS MATERIALIZED (
    SELECT held.*, (hears AND mode = 'exclusive' AND token < now AND now >= since
        AND now < since + least({prompt}, lasts / 8) AND NOT EXISTS (
            SELECT 1 FROM (
                SELECT until FROM {prefix}waiter
                WHERE namespace = $1 AND name = $2 AND holder <> held.holder AND until > held.now ORDER BY seq LIMIT 1
            ) AS next WHERE next.until > held.now + held.lasts + {late}
        )) IS TRUE AS is_handed
    FROM held
), freed AS (
    UPDATE {prefix}lease AS l SET
        turn_since = p.now, holder = CASE WHEN is_handed THEN p.holder END,
        token = CASE WHEN is_handed THEN p.now ELSE l.token END,
        since = CASE WHEN is_handed THEN p.now ELSE l.since END,
        expires = CASE WHEN is_handed THEN p.now + p.lasts ELSE l.expires END,
        lasts = CASE WHEN is_handed THEN p.lasts ELSE l.lasts END,
        beat = CASE WHEN is_handed THEN 0 ELSE l.beat END,
        delay = CASE WHEN is_handed THEN p.delay ELSE l.delay END,
        about = CASE WHEN is_handed THEN p.about ELSE l.about END,
        crowd = CASE WHEN EXISTS (
            SELECT 1 FROM {prefix}waiter AS w
            WHERE w.namespace = $1 AND w.name = $2 AND w.holder <> $3 AND NOT (is_handed AND w.holder = p.holder)
        ) THEN 2 ELSE 0 END
    FROM passed AS p WHERE l.namespace = $1 AND l.name = $2 RETURNING l.crowd
), left_queue AS (
    DELETE FROM {prefix}waiter WHERE namespace = $1 AND name = $2 AND seq = (SELECT seq FROM passed WHERE is_handed)
)
SELECT freed.crowd,
    CASE WHEN hears THEN
        pg_notify(p.address, CASE WHEN is_handed THEN p.holder || ' ' || p.now ELSE p.holder END)::text IS NOT NULL
    ELSE hears IS NULL END,
    {unless_durable}, p.holder, p.mode, p.most, p.since, p.until, p.address, p.about, p.lasts, p.delay
FROM freed, passed AS p
"""


def queue_statements(prefix: str, now: str, *, durable: bool) -> dict[str, str]:
    """The texts, by name; `now` is an expression for the server's time, and `prefix` what tables begin with.

    Of a durable grant nobody hears before it is on the disk.
    """
    words = {"prefix": prefix, "now": now}
    head = _HEAD.format(**words)
    limits = {"depth": USUAL_DEPTH, "near": NEAR, "turn": TURN, "silence": LONGEST_SILENCE, "lateness": LATENESS}
    late = LATENESS + SLACK
    unless_durable = f"CASE WHEN NOT is_handed THEN {_LAZILY} END" if durable else _LAZILY
    return {
        "lock": _LOCK.format(what="1", **words),
        "lock_lazily": _LOCK.format(what=_LAZILY, **words),
        "queue": _QUEUE.format(**limits, **words),
        "take_turn": _TAKE_TURN.format(head=head, late=late, **words),
        "release_to_next": _RELEASE_TO_NEXT.format(
            head=head, late=late, prompt=PROMPT, unless_durable=unless_durable, **words
        ),
    }
