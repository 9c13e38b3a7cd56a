"""What SQL servers are told where a name has a queue: to be queued, to be served, and to pass a name on.

The first of a queue stand in the name's own row, as texts of which each place has so many. So each of these steps
changes a single row, and a step that has waited for another one decides anew, by what the row says then. That goes for
nothing but the row itself: whoever looks at other rows as well must lock this one first, as the lease table does, to
which everything is left that is not as usual. Places behind the first ones are in a table of their own. None of those
in the row runs out before `lapses`; when that is over, the lease table looks who has, and moves it on.

How a text is found in the row, each kind of server has words of its own for. Some carry out assignments one after the
other: what is looked at comes before it is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasehold.core.table import LATENESS, LONGEST_SILENCE, NEAR, PROMPT, SLACK, TURN
from leasehold.wires.sql_table import BEYOND, FIELDS, FRONT
from leasehold.wires.sqlite_rows import QUEUE

_PLACE: Final = ("holder", "mode", "most", "since", "until", "address", "about", "lasts", "delay")
_ASK_AGAIN: Final = """greatest(least(
        least(greatest(expires, closed_until) - {now}, lasts)
            + CASE WHEN {rank} > {near} THEN {rank} * {turn} ELSE 0 END,
        CASE WHEN {rank} = 0 THEN {silence} ELSE {rank} * ({rank} + 1) {div} 2 * {turn} END, {silence}
    ), 1)"""
# Put among the others while somebody holds the name for itself, as the lease table does it. Left to that: who finds no
# place in the row, a queue that is out of date, who stands in it already, and a clock that was set back.
_QUEUE: Final = """
UPDATE {prefix}lease SET front = {appended},
    lapses = CASE WHEN crowd = 0 THEN {now} + {lateness} ELSE least(lapses, {now} + {lateness}) END, crowd = {queue}
WHERE {named} AND holder <> $3 AND expires > {now} AND turn_since <= {now} AND crowd IN (0, {queue})
    AND {waiting} < {room} AND (crowd = 0 OR lapses > {now}) AND {is_not_in_row}
"""
# Not if the next in the queue must be told that it is the first now: that is left to the lease table.
_TAKE_TURN: Final = """
UPDATE {prefix}lease SET
    token = {minted}, turn_since = {now}, since = {now}, expires = {now} + $4, lasts = $4, beat = 0, delay = $5,
    about = $6, holder = $3, crowd = {crowd_behind_head}, front = {behind_head}
WHERE {named} AND {head_holder} = $3 AND {can_move_up} AND closed_until <= {now}
    AND {nobody_holds_it} AND lapses > {now}
    AND ({second_until} > {now} + $4 + {late}) IS NOT TRUE
"""
# Who has asked only a moment ago is granted the name by the one who gives it back, and told so.
_HAND_OVER: Final = """
UPDATE {prefix}lease SET
    token = {minted}, turn_since = {now}, since = {now}, expires = {now} + {head_lasts}, lasts = {head_lasts},
    beat = 0, delay = {head_delay}, about = {head_about}, told = {head_address}{signed}, holder = {head_holder},
    crowd = {crowd_behind_head}, front = {behind_head}
WHERE {named} AND holder = $3 AND {can_move_up} AND expires > {now} AND closed_until <= {now} AND token < {now}
    AND {head_mode} = 'exclusive' AND {head_since} <= {now}
    AND {now} < {head_since} + least({prompt}, {head_lasts} {div} 8) AND lapses > {now}
    AND ({second_until} > {now} + {head_lasts} + {late}) IS NOT TRUE AND {is_not_in_row}
    AND CASE WHEN {is_address} THEN {hears} ELSE false END
"""
# Who has waited for longer is told to come for it. To whom nobody listens, the empty word was told; who cannot be told
# anything, nothing.
_RELEASE_TO_NEXT: Final = """
UPDATE {prefix}lease SET holder = NULL, turn_since = {now}, told = CASE WHEN closed_until <= {now} AND {is_address} THEN
    CASE WHEN {hears} THEN {head_address} ELSE '' END END{signed}, crowd = {crowd_found}
WHERE {named} AND holder = $3 AND expires > {now} AND {is_not_in_row} AND (
    crowd = 0 OR (crowd IN ({queue}, {queue_and_beyond}) AND {head_holder} <> '' AND lapses > {now}))
"""


_TEXTS: Final = {
    "queue": _QUEUE,
    "take_turn": _TAKE_TURN,
    "hand_over": _HAND_OVER,
    "release_to_next": _RELEASE_TO_NEXT,
}


def queue_words(prefix: str, now: str, text_at: Callable[[int], str], number: str, div: str) -> dict[str, str]:
    """Words that a server's own are made of: `now` is an expression for its time, `prefix` what tables begin with.

    `text_at` finds the text at a position in the row, counted from one; behind the last there is none, or the empty
    one. `number` makes a number of a text, and `div` divides whole ones.
    """
    second = f"({text_at(FIELDS + 1)} <> '')"
    words = {f"head_{what}": text_at(at) for at, what in enumerate(_PLACE, 1)}
    words |= {f"head_{what}": number.format(words[f"head_{what}"]) for what in ("since", "lasts", "delay")}
    return {
        **words,
        "prefix": prefix,
        "now": now,
        "div": div,
        "named": "namespace = $1 AND name = $2",
        "second_until": number.format(text_at(FIELDS + 1 + _PLACE.index("until"))),
        # The last place in the row is not taken away while others stand beyond it: who they are, the row does not say.
        "can_move_up": f"(crowd = {QUEUE} OR (crowd = {QUEUE | BEYOND} AND {second}))",
        "crowd_behind_head": f"CASE WHEN {second} THEN crowd ELSE 0 END",
        "lateness": str(LATENESS),
        "late": str(LATENESS + SLACK),
        "prompt": str(PROMPT),
        "room": str(FRONT),
        "queue": str(QUEUE),
        "queue_and_beyond": str(QUEUE | BEYOND),
    }


def ask_again(words: dict[str, str], rank: str) -> str:
    """In how many microseconds one shall ask again who has so many before it."""
    limits = {"silence": LONGEST_SILENCE, "turn": TURN, "near": NEAR}
    return _ASK_AGAIN.format(now=words["now"], div=words["div"], rank=f"({rank})", **limits)


def queue_texts(words: dict[str, str]) -> dict[str, str]:
    """The texts, by name, in the words of `queue_words` and those that each kind of server has for itself."""
    return {name: text.format(**words) for name, text in _TEXTS.items()}
