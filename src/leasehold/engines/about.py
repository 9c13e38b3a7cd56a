"""What an attempt tells people of itself: the value of its key in etcd or Consul, the data of its node in ZooKeeper."""

from __future__ import annotations

import functools
import json
from typing import Final, NamedTuple

from leasehold.core.engine import Want

MOST_TEXT: Final = 200


class About(NamedTuple):
    """What is told; nothing, unless somebody else wrote there."""

    about: str = ""
    since: float = 0.0
    """When it asked, by the wall clock of its host."""
    until: float = 0.0
    """Until when it is patient."""
    ttl: float = 0.0
    limit: int = 1
    delay: float = 0.0
    """For how long the name stays closed after a loss."""


def value_of(want: Want, now: float, patience: float | None, *, with_mode: bool) -> bytes:
    """What is stored. People see it with ``etcdctl get --prefix leasehold/``, or ``zkCli.sh get``.

    `with_mode`: etcd and Consul show the mode in words, ZooKeeper only as the first letter of the node's name.
    """
    # Written by hand: every lease comes by here, and all but one text in it are numbers.
    mode = f'"mode":"{want.mode}",' if with_mode else ""
    since, until = round(now, 3), round(now + (patience or 0.0), 3)
    delay = f',"delay":{want.delay}' if want.delay else ""
    times = f'"since":{since},"until":{until},"ttl":{want.ttl}'
    return f'{{"about":{_quoted(want.about)},{mode}{times},"limit":{want.limit}{delay}}}'.encode()


@functools.lru_cache(maxsize=64)
def _quoted(about: str) -> str:
    """A text in JSON; a client says the same of itself each time."""
    return json.dumps(about)


def about_in(value: bytes) -> About:
    """Read what is stored. Whoever may write there may have written anything, and nothing here depends on it."""
    try:
        text = json.loads(value)
        return About(
            str(text["about"])[:MOST_TEXT],
            float(text["since"]),
            float(text["until"]),
            float(text["ttl"]),
            int(text["limit"]),
            float(text.get("delay", 0.0)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return About()
