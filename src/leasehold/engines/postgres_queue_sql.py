"""What PostgreSQL is told where a name has a queue, in its own words: the row has a list of texts.

A statement returns what it has found, and tells the one who waits when it is committed.
"""

from __future__ import annotations

from typing import Final

from leasehold.engines.sql_queue import ask_again, queue_texts, queue_words
from leasehold.wires.sql_table import FIELDS

_LAZILY: Final = "set_config('synchronous_commit', 'off', true)"
_WAITING: Final = f"cardinality(front) / {FIELDS}"
_APPENDED: Final = """front || ARRAY[
    $3, $4::text, $5::text, ({now})::text, ({now} + least($6::bigint, {ask_again}) + {lateness})::text, $7::text,
    $8::text, $9::text, $10::text]"""
_WORDS: Final = {
    "waiting": _WAITING,
    "behind_head": f"front[{FIELDS + 1}:]",
    "is_not_in_row": "$3 <> ALL (front)",
    "minted": "greatest(token + 1, {now})",
    "nobody_holds_it": "(holder IS NULL OR (expires <= {now} AND delay = 0))",
    "signed": "",
    "crowd_found": "crowd",
    "is_address": "{head_address} ~ '^leasehold_[0-9a-f]{{16}}$'",
    # Who listens holds the lock of its channel; who gets that finds nobody there, and gives it back with the end of
    # the transaction.
    "hears": "NOT pg_try_advisory_xact_lock(('x' || right({head_address}, 16))::bit(64)::bigint)",
    "appended": _APPENDED,
}
_RETURNING: Final = {
    "queue": "RETURNING {ask_again_by_now}, token, beat, lasts, about, {lazily}",
    "take_turn": "RETURNING token, holder",
    "hand_over": "RETURNING crowd, pg_notify(told, holder || ' ' || token)::text, {unless_durable}",
    "release_to_next": """
RETURNING crowd, CASE WHEN told <> '' THEN pg_notify(told, {head_holder})::text IS NOT NULL ELSE told IS NULL END,
    {lazily}, {head}""",
}


def queue_statements(prefix: str, now: str, *, durable: bool) -> dict[str, str]:
    """The texts, by name; `now` is an expression for the server's time, and `prefix` what tables begin with.

    Of a durable grant nobody hears before it is on the disk.
    """
    words = queue_words(prefix, now, "front[{}]".format, "{}::bigint", "/")
    words |= {"ask_again": ask_again(words, _WAITING), "ask_again_by_now": ask_again(words, f"{_WAITING} - 1")}
    words |= {name: word.format(**words) for name, word in _WORDS.items()}
    words |= {"lazily": _LAZILY, "unless_durable": "NULL" if durable else _LAZILY}
    words["head"] = ", ".join(f"front[{at}]" for at in range(1, FIELDS + 1))
    return {name: text + _RETURNING[name].format(**words) for name, text in queue_texts(words).items()}
