"""What the URLs of all engines with hosts have in common, and how they are refused.

Nothing of a URL is ever quoted in a message: a password with a character that should have been escaped turns up in
places where nobody expects it.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from leasehold.errors import GuaranteeWarning, InvalidURL, Misuse

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
TLS_OPTIONS: Final = ("ca", "cert", "key")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)


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


class Refused(Exception):
    """Why a URL, or a client object, is refused: in words that show nothing of it."""


class Parts(NamedTuple):
    """A URL, taken apart and not yet decoded."""

    scheme: str
    userinfo: Hidden
    hosts: str
    path: str
    query: str


def reader_of(what: str) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """For a function that reads the URLs of `what`: one that it refuses becomes `InvalidURL`, and is shown nowhere.

    The error is raised from a frame that knows the URL by no other name, and has none of those that took it apart.
    """

    def hiding(read: Callable[[str], T]) -> Callable[[str], T]:
        @functools.wraps(read)
        def understood(url: str) -> T:
            url = Hidden(url)
            problem = ""
            try:
                return read(url)
            except Refused as refused:
                problem = str(refused)
            raise InvalidURL(f"this is not the URL of {what}: {problem}")

        return understood

    return hiding


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
        *others, last = (f"{one}://" for one in schemes)
        raise Refused(f"it must start with {', '.join(others)} or {last}")
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
    found = tuple(endpoint(host, default_port, shape) for host in hosts.split(","))
    if len(set(found)) != len(found):
        raise Refused("a host is given twice")
    return found


def endpoint(text: str, default_port: int, shape: str) -> Endpoint:
    """One server, as a URL names it."""
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
    return Endpoint(host, default_port if port is None else port_in(port))


def port_in(text: str) -> int:
    """A port, from its digits."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise Refused("its port is not a number from 1 to 65535")
    return int(text)


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


def check_options(given: Collection[str], known: Sequence[str], hint: str = "") -> None:
    """Refuse an option that is not among the known ones, and tell which of them may have been meant."""
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        from difflib import get_close_matches

        meant = get_close_matches(strange, known, 1)
        suggestion = f", did you mean {meant[0]}?" if meant else ";"
        allowed = f" known are {', '.join(known)}" if known else " this scheme takes none"
        raise Refused(f"it has an option that is not known{suggestion}{allowed}{hint}")


def decoded(text: str) -> Hidden:
    """Percent-encoded text as it was meant."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise Refused("it has a '%' that is not followed by two hexadecimal digits; write '%' itself as %25")
    try:
        return Hidden(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        raise Refused("its percent-encoded bytes are not UTF-8") from None


def tls(given: Mapping[str, str], *, prefix: str = "", insecure: bool = False) -> ssl.SSLContext:
    """A context with the files that `ca`, `cert` and `key` name. It checks who answers, unless it is `insecure`."""
    ca, cert, key = (f"{prefix}{name}" for name in TLS_OPTIONS)
    if key in given and cert not in given:
        raise Refused(f"{cert} and {key} belong together")
    try:
        return tls_context(ca=given.get(ca), cert=given.get(cert), key=given.get(key), insecure=insecure)
    except (OSError, ValueError):
        raise Refused(f"a file named by {ca}, {cert} or {key} cannot be read, or is not in PEM form") from None


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


def warn_once(address: str, problem: str, stacklevel: int) -> None:
    """Say once of each address what is wrong with the way there."""
    if address not in _warned:
        _warned.add(address)
        warnings.warn(f"{address} {problem}", GuaranteeWarning, stacklevel=stacklevel + 1)


def warn_of_plain(address: str, servers: tuple[Endpoint, ...], problem: str, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read: it leaves this machine, and is not encrypted."""
    if not all(endpoint.is_local for endpoint in servers):
        warn_once(address, f"is {problem}", stacklevel + 1)
