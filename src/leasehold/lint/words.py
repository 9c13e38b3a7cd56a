"""Which names speak of a lock. Names are weak evidence: rules ask for them together with what the code does.

>>> [speaks_of_lock(text) for text in ("f'lock:{job}'", "userLockKey", "block_size", "clock")]
[True, True, False, False]
>>> [names_lock(text) for text in ("stats_lock", "lock:stats", "lock_stats", "lockWaitTotal", "locked_until")]
[True, True, False, False, False]
>>> [names_flag(text) for text in ("account_lock:", "user:{}:locked", "lock:account:", "job_locked")]
[True, True, False, False]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
# What is told about a lock, right after it: ``lock_stats`` is none, and ``stats_lock`` and ``lock:stats`` may well be.
_ABOUT = frozenset(
    {
        "at", "attempts", "contention", "count", "counter", "counters", "counts", "down", "duration", "durations",
        "expiry", "failures", "history", "info", "latency", "metric", "metrics", "out", "reason", "screen", "since",
        "statistics", "stats", "step", "timeout", "timeouts", "total", "totals", "ttl", "until", "wait", "waiters",
        "waiting", "waits",
    }
)  # fmt: skip
# What is locked for people, who are then kept out, and not for processes, which then take turns.
_ENTRANCES = frozenset({"account", "accounts", "login", "logins", "password", "signin"})
_KEPT_OUT = _ENTRANCES | {"user", "users", "customer", "customers", "member", "members"}


@lru_cache(maxsize=8192)
def words_of(text: str) -> frozenset[str]:
    """The words in a name, a string or an expression: split at case changes and at everything that is no letter."""
    return frozenset(word.lower() for word in _WORD.findall(text))


def speaks_of_lock(text: str) -> bool:
    """Whether one of the words is a lock, by itself or as the beginning or end of a longer word."""
    return any(_is_lock_word(word) for word in words_of(text))


def names_lock(text: str) -> bool:
    """Whether a key can be a lock's by its name: it speaks of a lock, and not only of something about one."""
    return any(after not in _ABOUT for _, _, after in _lock_words(text))


def names_flag(text: str) -> bool:
    """Whether a key that names a lock may as well be a flag that keeps a person out: ``account_lock``."""
    people = words_of(text) & _KEPT_OUT
    return all(
        before in _ENTRANCES or (word == "locked" and people)
        for before, word, after in _lock_words(text)
        if after not in _ABOUT
    )


def _lock_words(text: str) -> Iterator[tuple[str, str, str]]:
    """Each word that is a lock, between the words that it is joined to."""
    found = list(_WORD.finditer(text))
    for before, this, after in zip([None, *found], found, [*found[1:], None], strict=False):
        if _is_lock_word(this[0].lower()):
            yield _joined(text, before, this), this[0].lower(), _joined(text, this, after, last=True)


def _joined(text: str, first: re.Match[str] | None, second: re.Match[str] | None, *, last: bool = False) -> str:
    """The first of two words, or the last, if only a dash or nothing stands between them."""
    if first is None or second is None or text[first.end() : second.start()] not in ("", "_", "-"):
        return ""
    return (second if last else first)[0].lower()


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
