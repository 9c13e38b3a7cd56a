"""Where a MySQL or MariaDB server is and how to be let in: from a URL or a client object to a `Target`.

Nothing of a URL is ever quoted in a message: a password with a character that should have been escaped turns up in
places where nobody expects it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from leasehold.errors import GuaranteeWarning, InvalidURL, Misuse
from leasehold.wires.redis_target import Endpoint, Hidden, tls_context

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT: Final = 3306
SCHEMES: Final = ("mysql", "mariadb")
SESSION: Final = "+session"
SHAPE: Final = "mysql://user[:password]@host[:port]/database[?option=value&…]"
OPTIONS: Final = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket")
SSL_MODES: Final = ("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
ACCEPTED: Final = "a Connection of PyMySQL, an Engine or Connection of SQLAlchemy, or a URL"
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?|[0-9A-Fa-f:.]{2,45}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that a connection needs to know. Its repr is safe to print."""

    endpoints: tuple[Endpoint, ...]
    """Tried in this order; the first that can be written to is used."""
    database: str
    user: Hidden = field(repr=False)
    password: Hidden = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    in_session: bool = False
    """Whether leases live in a connection, by locks of the server's own; else in a table."""

    @property
    def address(self) -> str:
        """The whole as people write it, without a secret."""
        hosts = ",".join(str(one) for one in self.endpoints if not one.path)
        path = next((f"?socket={one.path}" for one in self.endpoints if one.path), "")
        return f"mysql{SESSION if self.in_session else ''}://{hosts}/{quote(self.database, safe='')}{path}"

    @property
    def is_local(self) -> bool:
        """Whether what is sent there never leaves this machine."""
        return all(endpoint.is_local for endpoint in self.endpoints)


class _Refused(Exception):
    """Why something is refused, in words that show nothing of it."""


def target_from_url(url: str) -> Target:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    url = Hidden(url)
    problem = ""
    try:
        return _target_from_url(url)
    except _Refused as refused:
        problem = str(refused)
    raise InvalidURL(f"this is not the URL of a MySQL or MariaDB server: {problem}")


def _target_from_url(url: str) -> Target:
    scheme, separator, rest = url.partition("://")
    kind = scheme.removesuffix(SESSION)
    if not separator or kind not in SCHEMES:
        known = (f"{name}{mode}://" for mode in ("", SESSION) for name in SCHEMES)
        raise _Refused(f"it must start with one of {', '.join(known)}")
    if not rest.isascii() or not rest.isprintable() or " " in rest or "#" in rest:
        raise _Refused("it has a space, a '#', a control character or a letter outside of ASCII; percent-encode those")
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    if "@" in userinfo or "@" in path or "@" in query:
        raise _Refused("it has an '@' in a strange place; in a password write '@' as %40, '/' as %2F, '?' as %3F")
    user, _, password = userinfo.partition(":")
    target = _target(_endpoints(hosts), _decoded(path), _decoded(user), _decoded(password), _options(query))
    return replace(target, in_session=scheme != kind)


def _options(query: str) -> dict[str, Hidden]:
    options: dict[str, Hidden] = {}
    for pair in query.split("&") if query else []:
        name, equals, value = pair.partition("=")
        if name not in OPTIONS:
            raise _Refused(f"it has an option that is not known; known are {', '.join(OPTIONS)}")
        if not equals or not value or name in options:
            raise _Refused("each option after '?' is written name=value, and once")
        options[name] = _decoded(value)
    return options


