"""What PostgreSQL is told where a name has a queue: to be queued, to be served, and to pass a name on.

The first of a queue stand in the name's own row, as a list of texts in which each place has so many. So each of these
steps changes a single row, and a step that has waited for another one decides anew, by what the row says then. That
goes for nothing but the row itself: whoever looks at other rows as well must lock this one first, as the lease table
does, to which everything is left that is not as usual. Places behind the first ones are in a table of their own. None
of those in the row runs out before `lapses`; when that is over, the lease table looks who has, and moves it on.
"""

from __future__ import annotations

from typing import Final

from leasehold.core.table import LATENESS, LONGEST_SILENCE, NEAR, PROMPT, SLACK, TURN
from leasehold.wires.sql_table import BEYOND, FIELDS, FRONT
from leasehold.wires.sqlite_rows import QUEUE

_LAZILY: Final = "set_config('synchronous_commit', 'off', true)"
# Where something stands in the head of the queue, and in the one behind it.
_HOLDER, _MODE, _SINCE, _ADDRESS, _ABOUT, _LASTS, _DELAY = (f"front[{at}]" for at in (1, 2, 4, 6, 7, 8, 9))
_SECOND, _SECOND_UNTIL = f"front[{FIELDS + 1}]", f"front[{FIELDS + 5}]"
_WORDS: Final = {
    "named": "namespace = $1 AND name = $2",
    "head_holder": _HOLDER,
    "head_mode": _MODE,
    "head_since": f"{_SINCE}::bigint",
    "head_address": _ADDRESS,
    "head_about": _ABOUT,
    "head_lasts": f"{_LASTS}::bigint",
    "head_delay": f"{_DELAY}::bigint",
    "second_until": f"{_SECOND_UNTIL}::bigint",
    "head": ", ".join(f"front[{at}]" for at in range(1, FIELDS + 1)),
    "behind_head": f"front[{FIELDS + 1}:]",
    # The last place in the row is not taken away while others stand beyond it: who they are, the row does not say.
    "can_move_up": f"(crowd = {QUEUE} OR (crowd = {QUEUE | BEYOND} AND {_SECOND} IS NOT NULL))",
    "crowd_behind_head": f"CASE WHEN {_SECOND} IS NULL THEN 0 ELSE crowd END",
    "is_address": f"{_ADDRESS} ~ '^leasehold_[0-9a-f]{{16}}$'",
    # Who listens holds the lock of its channel; who gets that finds nobody there, and gives it back with the end of
    # the transaction.
    "hears": f"NOT pg_try_advisory_xact_lock(('x' || right({_ADDRESS}, 16))::bit(64)::bigint)",
}
_ASK_AGAIN: Final = """greatest(least(
        least(greatest(expires, closed_until) - {{now}}, lasts)
            + CASE WHEN {rank} > {near} THEN {rank} * {turn} ELSE 0 END,
        CASE WHEN {rank} = 0 THEN {silence} ELSE {rank} * ({rank} + 1) / 2 * {turn} END, {silence}
    ), 1)"""
