"""From a redis-py (or valkey-py) client object to a `Target`.

Only its settings are read; connections of our own are opened with them, because the client's command path resends
requests by itself. The library is not imported: whoever passes such an object has imported it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leasehold.errors import Misuse
from leasehold.wires.redis_target import DEFAULT_PORT, Credentials, Target, fixed_credentials, no_credentials
from leasehold.wires.urls import Endpoint, Hidden

if TYPE_CHECKING:
    import ssl

ACCEPTED = "redis.Redis, redis.asyncio.Redis, or a primary's client from their Sentinel (the same in valkey-py)"
_CANNOT_BE_TAKEN_OVER = ("redis_connect_func", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled")


def target_from_client(client: object) -> Target:
    """Read the settings of a client object, or raise `Misuse` that says which objects are accepted."""
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if not isinstance(settings, Mapping):
        raise Misuse(f"a {type(client).__name__} object cannot be used as an engine; accepted are {ACCEPTED}, or a URL")
    for name in _CANNOT_BE_TAKEN_OVER:
        if settings.get(name):
            raise Misuse(f"this client sets {name}, which our own connections cannot honour; give a URL instead")
    tls = tls_of(settings) if _is_tls(pool) else None
    service = getattr(pool, "service_name", None)
    if service is not None:
        return _sentinel_target(pool, str(service), settings, tls)
    return Target(
        (_endpoint_of(settings),), None, int(settings.get("db") or 0), tls=tls, credentials=credentials_of(settings)
    )


def _sentinel_target(pool: Any, service: str, settings: Mapping[str, Any], tls: ssl.SSLContext | None) -> Target:
    if not getattr(pool, "is_master", True):
        raise Misuse("this client talks to replicas; leases live on the primary: use Sentinel.master_for(…)")
    sentinels = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    if any(_is_tls(sentinel) for sentinel in sentinels) != (tls is not None):
        raise Misuse("TLS must be used for the Sentinels and for the servers alike, or for neither")
    return Target(
        tuple(_endpoint_of(sentinel.connection_kwargs) for sentinel in sentinels),
        service,
        int(settings.get("db") or 0),
        tls=tls,
        credentials=credentials_of(settings),
        sentinel_credentials=credentials_of(sentinels[0].connection_kwargs),
    )


def _endpoint_of(settings: Mapping[str, Any]) -> Endpoint:
    if settings.get("path"):
        return Endpoint("", 0, str(settings["path"]))
    return Endpoint(str(settings.get("host") or "localhost"), int(settings.get("port") or DEFAULT_PORT))


def credentials_of(settings: Mapping[str, Any]) -> Callable[[], Credentials | None]:
    """How a client with these settings is let in."""
    provider = settings.get("credential_provider")
    if provider is None:
        password = settings.get("password")
        return fixed_credentials(settings.get("username"), _text(password)) if password else no_credentials

    def ask_provider() -> Credentials | None:
        *username, password = provider.get_credentials()
        return Hidden(username[0] if username else "default"), Hidden(_text(password))

    return ask_provider


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_tls(pool: Any) -> bool:
    # A Sentinel's connection class with TLS inherits from the plain one and from SSLConnection.
    return any(base.__name__ == "SSLConnection" for base in pool.connection_class.__mro__)


def tls_of(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """What a client with these settings checks."""
    import ssl

    context = ssl.create_default_context(
        cafile=settings.get("ssl_ca_certs"), capath=settings.get("ssl_ca_path"), cadata=settings.get("ssl_ca_data")
    )
    if settings.get("ssl_certfile"):
        context.load_cert_chain(settings["ssl_certfile"], settings.get("ssl_keyfile"), settings.get("ssl_password"))
    context.check_hostname = bool(settings.get("ssl_check_hostname", True))
    level = settings.get("ssl_cert_reqs", "required")
    if level in {None, "none", ssl.CERT_NONE}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif level in {"optional", ssl.CERT_OPTIONAL}:
        context.verify_mode = ssl.CERT_OPTIONAL
    if settings.get("ssl_min_version") is not None:
        context.minimum_version = settings["ssl_min_version"]
    if settings.get("ssl_ciphers"):
        context.set_ciphers(settings["ssl_ciphers"])
    return context
