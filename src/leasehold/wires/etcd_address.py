"""Where an etcd cluster is and how to be let in: from a URL to an `Address`.

Nothing of a URL is ever quoted in a message: a password with a character that should have been escaped turns up in
places where nobody expects it.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from leasehold.errors import GuaranteeWarning, InvalidURL
from leasehold.wires.redis_target import Endpoint, Hidden

DEFAULT_PORT: Final = 2379
SHAPE: Final = "etcd://[user:password@]host[:port][,host[:port]…]"
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)
_TLS_OPTIONS: Final = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Tls:
    """What to prove and what to check, in PEM form. None: the authorities that gRPC trusts; no certificate of ours."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """Everything that a connection needs to know. Its repr is safe to print."""

    endpoints: tuple[Endpoint, ...]
    user: Hidden | None = None
    password: Hidden | None = None
    tls: Tls | None = None

    def __str__(self) -> str:
        """The whole as people write it, without a secret."""
        return f"{'etcds' if self.tls else 'etcd'}://{','.join(map(str, self.endpoints))}"


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
    raise InvalidURL(f"this is not the URL of an etcd cluster: {problem}")


def _address(url: str) -> Address:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"etcd", "etcds"}:
        raise _Refused("it must start with etcd:// or etcds://")
    if not rest.isascii() or not rest.isprintable() or " " in rest:
        raise _Refused("it has a space, a control character or a letter outside of ASCII; percent-encode those")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    if any(mark in part for mark in "@#" for part in (path, query, userinfo)):
        raise _Refused("it has an '@' or '#' in a strange place; in a password write %40, %23, '/' as %2F, '?' as %3F")
    if path:
        raise _Refused(f"there is nothing to name after the hosts; the shape is {SHAPE}")
    endpoints = tuple(_endpoint(host) for host in hosts.split(","))
    if len(set(endpoints)) != len(endpoints):
        raise _Refused("a host is given twice")
    user, password = _credentials(Hidden(userinfo))
    options = _options(query)
    if not options.keys() <= set(_TLS_OPTIONS if scheme == "etcds" else ()):
        known = f"known are {', '.join(_TLS_OPTIONS)}" if scheme == "etcds" else "only etcds:// takes any"
        raise _Refused(f"it has an option that is not known; {known}")
    return Address(endpoints, user, password, _tls(options) if scheme == "etcds" else None)


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


def _credentials(userinfo: Hidden) -> tuple[Hidden | None, Hidden | None]:
    if not userinfo:
        return None, None
    user, colon, password = userinfo.partition(":")
    if not colon or not user or not password:
        raise _Refused(f"a user and a password belong together; the shape is {SHAPE}")
    return Hidden(_decoded(user)), Hidden(_decoded(password))


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


def _decoded(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise _Refused("it has a '%' that is not followed by two hexadecimal digits; write '%' itself as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _Refused("its percent-encoded bytes are not UTF-8") from None


def _tls(options: dict[str, str]) -> Tls:
    if ("cert" in options) != ("key" in options):
        raise _Refused("cert and key belong together")
    try:
        files = {name: Path(path).read_bytes() for name, path in options.items()}
    except (OSError, ValueError):
        raise _Refused("a file named by ca, cert or key cannot be read") from None
    if not all(b"-----BEGIN " in content for content in files.values()):
        raise _Refused("a file named by ca, cert or key is not in PEM form")
    return Tls(files.get("ca"), files.get("cert"), files.get("key"))


_warned: set[str] = set()


def warn_of_transport(address: Address, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read."""
    text = str(address)
    if address.tls is None and text not in _warned and not all(endpoint.is_local for endpoint in address.endpoints):
        _warned.add(text)
        warnings.warn(
            f"{text} is plain TCP to another machine: whoever is on the way can read the password and forge grants; "
            "use etcds://",
            GuaranteeWarning,
            stacklevel=stacklevel + 1,
        )
