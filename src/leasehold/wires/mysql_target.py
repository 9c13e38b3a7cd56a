"""Where a MySQL or MariaDB server is and how to be let in: from a URL or a client object to a `Target`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from leasehold.wires import urls
from leasehold.wires.urls import Endpoint, Hidden, Refused

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT: Final = 3306
SESSION: Final = "+session"
SCHEMES: Final = ("mysql", "mariadb", f"mysql{SESSION}", f"mariadb{SESSION}")
SHAPE: Final = "mysql://user[:password]@host[:port]/database[?option=value&…]"
OPTIONS: Final = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket")
SSL_MODES: Final = ("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
ACCEPTED: Final = "a Connection of PyMySQL, an Engine or Connection of SQLAlchemy, or a URL"


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that a connection needs to know. Its repr is safe to print."""

    endpoints: tuple[Endpoint, ...]
    """Tried in this order; the first that can be written to is used."""
    database: str
    user: Hidden = field(repr=False)
    password: Hidden = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    tls_if_asked: bool = False
    """Whether TLS is begun where a server of this machine asks for the password itself: nothing was said of TLS."""
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


@urls.reader_of("a MySQL or MariaDB server")
def target_from_url(url: str) -> Target:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    scheme, userinfo, hosts, path, query = urls.parts(url, SCHEMES)
    user, _, password = userinfo.partition(":")
    options = urls.options(query)
    urls.check_options(options, OPTIONS)
    endpoints = urls.endpoints(hosts, DEFAULT_PORT, SHAPE) if hosts else ()
    target = _target(endpoints, urls.decoded(path), urls.decoded(user), urls.decoded(password), options)
    return replace(target, in_session=scheme.endswith(SESSION))


def _target(
    endpoints: tuple[Endpoint, ...], database: str, user: Hidden, password: Hidden, options: Mapping[str, str]
) -> Target:
    if "socket" in options:
        if endpoints:
            raise Refused("it has a host and a socket; give one of them: mysql://user:password@/database?socket=/path")
        endpoints = (Endpoint("", 0, options["socket"]),)
    if not endpoints:
        raise Refused(f"it has no host; the shape is {SHAPE}")
    if not user:
        raise Refused(f"it has no user; the shape is {SHAPE}")
    if not database or "/" in database or "\0" in database + user + password:
        raise Refused(f"it has no database to keep the tables in; the shape is {SHAPE}")
    is_local = all(endpoint.is_local for endpoint in endpoints)
    tls = _tls(options, is_local=is_local)
    return Target(endpoints, str(database), user, password, tls, tls is None and "ssl-mode" not in options)


def _tls(options: Mapping[str, str], *, is_local: bool) -> ssl.SSLContext | None:
    mode = str(options.get("ssl-mode", "")).upper()
    if mode and mode not in SSL_MODES:
        raise Refused(f"ssl-mode is one of {', '.join(SSL_MODES)}")
    named = any(name in options for name in ("ssl-ca", "ssl-cert", "ssl-key"))
    mode = mode or ("DISABLED" if is_local and not named else "VERIFY_IDENTITY")
    if mode == "DISABLED":
        if named:
            raise Refused("it names certificates and says ssl-mode=DISABLED")
        return None
    context = urls.tls(options, prefix="ssl-", insecure=mode == "REQUIRED")
    context.check_hostname = mode == "VERIFY_IDENTITY"
    return context


# Client objects


def target_from_client(client: object) -> Target:
    """Read the settings of a client object, or raise `Misuse` that says which objects are accepted.

    Only its settings are read: connections of our own are opened with them.
    """
    return urls.settings_of(client, ACCEPTED, _target_from_client)


def _target_from_client(client: object) -> Target:
    if type(client).__module__.partition(".")[0] == "sqlalchemy":
        return _target_from_sqlalchemy(client)
    return _target_from_pymysql(client)


def _target_from_pymysql(client: Any) -> Target:
    try:
        user, password, database = client.user, client.password, client.db
        path, host, port, context = client.unix_socket, client.host, client.port, getattr(client, "ctx", None)
    except AttributeError:
        raise Refused("it is no connection of PyMySQL") from None
    user, password, database = (_as_text(value) for value in (user, password, database))
    options = {"socket": Hidden(path), "ssl-mode": Hidden("DISABLED")} if path else {"ssl-mode": Hidden("DISABLED")}
    endpoints = () if path else (Endpoint(str(host), int(port)),)
    target = _target(endpoints, database, user, password, options)
    # What the client was content with is not tightened behind its user's back, but warned of.
    in_tls = any(getattr(client, name, False) for name in ("_ssl_required", "_secure"))
    return replace(target, tls=context if in_tls else None, tls_if_asked=target.is_local and not in_tls)


def _as_text(value: Any) -> Hidden:
    return Hidden(value.decode() if isinstance(value, bytes) else value or "")


def _target_from_sqlalchemy(client: Any) -> Target:
    url = getattr(getattr(client, "engine", client), "url", None)
    if url is None or not str(url.drivername).startswith(SCHEMES):
        raise Refused("it is not connected to MySQL or MariaDB by a URL")
    if not all(isinstance(value, str) for value in url.query.values()):
        raise Refused("its URL has an option twice")
    path = url.query.get("unix_socket", "")
    options = {"ssl-mode": Hidden("DISABLED")}
    if "ssl_ca" in url.query:
        options = {"ssl-mode": Hidden("VERIFY_IDENTITY"), "ssl-ca": Hidden(url.query["ssl_ca"])}
    if path:
        options["socket"] = Hidden(path)
    endpoints = () if path else (Endpoint(url.host or "localhost", url.port or DEFAULT_PORT),)
    target = _target(endpoints, url.database or "", Hidden(url.username or ""), Hidden(url.password or ""), options)
    return replace(target, tls_if_asked=target.is_local and target.tls is None)


def warn_of_transport(target: Target, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read or whose server nobody has checked."""
    tls = target.tls
    if target.is_local or (tls is not None and tls.check_hostname):
        return
    if tls is None:
        problem = "is talked to in the clear: whoever is on the way can read what passes and forge grants"
    else:
        problem = "is not known to be the server it should be: whoever is on the way can forge grants"
    advice = "use ssl-mode=VERIFY_IDENTITY, and ssl-ca=FILE for an authority of your own"
    urls.warn_once(target.address, f"{problem}; {advice}", stacklevel + 1)
