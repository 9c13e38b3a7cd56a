"""Where a PostgreSQL server is and how to be let in: from a URL or a client object to a `Target`.

A URL is libpq's own, with a few options of ours. libpq explains what is wrong with a URL by quoting it, password and
all, so its words are never shown; nor is anything of a URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.wires import urls
from leasehold.wires.urls import Endpoint, Hidden, Refused

DEFAULT_PORT: Final = 5432
DEFAULT_SOCKET: Final = "(default socket)"
"""Stands for the folder of the Unix socket that libpq looks into by itself."""
SHAPE: Final = "postgresql://[user[:password]@]host[:port]/database[?option=value&…]"
SCHEMA_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,30}", re.ASCII)
SYSTEM_AUTHORITIES_SINCE: Final = 160000
"""The version of libpq from which on it can check certificates against the authorities that the system trusts."""

Kind = Literal["lease", "session"]
_KINDS: Final[Mapping[str, Kind]] = {"postgresql": "lease", "postgres": "lease", "postgresql+session": "session"}
_OURS: Final = ("schema", "durable", "pooler", "listen")
_NOT_FOR_THIS: Final = frozenset({"service", "replication", "hostaddr"})
_SET_BY_US: Final = frozenset({"connect_timeout", "client_encoding"})
_WHO: Final = frozenset({"user", "password", "dbname"})
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?|[0-9A-Fa-f:.]{2,45}", re.ASCII)
_NOT_ENCRYPTED: Final = frozenset({"disable", "allow", "prefer"})
_WHOLE_NUMBERS: Final = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
_NOBODY: Final = "/leasehold/asks/nobody"
"""A folder in which no server listens: libpq looks at all options before it looks there."""
_GSS_MODES: Final = ("disable", "prefer", "require")
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
ACCEPTED: Final = "a Connection or AsyncConnection of psycopg, an Engine or Connection of SQLAlchemy, or a URL"


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that a connection needs to know. Its repr is safe to print."""

    kind: Kind
    endpoints: tuple[Endpoint, ...]
    """Tried in this order; the first that can be written to is used."""
    database: str
    parameters: Mapping[str, Hidden] = field(repr=False)
    """For libpq: all but hosts and ports."""
    schema: str = "public"
    durable: bool = True
    """Whether a grant is on the server's disk before it is believed in."""
    trusts_pooler: bool = False
    """Whether the user says that what stands before the server keeps one session for each connection."""
    listen: tuple[Endpoint, ...] = ()
    """Where wake-ups are listened for, if not at the endpoints: past a pooler."""

    @property
    def address(self) -> str:
        """The whole as people write it, without a secret."""
        scheme = "postgresql+session" if self.kind == "session" else "postgresql"
        hosts = ",".join(str(one) for one in self.endpoints if not one.path)
        folder = next((f"?host={one.path}" for one in self.endpoints if one.path not in {"", DEFAULT_SOCKET}), "")
        return f"{scheme}://{hosts}/{quote(self.database, safe='')}{folder}"


@urls.reader_of("a PostgreSQL server")
def target_from_url(url: str) -> Target:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    scheme, userinfo, hosts, path, query = urls.parts(url, _KINDS)
    urls.decoded(url)  # refuses what psycopg would fail to decode, with an error that quotes it
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if query]
    ours = {name: urls.decoded(value) for name, value in pairs if name in _OURS}
    if len(ours) != sum(name in _OURS for name, _ in pairs):
        raise Refused("an option is given twice")
    theirs = "&".join(f"{name}={value}" for name, value in pairs if name not in _OURS)
    conninfo = f"postgresql://{userinfo}{'@' if userinfo else ''}{hosts}/{path}{'?' if theirs else ''}{theirs}"
    return _target(_KINDS[scheme], _parsed(Hidden(conninfo)), ours)


def _parsed(conninfo: Hidden) -> dict[str, Hidden]:
    try:
        found = conninfo_to_dict(conninfo)
    except psycopg.Error:
        found = {}
    if not found and conninfo not in {"", "postgresql:///"}:
        # Not in the handler, where the error that quotes the password would become part of this one.
        raise Refused(
            f"its shape is {SHAPE}; special characters are percent-encoded, and options are those of libpq "
            f"(sslmode, sslrootcert, …) and {', '.join(_OURS)}"
        )
    return {name: Hidden(value) for name, value in found.items() if value is not None}


def _target(kind: Kind, parameters: dict[str, Hidden], ours: Mapping[str, str]) -> Target:
    if not _NOT_FOR_THIS.isdisjoint(parameters):
        raise Refused(f"the options {', '.join(sorted(_NOT_FOR_THIS))} cannot be used here; write the host out")
    for name in _SET_BY_US:
        parameters.pop(name, None)
    hosts = parameters.pop("host", None) or os.environ.get("PGHOST") or ""
    ports = parameters.pop("port", None) or os.environ.get("PGPORT") or ""
    endpoints = _endpoints(hosts, ports)
    if not all(endpoint.is_local for endpoint in endpoints):
        _check_certificates_unless_told(parameters)
    _check_options(parameters)
    return Target(
        kind,
        endpoints,
        str(parameters.get("dbname") or os.environ.get("PGDATABASE") or parameters.get("user") or ""),
        parameters,
        schema=_schema(ours.get("schema", "public")),
        durable=_choice("durable", ours.get("durable", "true"), ("true", "false")) == "true",
        trusts_pooler="pooler" in ours and _choice("pooler", ours["pooler"], ("session",)) == "session",
        listen=_listen_at(ours["listen"]) if "listen" in ours else (),
    )


