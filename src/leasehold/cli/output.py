r"""What the command says, and to whom: answers go to stdout, everything else to stderr in one line.

Names and labels are foreign data: `visible` takes away what could steer a terminal. Passwords never get out: whatever
looks like one in the arguments or in ``LEASEHOLD_URL`` is masked in every line that is written here.

>>> visible("a\x1b[2Jb")
'a\\x1b[2Jb'
>>> mask("cannot use redis://:hunter22@host/0?password=hunter33")
'cannot use redis://:***@host/0?password=***'
>>> mask("the shape is mysql://user[:password]@host[:port]/database")
'the shape is mysql://user[:password]@host[:port]/database'
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Sequence

_MASK = "***"
_LEAST_SECRET = 4
"""A shorter secret is masked where a URL shows it, but not wherever its letters occur."""
_USER_INFO = re.compile(r"(://[^\s/?#:@]*:)(\S*)(?=@)")
_PARAMETER = re.compile(r"([?&;][^=&#\s]*(?:pass|pwd|secret|auth|key)[^=&#\s]*=)([^&#\s'\"]*)", re.IGNORECASE)
_SHAPES = frozenset({"://user:password", "://[user:password", "://user[:password]", "://[user[:password]"})
"""How messages show where a password belongs. That is to be read."""
_secrets: set[str] = set()


def visible(text: str) -> str:
    """Text that shows as it is: control characters, bidi marks and the like are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def guard_secrets(texts: Iterable[str]) -> None:
    """From now on mask the passwords that these texts contain, in each form in which they may turn up again."""
    from urllib.parse import quote, unquote

    for text in texts:
        for pattern in (_USER_INFO, _PARAMETER):
            for found in pattern.finditer(text):
                plain = unquote(found[2])
                forms = {found[2], plain, quote(plain), quote(plain, safe="")}
                _secrets.update(form for form in forms | {ascii(f)[1:-1] for f in forms} if len(form) >= _LEAST_SECRET)


def mask(text: str) -> str:
    """The text without passwords: those of URLs in it, and those that were announced to `guard_secrets`."""
    masked = _USER_INFO.sub(lambda found: found[0] if found[0] in _SHAPES else found[1] + _MASK, text)
    masked = _PARAMETER.sub(rf"\1{_MASK}", masked)
    for secret in sorted(_secrets, key=len, reverse=True):
        masked = _without(secret, masked)
    return masked


def _without(secret: str, text: str) -> str:
    """Messages cut long values: the beginning of a secret that a cut ended is masked as well."""
    found = text.find(secret[:_LEAST_SECRET])
    while found >= 0:
        size = next((n for n, (a, b) in enumerate(zip(secret, text[found:], strict=False)) if a != b), None)
        size = min(len(secret), len(text) - found) if size is None else size
        after = found + size
        if size == len(secret) or text[after : after + 1] in ("", "'", '"', "…"):
            text, after = text[:found] + _MASK + text[after:], found + len(_MASK)
        found = text.find(secret[:_LEAST_SECRET], after)
    return text


def say(message: str) -> None:
    """One line for people, on stderr."""
    _write_line(f"leasehold: {message}")


def complain(command: str, message: str) -> None:
    """One line on what was wrong, on stderr."""
    _write_line(f"{command}: {message}")


def _write_line(line: str) -> None:
    try:
        sys.stderr.write(visible(mask(" ".join(line.split()))) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # nobody listens (a closed terminal); the exit code still tells


def one_line_logs() -> None:
    """Let what the library logs or warns of look like the rest."""
    import warnings

    class OneLine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            say(record.getMessage() + (f": {type(error).__name__}: {error}" if error is not None else ""))

    logger = logging.getLogger("leasehold")
    logger.handlers = [OneLine(logging.WARNING)]
    logger.propagate = False

    warnings.showwarning = _show_warning  # type: ignore[assignment]  # the place in the source is of no use to people


def _show_warning(message: Warning | str, *_where: object) -> None:
    say(f"warning: {message}")


class HeldBack:
    """Warnings about the deployment, kept until it is known whether somebody is to read them."""

    def __init__(self, *, for_good: bool) -> None:
        """From now on keep what would be shown; `for_good` when nobody wants to read it in any case."""
        import warnings

        self._for_good, self._kept = for_good, list[str]()
        warnings.showwarning = self._keep  # type: ignore[assignment]

    def _keep(self, message: Warning | str, *_where: object) -> None:
        self._kept.append(str(message))

    def tell(self) -> None:
        """Show what was kept, and what comes later at once."""
        import warnings

        if self._for_good:
            return
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        while self._kept:
            _show_warning(self._kept.pop(0))


def duration(seconds: float) -> str:
    """A duration for people: ``4.2s``, ``3m 05s``, ``2h 10m``, ``3d 4h``."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def tick_text(key: str) -> str:
    """A tick for people: without the fractions of a second that nearly none has.

    >>> tick_text("2026-03-01T12:30:00.000000+00:00")
    '2026-03-01T12:30:00+00:00'
    """
    return key.replace(".000000", "")


def write_json(value: object) -> None:
    """One object on one line of stdout, in plain ASCII, so that nothing in it can steer a terminal."""
    import json

    sys.stdout.write(json.dumps(value, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence."""
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)