# Put among the others while somebody holds the name for itself, as the lease table does it. Left to that: who finds no
# place in the row, a queue that is out of date, who stands in it already, and a clock that was set back.
_QUEUE: Final = """
UPDATE {prefix}lease SET crowd = {queue}, front = front || ARRAY[
    $3, $4::text, $5::text, ({now})::text, ({now} + least($6::bigint, {ask_again}) + {lateness})::text, $7::text,
    $8::text, $9::text, $10::text
], lapses = CASE WHEN crowd = 0 THEN {now} + {lateness} ELSE least(lapses, {now} + {lateness}) END
WHERE {named} AND holder <> $3 AND expires > {now} AND turn_since <= {now} AND crowd IN (0, {queue})
    AND cardinality(front) < {room} AND (crowd = 0 OR lapses > {now}) AND $3 <> ALL (front)
RETURNING {ask_again_by_now}, token, beat, lasts, about, {lazily}
"""
# Not if the next in the queue must be told that it is the first now: that is left to the lease table.
_TAKE_TURN: Final = """
UPDATE {prefix}lease SET
    token = greatest(token + 1, {now}), turn_since = {now}, holder = $3, since = {now}, expires = {now} + $4,
    lasts = $4, beat = 0, delay = $5, about = $6, front = {behind_head}, crowd = {crowd_behind_head}
WHERE {named} AND {head_holder} = $3 AND {can_move_up} AND closed_until <= {now}
    AND (holder IS NULL OR (expires <= {now} AND delay = 0)) AND lapses > {now}
    AND ({second_until} > {now} + $4 + {late}) IS NOT TRUE
RETURNING token, holder
"""
# Who has asked only a moment ago is granted the name by the one who gives it back, and told so.
_HAND_OVER: Final = """
UPDATE {prefix}lease SET
    token = greatest(token + 1, {now}), turn_since = {now}, holder = {head_holder}, since = {now},
    expires = {now} + {head_lasts}, lasts = {head_lasts}, beat = 0, delay = {head_delay}, about = {head_about},
    told = {head_address}, front = {behind_head}, crowd = {crowd_behind_head}
WHERE {named} AND holder = $3 AND {can_move_up} AND expires > {now} AND closed_until <= {now} AND token < {now}
    AND {head_mode} = 'exclusive' AND {head_since} <= {now}
    AND {now} < {head_since} + least({prompt}, {head_lasts} / 8) AND lapses > {now}
    AND ({second_until} > {now} + {head_lasts} + {late}) IS NOT TRUE AND $3 <> ALL (front)
    AND CASE WHEN {is_address} THEN {hears} ELSE false END
RETURNING crowd, pg_notify(told, holder || ' ' || token)::text, {unless_durable}
"""
# Who has waited for longer is told to come for it. To whom nobody listens, the empty word was told; who cannot be told
# anything, nothing.
_RELEASE_TO_NEXT: Final = """
UPDATE {prefix}lease SET holder = NULL, turn_since = {now}, told = CASE WHEN closed_until <= {now} AND {is_address} THEN
    CASE WHEN {hears} THEN {head_address} ELSE '' END END
WHERE {named} AND holder = $3 AND expires > {now} AND $3 <> ALL (front) AND (
    crowd = 0 OR (crowd IN ({queue}, {queue_and_beyond}) AND front <> '{{}}' AND lapses > {now}))
RETURNING crowd, CASE WHEN told <> '' THEN pg_notify(told, {head_holder})::text IS NOT NULL ELSE told IS NULL END,
    {lazily}, {head}
"""


def queue_statements(prefix: str, now: str, *, durable: bool) -> dict[str, str]:
    """The texts, by name; `now` is an expression for the server's time, and `prefix` what tables begin with.

    Of a durable grant nobody hears before it is on the disk.
    """
    words = {"prefix": prefix, "now": now, "lazily": _LAZILY, "late": LATENESS + SLACK, **_WORDS}
    words |= {"queue": QUEUE, "queue_and_beyond": QUEUE | BEYOND}
    waiting = f"cardinality(front) / {FIELDS}"
    limits = {"silence": LONGEST_SILENCE, "turn": TURN, "near": NEAR}
    ask_again = _ASK_AGAIN.format(rank=f"({waiting})", **limits).format(now=now)
    by_now = _ASK_AGAIN.format(rank=f"({waiting} - 1)", **limits).format(now=now)
    return {
        "queue": _QUEUE.format(
            ask_again=ask_again, ask_again_by_now=by_now, lateness=LATENESS, room=FRONT * FIELDS, **words
        ),
        "take_turn": _TAKE_TURN.format(**words),
        "hand_over": _HAND_OVER.format(prompt=PROMPT, unless_durable="NULL" if durable else _LAZILY, **words),
        "release_to_next": _RELEASE_TO_NEXT.format(**words),
    }
