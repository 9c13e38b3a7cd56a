r"""What may be a name, a duration or a token. Everything wrong is refused here, before any I/O.

>>> check_name("nightly-export")
'nightly-export'
>>> check_name("a\nb")
Traceback (most recent call last):
    ...
leasehold.errors.InvalidName: name 'a\nb' contains the control character U+000A at position 1; use printable text
"""

from __future__ import annotations

import math
import unicodedata

from leasehold.errors import InvalidName, InvalidToken, InvalidTTL, InvalidWait, quoted

LONGEST_NAME_BYTES = 255
LONGEST_TTL = 24 * 3600.0
LONGEST_WAIT = 366 * 24 * 3600.0
HIGHEST_TOKEN = 2**63 - 1

# Control, format (bidi marks among them), lone surrogate, private use, unassigned, line and paragraph separators:
# they forge log lines or look like another name.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def check_name(name: object, *, what: str = "name") -> str:
    """Return the name, or raise `InvalidName` that says what is wrong with it and what is allowed."""
    if type(name) is not str:
        raise InvalidName(f"{what} must be exactly str, not {type(name).__name__}")
    if not name or name.isspace():
        raise InvalidName(f"{what} is empty; give 1 to {LONGEST_NAME_BYTES} bytes of printable text")
    if name.isascii() and name.isprintable():
        if len(name) > LONGEST_NAME_BYTES:
            raise InvalidName(f"{what} {quoted(name)} has {len(name)} bytes; at most {LONGEST_NAME_BYTES} are allowed")
        return name
    return _check_unusual_name(name, what)


def _check_unusual_name(name: str, what: str) -> str:
    for position, character in enumerate(name[: LONGEST_NAME_BYTES + 1]):
        if unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise InvalidName(
                f"{what} {quoted(name)} contains the control character U+{ord(character):04X} at position {position}; "
                "use printable text"
            )
    size = len(name.encode()) if len(name) <= LONGEST_NAME_BYTES else len(name)
    if size > LONGEST_NAME_BYTES:
        raise InvalidName(f"{what} {quoted(name)} has {size} bytes in UTF-8; at most {LONGEST_NAME_BYTES} are allowed")
    if unicodedata.normalize("NFC", name) != name:
        raise InvalidName(f"{what} {quoted(name)} is not in Unicode's NFC form; use unicodedata.normalize('NFC', …)")
    return name


def check_namespace(namespace: object) -> str:
    """Return the namespace; the empty one is the default."""
    return "" if type(namespace) is str and namespace == "" else check_name(namespace, what="namespace")


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def check_ttl(ttl: object, *, least: float = 0.0, what: str = "ttl") -> float:
    """Return the TTL in seconds; never rounds, never accepts "for ever"."""
    if not _is_number(ttl) or not least <= ttl <= LONGEST_TTL or ttl <= 0:  # type: ignore[operator]
        floor = f"at least {least:g}" if least else "more than 0"
        raise InvalidTTL(f"{what} must be a number of seconds, {floor} and at most {LONGEST_TTL:g}, not {quoted(ttl)}")
    return float(ttl)  # type: ignore[arg-type]


def check_wait(wait: object, *, what: str = "wait") -> float:
    """Return the wait in seconds; 0 means: try once."""
    if not _is_number(wait) or not 0 <= wait <= LONGEST_WAIT:  # type: ignore[operator]
        raise InvalidWait(f"{what} must be a number of seconds from 0 to {LONGEST_WAIT:g}, not {quoted(wait)}")
    return float(wait)  # type: ignore[arg-type]


def check_token(token: object) -> int:
    """Return the token, an exact int that fits 63 bits."""
    if type(token) is not int or not 0 <= token <= HIGHEST_TOKEN:
        raise InvalidToken(f"token must be an int from 0 to 2**63 - 1, not {quoted(token)}")
    return token
