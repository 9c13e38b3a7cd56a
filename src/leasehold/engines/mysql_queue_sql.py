"""What MySQL and MariaDB are told where a name has a queue, in their own words: the row has one text of many words.

A statement answers how many rows it has changed, and one number (LAST_INSERT_ID): the token, when to ask again, or
whether others wait. What else is wanted of the row is asked for behind it, in the same request.
"""

from __future__ import annotations

from typing import Final

from leasehold.engines.sql_queue import ask_again, queue_texts, queue_words
from leasehold.wires.mysql_ear import ADDRESS_DIGITS
from leasehold.wires.mysql_tables import PREFIX, text_at
from leasehold.wires.sql_table import FIELDS

_WAITING: Final = f"(LENGTH(front) - LENGTH(REPLACE(front, ' ', ''))) DIV {FIELDS}"
_APPENDED: Final = """CONCAT(
    front, $3, ' ', $4, ' ', $5, ' ', {now}, ' ', {now} + LEAST($6, LAST_INSERT_ID({ask_again})) + {lateness}, ' ',
    $7, ' ', HEX($8), ' ', $9, ' ', $10, ' ')"""
_WORDS: Final = {
    "waiting": _WAITING,
    "behind_head": f"SUBSTRING(front, LENGTH(SUBSTRING_INDEX(front, ' ', {FIELDS})) + 2)",
    "is_not_in_row": "LOCATE(CONCAT(' ', $3, ' '), CONCAT(' ', front)) = 0",
    "minted": "LAST_INSERT_ID(GREATEST(token + 1, {now}))",
    # Whether a lease has run out is left to the lease table: if the clock was set back while this waited for the row,
    # one that was granted meanwhile seems to have.
    "nobody_holds_it": "holder IS NULL",
    "signed": ", letter = $4",
    "crowd_found": "LAST_INSERT_ID(crowd)",
    "is_address": "{head_address} LIKE 'lh:%'",
    "hears": "IS_USED_LOCK({head_address}) IS NOT NULL",
    "head_about": "UNHEX({head_about})",
    "appended": _APPENDED,
}
_LOCK: Final = "SELECT 1 FROM {prefix}lease WHERE {named} FOR UPDATE"
# One column: each is described before its rows come, to whoever reads them.
_INCUMBENT: Final = """
SELECT CONCAT(token, ' ', beat, ' ', lasts, ' ', about) FROM {prefix}lease WHERE {named} AND holder IS NOT NULL
"""
# Behind the commit: others see what is committed before it is on the disk, and of a grant nobody may hear until it is.
# The number that is left is what the address is made of, for whoever ends the wait there.
_TELL: Final = """
INSERT INTO {prefix}wake (address, letter, holder, since)
SELECT IF(LAST_INSERT_ID(CONV(RIGHT(told, {digits}), 16, 10)), told, ''), $3, {said}, {now}
FROM {prefix}lease WHERE {named} AND letter = $3 AND {still} AND told <> ''
"""


def queue_statements(now: str) -> dict[str, str]:
    """The texts, by name; `now` is an expression for the server's time."""
    words = queue_words(PREFIX, now, text_at, "CAST(CONCAT('0', {}) AS SIGNED)", "DIV")
    words["ask_again"] = ask_again(words, _WAITING)
    words |= {name: word.format(**words) for name, word in _WORDS.items()}
    handed = {"said": "CONCAT(holder, ' ', token)", "still": "token = LAST_INSERT_ID()"}
    next_one = {"said": words["head_holder"], "still": f"holder IS NULL AND told = {words['head_address']}"}
    texts = queue_texts(words)
    return {
        **texts,
        "lock": _LOCK.format(**words),
        "incumbent": _INCUMBENT.format(**words),
        "tell_handed": _TELL.format(digits=ADDRESS_DIGITS, **words, **handed),
        "tell_next": _TELL.format(digits=ADDRESS_DIGITS, **words, **next_one),
    }
