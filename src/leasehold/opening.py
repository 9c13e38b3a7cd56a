"""From an address (or a client object) to the family of engines behind it."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from typing import cast

from leasehold.core.engine import EngineFamily
from leasehold.errors import InvalidURL, Misuse, NotSupported

Opener = Callable[..., EngineFamily]

_BUILT_IN = {
    "sqlite": "leasehold.engines.sqlite",
    "redis": "leasehold.engines.redis",
    "rediss": "leasehold.engines.redis",
    "redis+unix": "leasehold.engines.redis",
    "redis+sentinel": "leasehold.engines.redis",
    "rediss+sentinel": "leasehold.engines.redis",
    "valkey": "leasehold.engines.redis",
    "valkeys": "leasehold.engines.redis",
    "redis+cluster": "leasehold.engines.redis_cluster",
    "rediss+cluster": "leasehold.engines.redis_cluster",
    "redlock": "leasehold.engines.redlock",
    "redlocks": "leasehold.engines.redlock",
    "consul": "leasehold.engines.consul",
    "consuls": "leasehold.engines.consul",
    "etcd": "leasehold.engines.etcd",
    "etcds": "leasehold.engines.etcd",
    "zookeeper": "leasehold.engines.zookeeper",
    "zookeepers": "leasehold.engines.zookeeper",
    "postgresql": "leasehold.engines.postgres",
    "postgres": "leasehold.engines.postgres",
    "postgresql+session": "leasehold.engines.postgres",
    "mysql": "leasehold.engines.mysql",
    "mariadb": "leasehold.engines.mysql",
    "mysql+session": "leasehold.engines.mysql",
    "mariadb+session": "leasehold.engines.mysql",
}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30}):", re.ASCII)
_CLIENT_PACKAGES = {
    "redis": "leasehold.engines.redis",
    "valkey": "leasehold.engines.redis",
    "redis.cluster": "leasehold.engines.redis_cluster",
    "redis.asyncio.cluster": "leasehold.engines.redis_cluster",
    "valkey.cluster": "leasehold.engines.redis_cluster",
    "valkey.asyncio.cluster": "leasehold.engines.redis_cluster",
    "psycopg": "leasehold.engines.postgres",
    "pymysql": "leasehold.engines.mysql",
    "kazoo": "leasehold.engines.zookeeper",
    "consul": "leasehold.engines.consul",
    "etcd3gw": "leasehold.engines.etcd",
}
_EXTRAS = {"hiredis": "redis", "grpc": "etcd", "psycopg": "postgresql"}
"""What to install for a package that an engine lacks."""
_SQLALCHEMY_DIALECTS = {
    "postgresql": "leasehold.engines.postgres",
    "mysql": "leasehold.engines.mysql",
    "mariadb": "leasehold.engines.mysql",
}


def open_family(on: object, *, namespace: str, label: str) -> EngineFamily:
    """Find the engine that `on` names: a URL, a path to an embedded file, a client object, or None for the default."""
    if on is None:
        on = os.environ.get("LEASEHOLD_URL") or "sqlite://"
    return _opener(on)(on, namespace=namespace, client_label=label)


def _opener(on: object) -> Opener:
    if isinstance(on, os.PathLike):
        return _load("leasehold.engines.sqlite")
    if isinstance(on, str):
        return _opener_for_url(on)
    if isinstance(on, list | tuple):
        return _load("leasehold.engines.redlock")
    package = type(on).__module__.partition(".")[0]
    module = _CLIENT_PACKAGES.get(type(on).__module__) or _CLIENT_PACKAGES.get(package)
    if package == "sqlalchemy":
        module = _SQLALCHEMY_DIALECTS.get(getattr(getattr(on, "dialect", None), "name", ""))
    if module is not None:
        return _load(module)
    raise Misuse(
        f"an engine is a URL, a pathlib.Path or a client object of a supported library, not {type(on).__name__}; "
        f"URLs start with {_known_schemes()}"
    )


def _opener_for_url(url: str) -> Opener:
    match = _SCHEME.match(url)
    if match is None:
        raise InvalidURL(
            f"an engine's URL starts with a scheme: one of {_known_schemes()}; for a file write "
            "sqlite:////path/to/file, or in Python give a pathlib.Path"
        )
    scheme = match[1]
    if scheme in _BUILT_IN:
        return _load(_BUILT_IN[scheme])
    return _third_party_opener(scheme)


def _third_party_opener(scheme: str) -> Opener:
    from importlib.metadata import entry_points

    for point in entry_points(group="leasehold.engines", name=scheme):
        return cast("Opener", point.load())
    from difflib import get_close_matches

    near = get_close_matches(scheme, _BUILT_IN, n=1)
    meant = f" (is {near[0]}:// meant?)" if near else ""
    raise InvalidURL(f"no engine serves URLs of the scheme {scheme!r}{meant}; known are {_known_schemes()}")


def _known_schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in _BUILT_IN)


def _load(module: str) -> Opener:
    try:
        return cast("Opener", importlib.import_module(module).open_engine)
    except ModuleNotFoundError as missing:
        explained = how_to_get(missing, "this engine")
        if explained is None:
            raise
        raise explained from None


def how_to_get(missing: ModuleNotFoundError, what: str = "this") -> NotSupported | None:
    """What to install for a package that is not there; None when it is none that Leasehold knows a use for."""
    extra = _EXTRAS.get((missing.name or "").partition(".")[0])
    if extra is None:
        return None
    return NotSupported(f"{what} needs the package {missing.name}: pip install 'leasehold[{extra}]'")