def _endpoints(hosts: str, ports: str) -> tuple[Endpoint, ...]:
    listed = hosts.split(",")
    numbers = ports.split(",")
    if len(numbers) == 1:
        numbers *= len(listed)
    if len(numbers) != len(listed):
        raise Refused("it has as many ports as hosts, or one, or none")
    return tuple(_endpoint(host, port) for host, port in zip_longest(listed, numbers))


def _endpoint(host: str, port: str) -> Endpoint:
    number = urls.port_in(port) if port else DEFAULT_PORT
    if not host or host.startswith(("/", "@")):
        return Endpoint("", number, host or DEFAULT_SOCKET)
    if not _HOST.fullmatch(host):
        raise Refused(f"its host is not a host name; the shape is {SHAPE}, and IPv6 addresses stand in brackets")
    return Endpoint(host, number)


def _listen_at(text: str) -> tuple[Endpoint, ...]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::([0-9]+))?", text)
    if match is None:
        raise Refused("the option listen is written host[:port]")
    return (_endpoint(match[1] or match[2], match[3] or ""),)


def _schema(name: str) -> str:
    if not SCHEMA_NAME.fullmatch(name):
        raise Refused("the option schema is a name of up to 31 of a-z, 0-9 and _, and does not begin with pg_")
    return name


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise Refused(f"the option {name} is {' or '.join(allowed)}")
    return value


def _check_certificates_unless_told(parameters: dict[str, Hidden]) -> None:
    if "sslmode" in parameters or "PGSSLMODE" in os.environ:
        return
    parameters["sslmode"] = Hidden("verify-full")
    own_authority = Path("~/.postgresql/root.crt").expanduser()
    told = "sslrootcert" in parameters or "PGSSLROOTCERT" in os.environ or own_authority.exists()
    if not told and pq.version() >= SYSTEM_AUTHORITIES_SINCE:
        parameters["sslrootcert"] = Hidden("system")


def _check_options(parameters: Mapping[str, Hidden]) -> None:
    """Refuse what libpq would refuse when it connects, where that looks like a server that is not there."""
    if not _are_refused(parameters):
        return
    if _are_refused({}):
        raise Refused("a setting in the environment (PGSSLMODE and the like) has a value that libpq does not allow")
    if _are_refused({name: value for name, value in parameters.items() if name == "sslmode"}):
        raise Refused(f"the option sslmode is {', '.join(_SSL_MODES[:-1])} or {_SSL_MODES[-1]}")
    wrong = [name for name, value in parameters.items() if _are_refused({name: value})]
    if wrong:
        raise Refused(f"libpq does not allow the value of the option {' and '.join(wrong)}")
    raise Refused(f"libpq does not allow these values together: {', '.join(sorted(parameters.keys() - _WHO))}")


def _are_refused(parameters: Mapping[str, Hidden]) -> bool:
    if any(not re.fullmatch(r"-?[0-9]{1,9}", parameters.get(name) or "0") for name in _WHOLE_NUMBERS):
        return True
    if (parameters.get("gssencmode") or "disable") not in _GSS_MODES:
        return True
    # No server in a folder speaks Kerberos; what is given here is not looked up in the environment or a file.
    nobody = {"host": _NOBODY, "hostaddr": "", "port": str(DEFAULT_PORT), "gssencmode": "disable"}
    settings = {"password": Hidden("-"), **parameters, **nobody}
    pgconn = pq.PGconn.connect_start(Hidden(make_conninfo("", **settings)).encode())
    words = Hidden(pgconn.get_error_message())
    pgconn.finish()
    return _NOBODY not in words


# Client objects


def target_from_client(client: object) -> Target:
    """Read the settings of a client object, or raise `Misuse` that says which objects are accepted.

    Only its settings are read: connections of our own are opened with them.
    """
    return urls.settings_of(client, ACCEPTED, _target_from_client)


def _target_from_client(client: object) -> Target:
    settings = _settings_of(client)
    # As the client does: what it was content with is not tightened behind its user's back, but warned of.
    settings.setdefault("sslmode", Hidden(os.environ.get("PGSSLMODE", "prefer")))
    return _target("lease", settings, {})


def _settings_of(client: Any) -> dict[str, Hidden]:
    if type(client).__module__.partition(".")[0] == "sqlalchemy":
        return _settings_of_sqlalchemy(client)
    try:
        found = {**client.info.get_parameters(), "password": client.info.password}
    except (AttributeError, psycopg.Error):
        found = {}
    if not found:
        raise Refused("it is closed, or is no connection")
    return {name: Hidden(value) for name, value in found.items() if value and name not in _NOT_FOR_THIS}


def _settings_of_sqlalchemy(client: Any) -> dict[str, Hidden]:
    url = getattr(getattr(client, "engine", client), "url", None)
    if url is None or not str(url.drivername).startswith("postgres"):
        raise Refused("it is not connected to PostgreSQL by a URL")
    given = {
        "host": url.host, "port": url.port, "user": url.username, "password": url.password, "dbname": url.database,
    }  # fmt: skip
    given |= {name: value for name, value in url.query.items() if isinstance(value, str)}
    settings = {name: Hidden(value) for name, value in given.items() if value is not None}
    try:
        make_conninfo("", **settings)
        known = True
    except psycopg.Error:
        known = False
    if not known:
        raise Refused("its URL has options that libpq does not know")
    return settings


def warn_of_transport(target: Target, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read or whose server nobody has checked."""
    mode = target.parameters.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    if mode == "verify-full" or all(one.is_local for one in target.endpoints):
        return
    if mode in _NOT_ENCRYPTED:
        problem = "may be talked to in the clear: whoever is on the way can read the password and forge grants"
    else:
        problem = "is not known to be the server it should be: whoever is on the way can forge grants"
    advice = "use sslmode=verify-full, and sslrootcert=FILE for an authority of your own"
    urls.warn_once(target.address, f"{problem}, with sslmode={mode}; {advice}", stacklevel + 1)
