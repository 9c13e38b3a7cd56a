"""Which servers make a quorum: from a URL, or from a list of URLs and client objects.

As with one server, nothing of a URL is ever quoted in a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from leasehold.errors import InvalidURL, Misuse
from leasehold.names import LONGEST_TTL
from leasehold.wires import urls
from leasehold.wires.redis_client import target_from_client
from leasehold.wires.redis_target import Target, target_from_url, targets_of_each_host
from leasehold.wires.urls import Hidden, Refused

FEWEST, MOST = 3, 9
DEFAULT_LONGEST_TTL = 60.0
_LONGEST_TTL: Final = "longest_ttl="
_SCHEMES: Final = {"redlock": "redis", "redlocks": "rediss"}
_SHAPE: Final = "redlock://[user:password@]host[:port],host[:port],host[:port][/database][?longest_ttl=60]"


class Servers(NamedTuple):
    """The servers, and the longest TTL that any program asks them for."""

    targets: tuple[Target, ...]
    longest_ttl: float

    @property
    def address(self) -> str:
        """The whole as people write it, without a secret."""
        schemes = {target.address.partition("://")[0] for target in self.targets}
        databases = {target.database for target in self.targets}
        if len(databases) > 1 or not schemes < {"redis", "rediss"}:
            return "redlock:" + ",".join(target.address for target in self.targets)
        scheme = "redlock" if schemes == {"redis"} else "redlocks"
        database = f"/{self.targets[0].database}" if self.targets[0].database else ""
        return f"{scheme}://{','.join(str(target.endpoints[0]) for target in self.targets)}{database}"


def servers_from(on: object) -> Servers:
    """Understand what the caller gave, or say what is wrong with it."""
    if isinstance(on, str):
        on = Hidden(on)
        return _checked(*_from_url(on))
    if isinstance(on, Iterable):
        targets = [target_from_url(one) if isinstance(one, str) else target_from_client(one) for one in on]
        return _checked(targets, DEFAULT_LONGEST_TTL)
    raise Misuse(f"a quorum is a URL, or a list of URLs and client objects, not {type(on).__name__}; {_SHAPE}")


@urls.reader_of("a quorum of Redis servers")
def _from_url(url: str) -> tuple[list[Target], float]:
    parts = urls.parts(url, _SCHEMES)
    options = parts.query.split("&") if parts.query else []
    ours = [option for option in options if option.startswith(_LONGEST_TTL)]
    theirs = "&".join(option for option in options if option not in ours)
    if len(ours) > 1:
        raise Refused("an option is given twice")
    longest = _longest_ttl(ours[0].removeprefix(_LONGEST_TTL)) if ours else DEFAULT_LONGEST_TTL
    return targets_of_each_host(parts._replace(scheme=_SCHEMES[parts.scheme], query=theirs)), longest


def _longest_ttl(text: str) -> float:
    seconds = float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else 0.0
    if not 1 <= seconds <= LONGEST_TTL:
        raise Refused(f"longest_ttl is a number of seconds from 1 to {LONGEST_TTL:g}")
    return seconds


def _checked(targets: Sequence[Target], longest_ttl: float) -> Servers:
    if not FEWEST <= len(targets) <= MOST:
        raise InvalidURL(f"a quorum has {FEWEST} to {MOST} servers, best 3 or 5, and not {len(targets)}; {_SHAPE}")
    if any(target.service is not None for target in targets):
        raise InvalidURL("a quorum is made of single servers; what Sentinel fails over to may lack the latest tokens")
    if len({target.endpoints for target in targets}) < len(targets):
        raise InvalidURL("a quorum names one server twice; each must stand alone, or a majority would be none")
    return Servers(tuple(targets), longest_ttl)
