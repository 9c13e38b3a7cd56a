"""Where a ZooKeeper ensemble is and how to be let in: from a URL to an `Address`.

Nothing of a URL is ever quoted in a message: a password with a character that should have been escaped turns up in
places where nobody expects it.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from leasehold.errors import GuaranteeWarning, InvalidURL
from leasehold.wires.redis_target import Endpoint, Hidden, tls_context

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT: Final = 2181
DEFAULT_TICK: Final = 2.0
SHAPE: Final = "zookeeper://[user:password@]host[:port][,host[:port]…][/chroot]"
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)
_TLS_OPTIONS: Final = ("ca", "cert", "key")
_LONGEST_TICK: Final = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """Everything that a connection needs to know. Its repr is safe to print."""

    endpoints: tuple[Endpoint, ...]
    chroot: str = ""
    """The path below which everything is kept: empty, or beginning with a slash."""
    login: Hidden | None = None
    """``user:password``, for the scheme ``digest``."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    tick: float = DEFAULT_TICK
    """The ensemble's tickTime, in seconds: within so long a follower tells the leader whom it has heard of."""

    def __str__(self) -> str:
        """The whole as people write it, without a secret."""
        return f"{'zookeepers' if self.tls else 'zookeeper'}://{','.join(map(str, self.endpoints))}{self.chroot}"


class _Refused(Exception):
    """Why a URL is refused, in words that show nothing of it."""


def address_from_url(url: str) -> Address:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    url = Hidden(url)
    problem = ""
    try:
        return _address(url)
    except _Refused as refused:
        problem = str(refused)
    raise InvalidURL(f"this is not the URL of a ZooKeeper ensemble: {problem}")


def _address(url: str) -> Address:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"zookeeper", "zookeepers"}:
        raise _Refused("it must start with zookeeper:// or zookeepers://")
    if not rest.isascii() or not rest.isprintable() or " " in rest:
        raise _Refused("it has a space, a control character or a letter outside of ASCII; percent-encode those")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    if any(mark in part for mark in "@#" for part in (path, query, userinfo)):
        raise _Refused("it has an '@' or '#' in a strange place; in a password write %40, %23, '/' as %2F, '?' as %3F")
    endpoints = tuple(_endpoint(host) for host in hosts.split(","))
    if len(set(endpoints)) != len(endpoints):
        raise _Refused("a host is given twice")
    options = _options(query)
    tick = _tick(options.pop("tick", str(DEFAULT_TICK)))
    if not options.keys() <= set(_TLS_OPTIONS if scheme == "zookeepers" else ()):
        known = f"known are tick, {', '.join(_TLS_OPTIONS)}" if scheme == "zookeepers" else "zookeeper:// takes tick"
        raise _Refused(f"it has an option that is not known; {known}")
    tls = _tls(options) if scheme == "zookeepers" else None
    return Address(endpoints, _chroot(path), _login(Hidden(userinfo)), tls, tick)


def _endpoint(text: str) -> Endpoint:
    match = re.fullmatch(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[^:]*))?", text)
    if match is None:
        raise _Refused(f"its host is not written as one; the shape is {SHAPE}, and IPv6 addresses stand in brackets")
    host, port = match["v6"] or match["host"] or "", match["port"]
    if match["v6"] is not None:
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise _Refused("what stands in brackets is not an IPv6 address") from None
    elif not _HOST.fullmatch(host):
        raise _Refused(f"a host is missing or not a host name; the shape is {SHAPE}")
    if port is None:
        return Endpoint(host, DEFAULT_PORT)
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise _Refused("a port is not a number from 1 to 65535")
    return Endpoint(host, int(port))


def _chroot(path: str) -> str:
    parts = [_decoded(part) for part in path.split("/")] if path else []
    if any(part in ("", ".", "..") or not part.isprintable() or "/" in part for part in parts):
        raise _Refused("its path is not one of ZooKeeper: parts with a slash between them, none empty, '.' or '..'")
    if parts[:1] == ["zookeeper"]:
        raise _Refused("what is below /zookeeper belongs to ZooKeeper itself; choose another path")
    return "".join("/" + part for part in parts)


def _login(userinfo: Hidden) -> Hidden | None:
    if not userinfo:
        return None
    user, colon, password = userinfo.partition(":")
    if not colon or not user or not password:
        raise _Refused(f"a user and a password belong together; the shape is {SHAPE}")
    user = _decoded(user)
    if ":" in user:
        raise _Refused("a user's name has no ':' in ZooKeeper")
    return Hidden(f"{user}:{_decoded(password)}")


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&") if query else []:
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise _Refused("each option after '?' is written name=value")
        if name in options:
            raise _Refused("an option is given twice")
        options[name] = _decoded(value)
    return options


def _tick(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) or not 0 < float(text) <= _LONGEST_TICK:
        raise _Refused("tick is the ensemble's tickTime in seconds, more than 0 and at most 60, as in tick=2")
    return float(text)


def _decoded(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise _Refused("it has a '%' that is not followed by two hexadecimal digits; write '%' itself as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _Refused("its percent-encoded bytes are not UTF-8") from None


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        return tls_context(ca=options.get("ca"), cert=options.get("cert"), key=options.get("key"), insecure=False)
    except (OSError, ValueError):
        raise _Refused("a file named by ca, cert or key cannot be read, or is not in PEM form") from None


_warned: set[str] = set()


def warn_of_transport(address: Address, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read."""
    text = str(address)
    if address.tls is None and text not in _warned and not all(endpoint.is_local for endpoint in address.endpoints):
        _warned.add(text)
        warnings.warn(
            f"{text} is plain TCP to another machine: whoever is on the way can read the password and forge grants; "
            "use zookeepers://",
            GuaranteeWarning,
            stacklevel=stacklevel + 1,
        )
