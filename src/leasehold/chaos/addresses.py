"""Finding the addresses in an engine's URL, and putting others in their place, so that proxies can stand between.

>>> addresses("redis://:secret@cache.example:6380/0")
[('cache.example', 6380)]
>>> addresses("etcd://[::1]:2379,other/prefix")
[('::1', 2379), ('other', 2379)]
>>> with_addresses("etcd://one,two/prefix?x=1", ["127.0.0.1:1001", "127.0.0.1:1002"])
'etcd://127.0.0.1:1001,127.0.0.1:1002/prefix?x=1'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_PORTS: Final = {
    "redis": 6379,
    "valkey": 6379,
    "redlock": 6379,
    "postgresql": 5432,
    "postgres": 5432,
    "postgresql+session": 5432,
    "mysql": 3306,
    "mariadb": 3306,
    "mysql+session": 3306,
    "mariadb+session": 3306,
    "etcd": 2379,
    "consul": 8500,
    "zookeeper": 2181,
}
"""The schemes between whose servers and workers a proxy can stand, with their usual ports."""
_REASONS: Final = {
    "sqlite": "the engine is a file, so there is no network to be broken",
    "redis+unix": "the engine is reached by a socket in the file system, so there is no network to be broken",
    "redis+cluster": "a cluster tells clients the addresses of its nodes, past any proxy",
    "redis+sentinel": "Sentinel tells clients the addresses of the servers, past any proxy",
}
_URL: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<user>[^/?#]*@)?(?P<hosts>[^/?#]*)(?P<rest>.*)", re.DOTALL | re.ASCII
)


class _Parts(NamedTuple):
    scheme: str
    user: str
    hosts: str
    rest: str


def _parts(url: str) -> _Parts:
    match = _URL.fullmatch(url)
    if match is None:
        return _Parts("", "", "", "")
    return _Parts(match["scheme"], match["user"] or "", match["hosts"], match["rest"])


def no_proxies(url: str) -> str | None:
    """Why no proxy can stand between this engine and its clients; None when one can."""
    scheme, _, hosts, rest = _parts(url)
    if scheme in _REASONS:
        return _REASONS[scheme]
    if scheme not in _PORTS:
        return "connections with TLS, and those of other schemes, cannot be led through a proxy"
    if not hosts or "host=" in rest or any("/" in host or "%2F" in host.upper() for host in hosts.split(",")):
        return "the URL names no host, so it is not known where a proxy has to stand"
    return None


def addresses(url: str) -> list[tuple[str, int]]:
    """The servers that a URL names."""
    scheme, _, hosts, _ = _parts(url)
    return [_address(host, _PORTS[scheme]) for host in hosts.split(",")]


def _address(text: str, usual_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(usual_port)
    return host.removeprefix("[").removesuffix("]"), int(port or usual_port)


def with_addresses(url: str, others: Sequence[str]) -> str:
    """The same URL with other servers in it."""
    scheme, user, _, rest = _parts(url)
    return f"{scheme}://{user}{','.join(others)}{rest}"
