"""What the URLs of all engines with hosts have in common, and how they are refused.

Nothing of a URL is ever quoted in a message: a password with a character that should have been escaped turns up in
places where nobody expects it.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from leasehold.errors import GuaranteeWarning, InvalidURL, Misuse
from leasehold.wires.redis_target import Endpoint, Hidden, tls_context

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
TLS_OPTIONS: Final = ("ca", "cert", "key")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)


class Refused(Exception):
    """Why a URL, or a client object, is refused: in words that show nothing of it."""


class Parts(NamedTuple):
    """A URL, taken apart and not yet decoded."""

    scheme: str
    userinfo: Hidden
    hosts: str
    path: str
    query: str


def understood(url: str, what: str, read: Callable[[str], T]) -> T:
    """What `read` makes of a URL, or `InvalidURL` that says why it is not one of `what`, and shows nothing of it."""
    url = Hidden(url)
    problem = ""
    try:
        return read(url)
    except Refused as refused:
        problem = str(refused)
    raise InvalidURL(f"this is not the URL of {what}: {problem}")


def settings_of(client: object, accepted: str, read: Callable[[object], T]) -> T:
    """What `read` makes of the settings of a client object, or `Misuse` that says which objects are accepted."""
    problem = ""
    try:
        return read(client)
    except Refused as refused:
        problem = str(refused)
    raise Misuse(f"a {type(client).__name__} object cannot be used as an engine: {problem}; accepted are {accepted}")


def parts(url: str, schemes: Collection[str]) -> Parts:
    """Take a URL apart."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in schemes:
        raise Refused(f"it must start with {' or '.join(f'{one}://' for one in schemes)}")
    if not rest.isascii() or not rest.isprintable() or " " in rest:
        raise Refused("it has a space, a control character or a letter outside of ASCII; percent-encode those")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    if any(mark in part for mark in "@#" for part in (path, query, userinfo)) or "#" in hosts:
        raise Refused("it has an '@' or '#' in a strange place; in a password write %40, %23, '/' as %2F, '?' as %3F")
    return Parts(scheme, Hidden(userinfo), hosts, path, query)


def endpoints(hosts: str, default_port: int, shape: str) -> tuple[Endpoint, ...]:
    """The servers that a URL names."""
    found = tuple(_endpoint(host, default_port, shape) for host in hosts.split(","))
    if len(set(found)) != len(found):
        raise Refused("a host is given twice")
    return found


def _endpoint(text: str, default_port: int, shape: str) -> Endpoint:
    match = re.fullmatch(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[^:]*))?", text)
    if match is None:
        raise Refused(f"its host is not written as one; the shape is {shape}, and IPv6 addresses stand in brackets")
    host, port = match["v6"] or match["host"] or "", match["port"]
    if match["v6"] is not None:
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise Refused("what stands in brackets is not an IPv6 address") from None
    elif not _HOST.fullmatch(host):
        raise Refused(f"a host is missing or not a host name; the shape is {shape}")
    if port is None:
        return Endpoint(host, default_port)
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise Refused("a port is not a number from 1 to 65535")
    return Endpoint(host, int(port))


def credentials(userinfo: Hidden, shape: str) -> tuple[Hidden, Hidden] | None:
    """User and password, which belong together; None when there is neither."""
    if not userinfo:
        return None
    user, colon, password = userinfo.partition(":")
    if not colon or not user or not password:
        raise Refused(f"a user and a password belong together; the shape is {shape}")
    return decoded(user), decoded(password)


def options(query: str) -> dict[str, Hidden]:
    """What stands after the question mark."""
    found: dict[str, Hidden] = {}
    for pair in query.split("&") if query else []:
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise Refused("each option after '?' is written name=value")
        if name in found:
            raise Refused("an option is given twice")
        found[name] = decoded(value)
    return found


def decoded(text: str) -> Hidden:
    """Percent-encoded text as it was meant."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise Refused("it has a '%' that is not followed by two hexadecimal digits; write '%' itself as %25")
    try:
        return Hidden(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        raise Refused("its percent-encoded bytes are not UTF-8") from None


def tls(given: Mapping[str, str]) -> ssl.SSLContext:
    """A context that checks certificate and host name, with the files that `ca`, `cert` and `key` name."""
    if "key" in given and "cert" not in given:
        raise Refused("cert and key belong together")
    try:
        return tls_context(ca=given.get("ca"), cert=given.get("cert"), key=given.get("key"), insecure=False)
    except (OSError, ValueError):
        raise Refused("a file named by ca, cert or key cannot be read, or is not in PEM form") from None


_warned: set[str] = set()


def warn_of_plain(address: str, servers: tuple[Endpoint, ...], problem: str, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read: it leaves this machine, and is not encrypted."""
    if address not in _warned and not all(endpoint.is_local for endpoint in servers):
        _warned.add(address)
        warnings.warn(f"{address} is {problem}", GuaranteeWarning, stacklevel=stacklevel + 1)
