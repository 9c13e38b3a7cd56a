"""Where a Redis or Valkey server is and how to be let in: from a URL to a `Target`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from leasehold.wires import urls
from leasehold.wires.urls import Endpoint, Hidden, Parts, Refused

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
HIGHEST_DATABASE = 2**31 - 1

Credentials = tuple[Hidden, Hidden]
"""User name (``default`` where none was given) and password."""


def no_credentials() -> Credentials | None:
    """For a server that lets everyone in."""
    return None


def fixed_credentials(username: str | None, password: str | None) -> Callable[[], Credentials | None]:
    """The same credentials at every connection; none without a password."""
    if password is None:
        return no_credentials
    pair = (Hidden(username or "default"), Hidden(password))
    return lambda: pair


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that a connection needs to know. Its repr is safe to print."""

    endpoints: tuple[Endpoint, ...]
    """The server, or the Sentinels to ask for it."""
    service: str | None = None
    """The name under which the Sentinels know the primary; None: there are no Sentinels."""
    database: int = 0
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    credentials: Callable[[], Credentials | None] = field(default=no_credentials, repr=False)
    sentinel_credentials: Callable[[], Credentials | None] = field(default=no_credentials, repr=False)

    @property
    def address(self) -> str:
        """The whole as people write it, without a secret."""
        scheme = "rediss" if self.tls else "redis"
        database = f"/{self.database}" if self.database else ""
        if self.service is not None:
            return f"{scheme}+sentinel://{','.join(map(str, self.endpoints))}/{self.service}{database}"
        (endpoint,) = self.endpoints
        return f"redis+unix://{endpoint}{database}" if endpoint.path else f"{scheme}://{endpoint}{database}"


_SCHEMES: Final = {
    "redis": "tcp",
    "rediss": "tls",
    "valkey": "tcp",
    "valkeys": "tls",
    "redis+unix": "unix",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "tls sentinel",
}
_TLS_OPTIONS = ("ca", "cert", "key", "insecure_skip_verify")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_SHAPE = "redis://[user:password@]host[:port][/database]"
_SENTINEL_SHAPE = "redis+sentinel://host1:26379,host2:26379/name[/database]"


@urls.reader_of("a Redis or Valkey server")
def target_from_url(url: str) -> Target:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    return _target(urls.parts(url, _SCHEMES))


def targets_of_each_host(parts: Parts) -> list[Target]:
    """Of several hosts that share user, password, database and options: ``user:password@host,host/database``."""
    return [_target(parts._replace(hosts=host)) for host in parts.hosts.split(",")]


def _target(parts: Parts) -> Target:
    scheme, userinfo, hosts, path, query = parts
    secure, sentinel, unix = (word in _SCHEMES[scheme].split() for word in ("tls", "sentinel", "unix"))
    options = urls.options(query)
    known = (*(_TLS_OPTIONS if secure else ()), *(_SENTINEL_OPTIONS if sentinel else ()), *(("db",) if unix else ()))
    if "password" in options or "username" in options:
        raise Refused(f"credentials stand before the host: {_SHAPE}")
    urls.check_options(options, known, "" if secure else "; ca, cert and key belong to TLS, such as rediss://")
    service, database = None, path
    endpoints: tuple[Endpoint, ...]
    if unix:
        if hosts or not path:
            raise Refused("a Unix socket is written redis+unix:///path/to/socket[?db=number]")
        endpoints = (Endpoint("", 0, "/" + urls.decoded(path)),)
        database = options.get("db", "")
    elif sentinel:
        service, _, database = path.partition("/")
        service = str(urls.decoded(service))
        if not service:
            raise Refused(f"it lacks the primary's name; the shape is {_SENTINEL_SHAPE}")
        endpoints = urls.endpoints(hosts, DEFAULT_SENTINEL_PORT, _SENTINEL_SHAPE)
    else:
        endpoints = (urls.endpoint(hosts, DEFAULT_PORT, _SHAPE),)
    return Target(
        endpoints,
        service,
        _database(database),
        _tls(options) if secure else None,
        _credentials_in(userinfo),
        fixed_credentials(options.get("sentinel_username"), options.get("sentinel_password")),
    )


def _database(text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > HIGHEST_DATABASE:
        raise Refused("its database is not a number, zero or more")
    return int(text)


def _credentials_in(userinfo: Hidden) -> Callable[[], Credentials | None]:
    if not userinfo:
        return no_credentials
    username, colon, password = userinfo.partition(":")
    if not colon or not password:
        raise Refused(f"it has a user but no password; the shape is {_SHAPE}")
    return fixed_credentials(urls.decoded(username), urls.decoded(password))


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    skip = options.get("insecure_skip_verify", "false")
    if skip not in {"true", "false"}:
        raise Refused("insecure_skip_verify is true or false")
    return urls.tls(options, insecure=skip == "true")


def warn_of_transport(target: Target, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read or whose server nobody has checked."""
    if target.tls is None:
        urls.warn_of_plain(
            target.address,
            target.endpoints,
            "plain TCP to another machine: whoever is on the way can read the password and forge grants; use rediss://",
            stacklevel + 1,
        )
    elif not target.tls.verify_mode:
        problem = "is trusted though its certificate is not checked: whoever is on the way can forge grants"
        urls.warn_once(target.address, f"{problem}; give ca=… instead of turning the check off", stacklevel + 1)
