"""Where Consul is and how to be let in: from a URL or a client object to an `Address`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from leasehold.wires import urls
from leasehold.wires.urls import Endpoint, Hidden, Refused

if TYPE_CHECKING:
    import ssl

DEFAULT_PORTS: Final = {"consul": 8500, "consuls": 8501}
SHAPE: Final = "consul://host[:port][,host[:port]…][/?token=…]"
ACCEPTED: Final = "a Consul object of py-consul, or a URL"
LEAST_TTL: Final = 10.0
"""Consul's own, unless its session_ttl_min says otherwise."""
_LOWEST_LEAST_TTL: Final = 0.1
_OPTIONS: Final = ("token", "least_ttl")


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


@urls.reader_of("a Consul agent")
def address_from_url(url: str) -> Address:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    scheme, userinfo, hosts, path, query = urls.parts(url, tuple(DEFAULT_PORTS))
    if userinfo or "@" in url:
        raise Refused(f"Consul knows no users before the host, only tokens; the shape is {SHAPE}")
    if path:
        raise Refused(f"there is nothing to name after the hosts; the shape is {SHAPE}")
    endpoints = urls.endpoints(hosts, DEFAULT_PORTS[scheme], SHAPE)
    options = urls.options(query)
    known = (*_OPTIONS, *(urls.TLS_OPTIONS if scheme == "consuls" else ()))
    urls.check_options(options, known, "" if scheme == "consuls" else "; ca, cert and key belong to consuls://")
    if ("cert" in options) != ("key" in options):
        raise Refused("cert and key belong together")
    tls = urls.tls(options) if scheme == "consuls" else None
    return Address(endpoints, _token(options.get("token")), _least_ttl(options.get("least_ttl")), tls)


def _token(text: Hidden | None) -> Hidden | None:
    # It becomes a line of a request: nothing in it may end that line.
    if text is not None and not re.fullmatch(r"[!-~]{1,512}", text):
        raise Refused("its token is not a word of printable ASCII characters")
    return text


def _least_ttl(text: str | None) -> float:
    if text is None:
        return LEAST_TTL
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text) or float(text) < _LOWEST_LEAST_TTL:
        raise Refused(f"least_ttl is a number of seconds, at least {_LOWEST_LEAST_TTL}: the agents' session_ttl_min")
    return float(text)


def address_from_client(client: object) -> Address:
    """Read the settings of a client object, or raise `Misuse` that says which objects are accepted.

    Only its settings are read: connections of our own are opened with them.
    """
    return urls.settings_of(client, ACCEPTED, _address_from_consul)


def _address_from_consul(client: Any) -> Address:
    try:
        base, token, checks, cert = client.http.base_uri, client.token, client.http.verify, client.http.cert
    except AttributeError:
        raise Refused("it is no client of py-consul") from None
    scheme, _, authority = str(base).partition("://")
    if scheme not in {"http", "https"}:
        raise Refused("it is connected in another way than by HTTP")
    kind = "consul" if scheme == "http" else "consuls"
    tls = None
    if kind == "consuls":
        if checks is False:
            raise Refused("it does not check who answers (verify is False)")
        files = dict(zip(("cert", "key"), (cert,) if isinstance(cert, str) else cert or (), strict=False))
        tls = urls.tls(files | ({"ca": checks} if isinstance(checks, str) else {}))
    endpoints = urls.endpoints(authority.partition("/")[0], DEFAULT_PORTS[kind], SHAPE)
    return Address(endpoints, _token(Hidden(token) if token else None), tls=tls)


def warn_of_transport(address: Address, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read."""
    if address.tls is None:
        urls.warn_of_plain(
            str(address),
            address.endpoints,
            "plain HTTP to another machine: whoever is on the way can read the token and forge grants; "
            "use consuls://, or the agent on this machine",
            stacklevel + 1,
        )
