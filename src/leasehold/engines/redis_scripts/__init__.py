"""The Redis engine's scripts: one an operation, constants, run by their digest.

Each is put together from parts that stand beside this file: how every script begins, a shortcut for the usual case, the
lease table, and the operation itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

KEYS: Final = 6
"""How many keys one name has; every script is given them all."""


class Script(NamedTuple):
    """One operation, ready to be followed by its keys and arguments in the protocol's form."""

    text: str
    by_digest: bytes
    by_text: bytes
    """For a server that does not know the script (yet, or since it restarted); it then does."""


def text_of(*parts: str) -> str:
    """Put a script together."""
    folder = Path(__file__).parent
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts)


def _script(text: str, arguments: int) -> Script:
    body = text.encode()
    digest = hashlib.sha1(body, usedforsecurity=False).hexdigest().encode()
    count = 3 + KEYS + arguments
    by_digest = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%d\r\n" % (count, digest, KEYS)
    by_text = b"*%d\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n$1\r\n%d\r\n" % (count, len(body), body, KEYS)
    return Script(text, by_digest, by_text)


_TAKE = text_of("begin", "take_idle", "table", "take")
TAKE: Final = _script(_TAKE, arguments=8)
TAKE_OR_QUEUE: Final = _script(_TAKE, arguments=12)
RENEW: Final = _script(text_of("begin", "table", "renew"), arguments=3)
RELEASE: Final = _script(text_of("begin", "release_alone", "table", "release"), arguments=1)
FORCE_RELEASE: Final = _script(text_of("begin", "table", "force_release"), arguments=1)
STATUS: Final = _script(text_of("begin", "status"), arguments=0)
