"""Where a ZooKeeper ensemble is and how to be let in: from a URL or a client object to an `Address`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from leasehold.wires import urls
from leasehold.wires.urls import Endpoint, Hidden, Refused

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT: Final = 2181
DEFAULT_TICK: Final = 2.0
SHAPE: Final = "zookeeper://[user:password@]host[:port][,host[:port]…][/chroot]"
ACCEPTED: Final = "a KazooClient, or a URL"
_LONGEST_TICK: Final = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """Everything that a connection needs to know. Its repr is safe to print."""

    endpoints: tuple[Endpoint, ...]
    chroot: str = ""
    """The path below which everything is kept: empty, or beginning with a slash."""
    login: Hidden | None = None
    """``user:password``."""
    sasl: bool = False
    """Whether to log in by SASL (DIGEST-MD5); else by the scheme ``digest``, which sends the password."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    tick: float = DEFAULT_TICK
    """The ensemble's tickTime, in seconds: within so long a follower tells the leader whom it has heard of."""

    def __str__(self) -> str:
        """The whole as people write it, without a secret."""
        return f"{'zookeepers' if self.tls else 'zookeeper'}://{','.join(map(str, self.endpoints))}{self.chroot}"


@urls.reader_of("a ZooKeeper ensemble")
def address_from_url(url: str) -> Address:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    scheme, userinfo, hosts, path, query = urls.parts(url, ("zookeeper", "zookeepers"))
    endpoints = urls.endpoints(hosts, DEFAULT_PORT, SHAPE)
    options = urls.options(query)
    known = ("tick", "auth", *(urls.TLS_OPTIONS if scheme == "zookeepers" else ()))
    urls.check_options(options, known, "" if scheme == "zookeepers" else "; ca, cert and key belong to zookeepers://")
    tick = _tick(options.get("tick", Hidden(DEFAULT_TICK)))
    login = _login(userinfo)
    sasl = _is_sasl(options.get("auth", Hidden("digest")), login)
    tls = urls.tls(options) if scheme == "zookeepers" else None
    return Address(endpoints, _chroot(path), login, sasl, tls, tick)


def _chroot(path: str) -> str:
    parts = [urls.decoded(part) for part in path.split("/")] if path else []
    if any(part in ("", ".", "..") or not part.isprintable() or "/" in part for part in parts):
        raise Refused("its path is not one of ZooKeeper: parts with a slash between them, none empty, '.' or '..'")
    if parts[:1] == ["zookeeper"]:
        raise Refused("what is below /zookeeper belongs to ZooKeeper itself; choose another path")
    return "".join("/" + part for part in parts)


def _login(userinfo: Hidden) -> Hidden | None:
    given = urls.credentials(userinfo, SHAPE)
    if given is None:
        return None
    if ":" in given[0]:
        raise Refused("a user's name has no ':' in ZooKeeper")
    return Hidden(":".join(given))


def _is_sasl(text: str, login: Hidden | None) -> bool:
    if text not in ("digest", "sasl"):
        raise Refused("auth is how to log in: digest (as if left out) or sasl")
    if text == "sasl" and login is None:
        raise Refused("auth=sasl needs a user and a password: zookeeper://user:password@host?auth=sasl")
    return text == "sasl"


def _tick(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) or not 0 < float(text) <= _LONGEST_TICK:
        raise Refused("tick is the ensemble's tickTime in seconds, more than 0 and at most 60, as in tick=2")
    return float(text)


def address_from_client(client: object) -> Address:
    """Read the settings of a client object, or raise `Misuse` that says which objects are accepted.

    Only its settings are read: sessions of our own are opened with them, so that its own is not a lease's life.
    """
    return urls.settings_of(client, ACCEPTED, _address_from_kazoo)


def _address_from_kazoo(client: Any) -> Address:
    try:
        hosts, chroot, logins = list(client.hosts), client.chroot, set(client.auth_data)
        in_tls, files = client.use_ssl, {"ca": client.ca, "cert": client.certfile, "key": client.keyfile}
        checks, sasl = client.verify_certs, client._connection.sasl_options
    except AttributeError:
        raise Refused("it is no client of kazoo") from None
    login: Hidden | None
    if sasl and not logins and sasl.get("mechanism") == "DIGEST-MD5":
        login = Hidden(f"{sasl.get('username', '')}:{sasl.get('password', '')}")
    elif sasl or any(scheme != "digest" for scheme, _ in logins) or len(logins) > 1:
        raise Refused("it identifies itself in another way than by one user and password (digest, or SASL DIGEST-MD5)")
    else:
        login = next((Hidden(login) for _, login in logins), None)
    if in_tls and not checks:
        raise Refused("it does not check who answers (verify_certs is off)")
    tls = urls.tls({name: path for name, path in files.items() if path}) if in_tls else None
    endpoints = tuple(Endpoint(str(host), int(port)) for host, port in hosts)
    return Address(endpoints, _chroot(chroot.strip("/")), login, bool(sasl), tls)


def warn_of_transport(address: Address, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read."""
    if address.tls is None:
        urls.warn_of_plain(
            str(address),
            address.endpoints,
            "plain TCP to another machine: whoever is on the way can read the password and forge grants; "
            "use zookeepers://",
            stacklevel + 1,
        )
