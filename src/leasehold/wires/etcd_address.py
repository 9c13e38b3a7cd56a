"""Where an etcd cluster is and how to be let in: from a URL or a client object to an `Address`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from leasehold.wires import urls
from leasehold.wires.urls import Endpoint, Hidden, Refused

DEFAULT_PORT: Final = 2379
SHAPE: Final = "etcd://[user:password@]host[:port][,host[:port]…]"
ACCEPTED: Final = "an Etcd3Client of etcd3gw, or a URL"


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


@urls.reader_of("an etcd cluster")
def address_from_url(url: str) -> Address:
    """Understand a URL, or raise `InvalidURL` that says what is wrong and shows nothing of it."""
    scheme, userinfo, hosts, path, query = urls.parts(url, ("etcd", "etcds"))
    if path:
        raise Refused(f"there is nothing to name after the hosts; the shape is {SHAPE}")
    endpoints = urls.endpoints(hosts, DEFAULT_PORT, SHAPE)
    user, password = urls.credentials(userinfo, SHAPE) or (None, None)
    options = urls.options(query)
    if scheme == "etcds":
        urls.check_options(options, urls.TLS_OPTIONS)
    else:
        urls.check_options(options, (), "; ca, cert and key belong to etcds://")
    return Address(endpoints, user, password, _tls(options) if scheme == "etcds" else None)


def _tls(options: Mapping[str, str]) -> Tls:
    if ("cert" in options) != ("key" in options):
        raise Refused("cert and key belong together")
    try:
        files = {name: Path(path).read_bytes() for name, path in options.items()}
    except (OSError, ValueError):
        raise Refused("a file named by ca, cert or key cannot be read") from None
    if not all(b"-----BEGIN " in content for content in files.values()):
        raise Refused("a file named by ca, cert or key is not in PEM form")
    return Tls(files.get("ca"), files.get("cert"), files.get("key"))


def address_from_client(client: object) -> Address:
    """Read the settings of a client object, or raise `Misuse` that says which objects are accepted.

    Only its settings are read: connections of our own are opened with them. Its gateway is on the same port as gRPC.
    """
    return urls.settings_of(client, ACCEPTED, _address_from_gateway)


def _address_from_gateway(client: Any) -> Address:
    try:
        host, port, scheme = client.host, client.port, client.protocol
        session = client.session
        checks, cert, headers = session.verify, session.cert, session.headers
    except AttributeError:
        raise Refused("it is no client of etcd3gw") from None
    if "authorization" in {str(name).lower() for name in headers}:
        raise Refused("it has logged in already, and what it has is good for a while only; give user and password")
    endpoints = urls.endpoints(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}", DEFAULT_PORT, SHAPE)
    if scheme != "https":
        return Address(endpoints)
    if checks is False:
        raise Refused("it does not check who answers (verify is False)")
    files = dict(zip(("cert", "key"), cert or (), strict=False)) | ({"ca": checks} if isinstance(checks, str) else {})
    return Address(endpoints, tls=_tls(files))


def warn_of_transport(address: Address, stacklevel: int) -> None:
    """Warn once about each address whose traffic others can read."""
    if address.tls is None:
        urls.warn_of_plain(
            str(address),
            address.endpoints,
            "plain TCP to another machine: whoever is on the way can read the password and forge grants; use etcds://",
            stacklevel + 1,
        )
