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
    """One operation. Its two beginnings are to be followed by keys and arguments, all in the protocol's form."""

    text: str
    by_digest: str
    by_text: str
    """For a server that does not know the script (yet, or since it restarted); it then does."""

    def with_text(self, request: str) -> str:
        """The same request, bringing the script along."""
        return self.by_text + request.removeprefix(self.by_digest)


def text_of(*parts: str) -> str:
    """Put a script together."""
    folder = Path(__file__).parent
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts)


def _script(text: str, arguments: int) -> Script:
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    start = f"*{3 + KEYS + arguments}\r\n"
    count = argument(str(KEYS))
    by_digest = start + argument("EVALSHA") + argument(digest) + count
    return Script(text, by_digest, start + argument("EVAL") + argument(text) + count)


def argument(text: str) -> str:
    """One argument in the protocol's form."""
    return f"${len(text.encode())}\r\n{text}\r\n"


_TAKE = text_of("begin", "take_idle", "queue", "take_turn", "telling", "table", "take")
TAKE: Final = _script(_TAKE, arguments=6)
TAKE_OR_QUEUE: Final = _script(_TAKE, arguments=10)
RENEW: Final = _script(text_of("begin", "telling", "table", "renew"), arguments=3)
RELEASE: Final = _script(
    text_of("begin", "release_alone", "telling", "release_to_next", "table", "release"), arguments=1
)
FORCE_RELEASE: Final = _script(text_of("begin", "telling", "table", "force_release"), arguments=1)
STATUS: Final = _script(text_of("begin", "status"), arguments=0)