def _decoded(text: str) -> Hidden:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise _Refused("it has a '%' that is not followed by two hexadecimal digits; write '%' itself as %25")
    try:
        return Hidden(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        raise _Refused("its percent-encoded bytes are not UTF-8") from None


def _endpoints(hosts: str) -> tuple[Endpoint, ...]:
    return tuple(_endpoint(text) for text in hosts.split(",")) if hosts else ()


def _endpoint(text: str) -> Endpoint:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?", text)
    host = (match[1] or match[2]) if match else ""
    if match is None or not _HOST.fullmatch(host):
        raise _Refused(f"its host is not written as one; the shape is {SHAPE}, and IPv6 addresses stand in brackets")
    port = int(match[3] or DEFAULT_PORT)
    if not 0 < port < 65536:
        raise _Refused("its port is not a number from 1 to 65535")
    return Endpoint(host, port)


def _target(
    endpoints: tuple[Endpoint, ...], database: str, user: Hidden, password: Hidden, options: Mapping[str, str]
) -> Target:
    if "socket" in options:
        if endpoints:
            raise _Refused("it has a host and a socket; give one of them: mysql://user:password@/database?socket=/path")
        endpoints = (Endpoint("", 0, options["socket"]),)
    if not endpoints:
        raise _Refused(f"it has no host; the shape is {SHAPE}")
    if not user:
        raise _Refused(f"it has no user; the shape is {SHAPE}")
    if not database or "/" in database or "\0" in database + user + password:
        raise _Refused(f"it has no database to keep the tables in; the shape is {SHAPE}")
    is_local = all(endpoint.is_local for endpoint in endpoints)
    return Target(endpoints, str(database), user, password, _tls(options, is_local=is_local))


def _tls(options: Mapping[str, str], *, is_local: bool) -> ssl.SSLContext | None:
    mode = str(options.get("ssl-mode", "")).upper()
    if mode and mode not in SSL_MODES:
        raise _Refused(f"ssl-mode is one of {', '.join(SSL_MODES)}")
    named = any(name in options for name in ("ssl-ca", "ssl-cert", "ssl-key"))
    mode = mode or ("DISABLED" if is_local and not named else "VERIFY_IDENTITY")
    if mode == "DISABLED":
        if named:
            raise _Refused("it names certificates and says ssl-mode=DISABLED")
        return None
    try:
        context = tls_context(
            ca=options.get("ssl-ca"),
            cert=options.get("ssl-cert"),
            key=options.get("ssl-key"),
            insecure=mode == "REQUIRED",
        )
    except (OSError, ValueError):
        raise _Refused("a file named by ssl-ca, ssl-cert or ssl-key cannot be read, or is not in PEM form") from None
    context.check_hostname = mode == "VERIFY_IDENTITY"
    return context


# Client objects


def target_from_client(client: object) -> Target:
    """Read the settings of a client object, or raise `Misuse` that says which objects are accepted.

    Only its settings are read: connections of our own are opened with them.
    """
    problem = ""
    try:
        if type(client).__module__.partition(".")[0] == "sqlalchemy":
            return _target_from_sqlalchemy(client)
        return _target_from_pymysql(client)
    except _Refused as refused:
        problem = str(refused)
    raise Misuse(f"a {type(client).__name__} object cannot be used as an engine: {problem}; accepted are {ACCEPTED}")


def _target_from_pymysql(client: Any) -> Target:
    try:
        user, password, database = client.user, client.password, client.db
        path, host, port, context = client.unix_socket, client.host, client.port, getattr(client, "ctx", None)
    except AttributeError:
        raise _Refused("it is no connection of PyMySQL") from None
    user, password, database = (_as_text(value) for value in (user, password, database))
    options = {"socket": Hidden(path), "ssl-mode": Hidden("DISABLED")} if path else {"ssl-mode": Hidden("DISABLED")}
    endpoints = () if path else (Endpoint(str(host), int(port)),)
    target = _target(endpoints, database, user, password, options)
    # What the client was content with is not tightened behind its user's back, but warned of.
    in_tls = any(getattr(client, name, False) for name in ("_ssl_required", "_secure"))
    return Target(target.endpoints, target.database, target.user, target.password, context if in_tls else None)


def _as_text(value: Any) -> Hidden:
    return Hidden(value.decode() if isinstance(value, bytes) else value or "")


def _target_from_sqlalchemy(client: Any) -> Target:
    url = getattr(getattr(client, "engine", client), "url", None)
    if url is None or not str(url.drivername).startswith(SCHEMES):
        raise _Refused("it is not connected to MySQL or MariaDB by a URL")
    if not all(isinstance(value, str) for value in url.query.values()):
        raise _Refused("its URL has an option twice")
    path = url.query.get("unix_socket", "")
    options = {"ssl-mode": Hidden("DISABLED")}
    if "ssl_ca" in url.query:
        options = {"ssl-mode": Hidden("VERIFY_IDENTITY"), "ssl-ca": Hidden(url.query["ssl_ca"])}
    if path:
        options["socket"] = Hidden(path)
    endpoints = () if path else (Endpoint(url.host or "localhost", url.port or DEFAULT_PORT),)
    return _target(endpoints, url.database or "", Hidden(url.username or ""), Hidden(url.password or ""), options)


_warned: set[str] = set()


def warn_of_transport(target: Target, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read or whose server nobody has checked."""
    address, tls = target.address, target.tls
    if address in _warned or target.is_local or (tls is not None and tls.check_hostname):
        return
    if tls is None:
        problem = "is talked to in the clear: whoever is on the way can read what passes and forge grants"
    else:
        problem = "is not known to be the server it should be: whoever is on the way can forge grants"
    _warned.add(address)
    warnings.warn(
        f"{address} {problem}; use ssl-mode=VERIFY_IDENTITY, and ssl-ca=FILE for an authority of your own",
        GuaranteeWarning,
        stacklevel=stacklevel + 1,
    )
