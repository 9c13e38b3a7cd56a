"""Where a Redis or Valkey server is and how to be let in: from a URL to a `Target`.

Nothing of a URL is ever quoted in a message: a password with a character that should have been escaped turns up in
places where nobody expects it.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from leasehold.errors import GuaranteeWarning, InvalidURL

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
HIGHEST_DATABASE = 2**31 - 1


class Hidden(str):
    """Text that does not show itself: not in a repr, not in a traceback that prints local variables."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class HiddenBytes(bytes):
    """Bytes that do not show themselves."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "b'***'"


class Endpoint(NamedTuple):
    """One server: a host and a port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether what is sent there never leaves this machine."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


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
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)
_SHAPE = "redis://[user:password@]host[:port][/database]"


class _Refused(Exception):
    """Why a URL is refused, in words that show nothing of it."""


@dataclass(slots=True)
class _Parts:
    """A URL taken apart."""

    kind: str
    userinfo: Hidden
    hosts: str
    path: str
    options: dict[str, Hidden] = field(repr=False)


def target_from_url(url: str) -> Target:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    url = Hidden(url)
    problem = ""
    try:
        return _target(_take_apart(url))
    except _Refused as refused:
        problem = str(refused)
    raise InvalidURL(f"this is not the URL of a Redis or Valkey server: {problem}")


def targets_of_each_host(scheme: str, rest: str, query: str) -> list[Target]:
    """Of several hosts that share user, password, database and options: ``user:password@host,host/database``."""
    authority, slash, path = rest.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    tail = slash + path + (f"?{query}" if query else "")
    return [target_from_url(f"{scheme}://{userinfo}{at}{host}{tail}") for host in hosts.split(",")]


def _take_apart(url: str) -> _Parts:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise _Refused(f"it must start with one of {', '.join(f'{name}://' for name in _SCHEMES)}")
    if not rest.isascii() or not rest.isprintable() or " " in rest:
        raise _Refused("it has a space, a control character or a letter outside of ASCII; percent-encode those")
    if "#" in rest:
        raise _Refused("it has a '#'; in a password write it as %23")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    if "@" in path or "@" in query or "@" in userinfo:
        raise _Refused("it has an '@' in a strange place; in a password write '@' as %40, '/' as %2F, '?' as %3F")
    return _Parts(_SCHEMES[scheme], Hidden(userinfo), hosts, path, _options(query))


def _options(query: str) -> dict[str, Hidden]:
    options: dict[str, Hidden] = {}
    for pair in query.split("&") if query else []:
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise _Refused("each option after '?' is written name=value")
        if name in options:
            raise _Refused("an option is given twice")
        options[name] = Hidden(_decoded(value))
    return options


def _decoded(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise _Refused("it has a '%' that is not followed by two hexadecimal digits; write '%' itself as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _Refused("its percent-encoded bytes are not UTF-8") from None


def _target(parts: _Parts) -> Target:
    secure, sentinel, unix = (word in parts.kind.split() for word in ("tls", "sentinel", "unix"))
    known = (*(_TLS_OPTIONS if secure else ()), *(_SENTINEL_OPTIONS if sentinel else ()), *(("db",) if unix else ()))
    _check_options(parts.options, known)
    service, database = None, parts.path
    endpoints: tuple[Endpoint, ...]
    if unix:
        if parts.hosts or not parts.path:
            raise _Refused("a Unix socket is written redis+unix:///path/to/socket[?db=number]")
        endpoints = (Endpoint("", 0, "/" + _decoded(parts.path)),)
        database = parts.options.get("db", "")
    elif sentinel:
        service, _, database = parts.path.partition("/")
        service = _decoded(service)
        if not service:
            raise _Refused("it lacks the primary's name: redis+sentinel://host1:26379,host2:26379/name[/database]")
        endpoints = tuple(_endpoint(host, DEFAULT_SENTINEL_PORT) for host in parts.hosts.split(","))
    else:
        endpoints = (_endpoint(parts.hosts, DEFAULT_PORT),)
    options = parts.options
    return Target(
        endpoints,
        service,
        _database(database),
        _tls_from_options(options) if secure else None,
        _credentials_in(parts.userinfo),
        fixed_credentials(options.get("sentinel_username"), options.get("sentinel_password")),
    )


def _check_options(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    if "password" in options or "username" in options:
        raise _Refused(f"credentials stand before the host: {_SHAPE}")
    if not set(options) <= set(known):
        allowed = f"known are {', '.join(known)}" if known else "this scheme takes none"
        raise _Refused(f"it has an option that is not known; {allowed}")


def _endpoint(text: str, default_port: int) -> Endpoint:
    match = re.fullmatch(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[^:]*))?", text)
    if match is None:
        raise _Refused(f"its host is not written as one; the shape is {_SHAPE}, and IPv6 addresses stand in brackets")
    host, port = match["v6"] or match["host"] or "", match["port"]
    if match["v6"] is not None:
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise _Refused("what stands in brackets is not an IPv6 address") from None
    elif not _HOST.fullmatch(host):
        raise _Refused(f"its host is missing or not a host name; the shape is {_SHAPE}")
    if port is None:
        return Endpoint(host, default_port)
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise _Refused("its port is not a number from 1 to 65535")
    return Endpoint(host, int(port))


def _database(text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > HIGHEST_DATABASE:
        raise _Refused("its database is not a number, zero or more")
    return int(text)


def _credentials_in(userinfo: Hidden) -> Callable[[], Credentials | None]:
    if not userinfo:
        return no_credentials
    username, colon, password = userinfo.partition(":")
    if not colon or not password:
        raise _Refused(f"it has a user but no password; the shape is {_SHAPE}")
    return fixed_credentials(_decoded(username), _decoded(password))


def _tls_from_options(options: Mapping[str, str]) -> ssl.SSLContext:
    skip = options.get("insecure_skip_verify", "false")
    if skip not in {"true", "false"}:
        raise _Refused("insecure_skip_verify is true or false")
    try:
        return tls_context(
            ca=options.get("ca"), cert=options.get("cert"), key=options.get("key"), insecure=skip == "true"
        )
    except (OSError, ValueError):
        raise _Refused("a file named by ca, cert or key cannot be read, or is not in PEM form") from None


def tls_context(*, ca: str | None, cert: str | None, key: str | None, insecure: bool) -> ssl.SSLContext:
    """A context that checks certificate and host name, unless that was turned off by a word with "insecure" in it."""
    import ssl

    context = ssl.create_default_context(cafile=ca)
    if key is not None and cert is None:
        raise ValueError("a key needs its certificate")
    if cert is not None:
        context.load_cert_chain(cert, key)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_warned: set[str] = set()


def warn_of_transport(target: Target, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read or whose server nobody has checked."""
    address = target.address
    if address in _warned:
        return
    if target.tls is None and not all(endpoint.is_local for endpoint in target.endpoints):
        message = (
            f"{address} is plain TCP to another machine: whoever is on the way can read the password and forge "
            "grants; use rediss://"
        )
    elif target.tls is not None and not target.tls.verify_mode:
        message = (
            f"the certificate of {address} is not checked: whoever is on the way can forge grants; give ca=… instead "
            "of turning the check off"
        )
    else:
        return
    _warned.add(address)
    warnings.warn(message, GuaranteeWarning, stacklevel=stacklevel + 1)
