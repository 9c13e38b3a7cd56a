"""Where Consul is and how to be let in: from a URL to an `Address`.

Nothing of a URL is ever quoted in a message: a token with a character that should have been escaped turns up in places
where nobody expects it.
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

DEFAULT_PORTS: Final = {"consul": 8500, "consuls": 8501}
SHAPE: Final = "consul://host[:port][,host[:port]…][/?token=…]"
LEAST_TTL: Final = 10.0
"""Consul's own, unless its session_ttl_min says otherwise."""
_LOWEST_LEAST_TTL: Final = 0.1
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)
_OPTIONS: Final = ("token", "least_ttl")
_TLS_OPTIONS: Final = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Address:
    """Everything that a connection needs to know. Its repr is safe to print."""

    endpoints: tuple[Endpoint, ...]
    """Agents of one datacenter. The first is used until it fails."""
    token: Hidden | None = None
    least_ttl: float = LEAST_TTL
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """The whole as people write it, without a secret."""
        return f"{'consuls' if self.tls else 'consul'}://{','.join(map(str, self.endpoints))}"


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
    raise InvalidURL(f"this is not the URL of a Consul agent: {problem}")


def _address(url: str) -> Address:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        raise _Refused("it must start with consul:// or consuls://")
    if not rest.isascii() or not rest.isprintable() or " " in rest:
        raise _Refused("it has a space, a control character or a letter outside of ASCII; percent-encode those")
    if "#" in rest:
        raise _Refused("it has a '#'; in a token write it as %23")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    if "@" in authority:
        raise _Refused(f"Consul knows no users before the host, only tokens; the shape is {SHAPE}")
    if path:
        raise _Refused(f"there is nothing to name after the hosts; the shape is {SHAPE}")
    endpoints = tuple(_endpoint(host, DEFAULT_PORTS[scheme]) for host in authority.split(","))
    if len(set(endpoints)) != len(endpoints):
        raise _Refused("a host is given twice")
    options = _options(query)
    known = (*_OPTIONS, *(_TLS_OPTIONS if scheme == "consuls" else ()))
    if not options.keys() <= set(known):
        hint = "" if scheme == "consuls" else "; ca, cert and key belong to consuls://"
        raise _Refused(f"it has an option that is not known; known are {', '.join(known)}{hint}")
    tls = _tls(options) if scheme == "consuls" else None
    return Address(endpoints, _token(options.get("token")), _least_ttl(options.get("least_ttl")), tls)


def _endpoint(text: str, default_port: int) -> Endpoint:
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
        return Endpoint(host, default_port)
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise _Refused("a port is not a number from 1 to 65535")
    return Endpoint(host, int(port))


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


def _token(text: Hidden | None) -> Hidden | None:
    # It becomes a line of a request: nothing in it may end that line.
    if text is not None and not re.fullmatch(r"[!-~]{1,512}", text):
        raise _Refused("its token is not a word of printable ASCII characters")
    return text


def _least_ttl(text: str | None) -> float:
    if text is None:
        return LEAST_TTL
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text) or float(text) < _LOWEST_LEAST_TTL:
        raise _Refused(f"least_ttl is a number of seconds, at least {_LOWEST_LEAST_TTL}: the agents' session_ttl_min")
    return float(text)


def _tls(options: dict[str, Hidden]) -> ssl.SSLContext:
    if ("cert" in options) != ("key" in options):
        raise _Refused("cert and key belong together")
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
            f"{text} is plain HTTP to another machine: whoever is on the way can read the token and forge grants; "
            "use consuls://, or the agent on this machine",
            GuaranteeWarning,
            stacklevel=stacklevel + 1,
        )
