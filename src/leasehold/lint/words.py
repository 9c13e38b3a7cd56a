"""Which names speak of a lock. Names are weak evidence: rules ask for them together with what the code does.

>>> [speaks_of_lock(text) for text in ("f'lock:{job}'", "userLockKey", "block_size", "clock")]
[True, True, False, False]
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LOCK_WORDS = frozenset({"mutex", "mutexes", "lease", "leases", "semaphore", "leader", "leadership"})
# Words that contain "lock" and have nothing to do with exclusion.
_OTHER = frozenset(
    {
        "block", "blocks", "blocked", "blocking", "clock", "clocks", "unblock", "unlocked", "locker", "lockout",
        "lockdown", "lockfile", "padlock", "gridlock", "sherlock", "deadlock", "deadlocks", "livelock", "interlock",
        "poetrylock", "subblock", "codeblock", "textblock", "superblock", "nonblock", "wallclock", "killswitch",
        "lockstep", "datablock", "airlock", "monotonicclock", "blocklist", "lockedin",
    }
)  # fmt: skip


@lru_cache(maxsize=8192)
def words_of(text: str) -> frozenset[str]:
    """The words in a name, a string or an expression: split at case changes and at everything that is no letter."""
    return frozenset(word.lower() for word in _WORD.findall(text))


def speaks_of_lock(text: str) -> bool:
    """Whether one of the words is a lock, by itself or as the beginning or end of a longer word."""
    return any(_is_lock_word(word) for word in words_of(text))


def is_called_lock(name: str) -> bool:
    """Whether the last word of a name is a lock: ``job_lock``, not ``lock_path`` or ``lease_ids``."""
    found = _WORD.findall(name)
    last = found[-1].lower() if found else ""
    return last != "locked" and not name[:1].isupper() and _is_lock_word(last)


def _is_lock_word(word: str) -> bool:
    if word in _LOCK_WORDS:
        return True
    if word in _OTHER or word.endswith(("block", "clock")):
        return False
    return word.endswith(("lock", "locks")) or (word.startswith("lock") and len(word) > 3)


def speaks_of(text: str, *wanted: str) -> bool:
    """Whether one of the wanted words (or a word that begins with it) is in the text."""
    return any(word.startswith(wanted) for word in words_of(text))
