"""Where a Redis or Valkey Cluster is and how to be let in: from a URL or a client object to a `Cluster`.

As with one server, nothing of a URL is ever quoted in a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from leasehold.errors import InvalidURL, Misuse
from leasehold.wires import urls
from leasehold.wires.redis_client import credentials_of, tls_of
from leasehold.wires.redis_target import Target, targets_of_each_host
from leasehold.wires.urls import Endpoint, Hidden

_SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_OCSP: Final = ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled")
ACCEPTED: Final = "redis.cluster.RedisCluster and redis.asyncio.cluster.RedisCluster (the same in valkey-py)"


class Cluster(NamedTuple):
    """Some nodes to ask for the others, and how to be let in everywhere."""

    seeds: tuple[Endpoint, ...]
    entry: Target
    """The first of them. User, password and TLS are the same at every node."""

    @property
    def address(self) -> str:
        """The whole as people write it, without a secret."""
        return f"{'rediss' if self.entry.tls else 'redis'}+cluster://{','.join(map(str, self.seeds))}"

    def at(self, endpoint: Endpoint) -> Target:
        """One node."""
        return replace(self.entry, endpoints=(endpoint,))


def cluster_from(on: object) -> Cluster:
    """Understand what the caller gave, or say what is wrong with it."""
    if not isinstance(on, str):
        return _from_client(on)
    on = Hidden(on)
    targets = _from_url(on)
    return _checked(tuple(target.endpoints[0] for target in targets), targets[0])


@urls.reader_of("a Redis Cluster")
def _from_url(url: str) -> list[Target]:
    parts = urls.parts(url, _SCHEMES)
    return targets_of_each_host(parts._replace(scheme=_SCHEMES[parts.scheme]))


def _from_client(client: object) -> Cluster:
    nodes = getattr(client, "nodes_manager", None)
    settings = getattr(client, "connection_kwargs", None) or getattr(nodes, "connection_kwargs", None)
    seeds: Any = getattr(nodes, "startup_nodes", None)
    if not isinstance(settings, Mapping) or not isinstance(seeds, Mapping) or not seeds:
        raise Misuse(f"a {type(client).__name__} object cannot be used as a cluster; accepted are {ACCEPTED}, or a URL")
    own_code = {
        "address_remap": getattr(nodes, "address_remap", None),
        "redis_connect_func": getattr(client, "user_on_connect_func", None),
    }
    for name in [name for name, value in own_code.items() if value] + [name for name in _OCSP if settings.get(name)]:
        raise Misuse(f"this client sets {name}, which our own connections cannot honour; give a URL instead")
    endpoints = tuple(Endpoint(str(node.host), int(node.port)) for node in seeds.values())
    secure = settings.get("ssl") or getattr(settings.get("connection_class"), "__name__", "") == "SSLConnection"
    tls = tls_of(settings) if secure else None
    return _checked(endpoints, Target(endpoints[:1], tls=tls, credentials=credentials_of(settings)))


def _checked(seeds: tuple[Endpoint, ...], entry: Target) -> Cluster:
    if entry.database:
        raise InvalidURL("a cluster has one database only, number 0; leave the number out")
    return Cluster(tuple(dict.fromkeys(seeds)), entry)
