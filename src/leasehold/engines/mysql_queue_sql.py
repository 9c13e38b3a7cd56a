"""What MySQL and MariaDB are told where a name has a queue: to be queued, to be served, and to pass a name on.

Each of these statements comes behind one that locks the name's row, in the same packet and the same transaction. So it
sees the queue as it is, and nobody else changes it meanwhile. A variable carries from one to the next what was found.
"""

from __future__ import annotations

from typing import Final

from leasehold.core.table import LATENESS, LONGEST_SILENCE, NEAR, PROMPT, SLACK, TURN
from leasehold.wires.sql_table import USUAL_DEPTH

_LOCK: Final = "SELECT 1 FROM leasehold_lease WHERE namespace = $1 AND name = $2 FOR UPDATE"
_MARK: Final = """
UPDATE leasehold_lease SET crowd = 2
WHERE namespace = $1 AND name = $2 AND crowd = 0 AND holder <> $3 AND expires > {now}
"""
_LOCK_HELD: Final = """
SELECT token, beat, lasts, about FROM leasehold_lease WHERE namespace = $1 AND name = $2 FOR UPDATE
"""
# Put among the others while somebody holds the name for itself, as the lease table does it. Left to that: a name that
# nobody is known to wait for, a queue of which not all is looked at, one that is out of date, who stands in it already,
# and a clock that was set back. The answer is in how many microseconds to ask again.
_QUEUE: Final = """
INSERT INTO leasehold_waiter (namespace, name, seq, holder, mode, most, since, until, address, about, lasts, delay)
SELECT $1, $2, others.seq, $3, $4, $5, {now}, {now} + {lateness} + LEAST($6, LAST_INSERT_ID(GREATEST(LEAST(
        LEAST(GREATEST(l.expires, l.closed_until) - {now}, l.lasts) + IF(ahead > {near}, ahead * {turn}, 0),
        IF(ahead = 0, {silence}, ahead * (ahead + 1) DIV 2 * {turn}),
        {silence}
    ), 1))), $7, $8, $9, $10
FROM leasehold_lease AS l CROSS JOIN (
    SELECT COUNT(*) AS ahead, COALESCE(MAX(seq), 0) + 1 AS seq,
        COALESCE(MAX(holder = $3 OR until <= {now}), 0) AS is_odd
    FROM (
        SELECT seq, holder, until FROM leasehold_waiter WHERE namespace = $1 AND name = $2 ORDER BY seq LIMIT {depth}
    ) AS first
) AS others
WHERE l.namespace = $1 AND l.name = $2 AND l.holder <> $3 AND l.expires > {now} AND l.turn_since <= {now}
    AND l.crowd = 2 AND ahead < {depth} AND NOT is_odd
"""
# Not if the next in the queue must be told that it is the first now: that is left to the lease table.
_TAKE_TURN: Final = """
UPDATE leasehold_lease SET token = LAST_INSERT_ID(GREATEST(token + 1, {now})), turn_since = {now}, since = {now},
    expires = {now} + $4, lasts = $4, beat = 0, delay = $5, about = $6,
    crowd = IF(EXISTS (SELECT 1 FROM leasehold_waiter WHERE namespace = $1 AND name = $2 AND holder <> $3), 2, 0),
    holder = $3
WHERE namespace = $1 AND name = $2 AND crowd = 2 AND closed_until <= {now}
    AND (holder IS NULL OR (expires <= {now} AND delay = 0))
    AND $3 = (SELECT w.holder FROM leasehold_waiter AS w WHERE w.namespace = $1 AND w.name = $2 AND w.until > {now}
        ORDER BY w.seq LIMIT 1)
    AND NOT EXISTS (SELECT 1 FROM (
        SELECT w.until FROM leasehold_waiter AS w
        WHERE w.namespace = $1 AND w.name = $2 AND w.holder <> $3 AND w.until > {now} ORDER BY w.seq LIMIT 1
    ) AS next WHERE next.until > {now} + $4 + {late})
"""
_LEAVE_QUEUE: Final = """
DELETE FROM leasehold_waiter WHERE namespace = $1 AND name = $2 AND holder = $3
AND EXISTS (SELECT 1 FROM leasehold_lease AS l WHERE l.namespace = $1 AND l.name = $2 AND l.holder = $3)
"""
# Who is the first in the queue, where it listens if anybody does there, and whether it has asked only a moment ago:
# then it is granted the name by the one who gives it back. Who has waited for longer is told to come for it.
_FIND_NEXT: Final = """
SELECT w.seq, w.holder, w.lasts, w.delay, w.about, IF({hears}, w.address, NULL), IF(
    {hears} AND w.mode = 'exclusive' AND l.token < {now}
    AND w.since <= {now} AND {now} < w.since + LEAST({prompt}, w.lasts DIV 8)
    AND COALESCE((
        SELECT n.until FROM leasehold_waiter AS n
        WHERE n.namespace = $1 AND n.name = $2 AND n.seq > w.seq AND n.until > {now} ORDER BY n.seq LIMIT 1
    ) <= {now} + w.lasts + {late}, TRUE), w.holder, NULL)
INTO @leasehold_seq, @leasehold_head, @leasehold_lasts, @leasehold_delay, @leasehold_about, @leasehold_ear,
    @leasehold_next
FROM leasehold_lease AS l LEFT JOIN leasehold_waiter AS w ON w.namespace = $1 AND w.name = $2 AND w.until > {now}
WHERE l.namespace = $1 AND l.name = $2 ORDER BY w.seq LIMIT 1 FOR UPDATE
"""
_HEARS: Final = (
    "(l.holder = $3 AND l.closed_until <= {now} AND w.address LIKE 'lh:%' AND IS_USED_LOCK(w.address) IS NOT NULL)"
)
# An insert id of 1 says that nobody waits any more.
_RELEASE_TO_NEXT: Final = """
UPDATE leasehold_lease SET
    token = IF({handed}, GREATEST(token + 1, {now}), token), turn_since = {now}, since = IF({handed}, {now}, since),
    expires = IF({handed}, {now} + @leasehold_lasts, expires), lasts = IF({handed}, @leasehold_lasts, lasts),
    beat = IF({handed}, 0, beat), delay = IF({handed}, @leasehold_delay, delay),
    about = IF({handed}, @leasehold_about, about),
    crowd = IF(@leasehold_head IS NULL AND NOT EXISTS (
        SELECT 1 FROM leasehold_waiter AS w WHERE w.namespace = $1 AND w.name = $2), LAST_INSERT_ID(1) - 1, crowd),
    holder = @leasehold_next
WHERE namespace = $1 AND name = $2 AND holder = $3 AND crowd IN (0, 2) AND expires > {now}
"""
_UNQUEUE_NEXT: Final = """
DELETE FROM leasehold_waiter
WHERE namespace = $1 AND name = $2 AND seq = @leasehold_seq AND holder = @leasehold_next
AND EXISTS (SELECT 1 FROM leasehold_lease AS l WHERE l.namespace = $1 AND l.name = $2 AND l.holder = @leasehold_next)
"""
# Behind the commit: others see what is committed before it is on the disk, and of a grant nobody may hear until it is.
_TELL_NEXT: Final = """
INSERT INTO leasehold_wake (address, letter, holder, since)
SELECT @leasehold_ear, $3, IF({handed}, CONCAT(@leasehold_next, ' ', l.token), @leasehold_head), {now}
FROM leasehold_lease AS l
WHERE l.namespace = $1 AND l.name = $2 AND l.holder <=> @leasehold_next AND @leasehold_ear IS NOT NULL
"""


def queue_statements(now: str) -> dict[str, str]:
    """The texts, by name; `now` is an expression for the server's time."""
    limits = {"depth": USUAL_DEPTH, "near": NEAR, "turn": TURN, "silence": LONGEST_SILENCE, "lateness": LATENESS}
    late, handed = LATENESS + SLACK, "@leasehold_next IS NOT NULL"
    return {
        "lock": _LOCK,
        "mark": _MARK.format(now=now),
        "lock_held": _LOCK_HELD,
        "queue_up": _QUEUE.format(now=now, **limits),
        "take_turn": _TAKE_TURN.format(now=now, late=late),
        "leave_queue": _LEAVE_QUEUE,
        "find_next": _FIND_NEXT.format(now=now, late=late, prompt=PROMPT, hears=_HEARS.format(now=now)),
        "release_to_next": _RELEASE_TO_NEXT.format(now=now, handed=handed),
        "unqueue_next": _UNQUEUE_NEXT,
        "tell_next": _TELL_NEXT.format(now=now, handed=handed),
    }
