"""Connecting to PostgreSQL in time, in either world: libpq talks; what it would wait for is waited for here."""

from __future__ import annotations

import re
from typing import Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires.postgres_errors import unreachable, why_not_let_in
from leasehold.wires.postgres_line import Line
from leasehold.wires.postgres_target import DEFAULT_SOCKET, Target
from leasehold.wires.sockets import Sockets
from leasehold.wires.urls import Endpoint, Hidden

USUAL: Final = {
    "client_encoding": "UTF8",
    "gssencmode": "disable",
    # A peer that vanished is noticed within half a minute.
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
OLDEST_SERVER: Final = 100000
"""PostgreSQL 10."""
_NO_ADDRESS: Final = "its name has no address"


async def dial(target: Target, endpoints: tuple[Endpoint, ...], sockets: Sockets, label: str, until: float) -> Line:
    """A connection to the first endpoint that can be written to, or `EngineUnavailable` by `until`."""
    failure: EngineError = unreachable(target.address, _NO_ADDRESS)
    for position, endpoint in enumerate(endpoints):
        # Leave a share of the time for the others.
        share = (until - sockets.world.now()) / (len(endpoints) - position)
        try:
            return await _dial_endpoint(target, endpoint, sockets, label, sockets.world.now() + share)
        except EngineUnavailable as error:
            failure = error
    raise failure


async def _dial_endpoint(target: Target, endpoint: Endpoint, sockets: Sockets, label: str, until: float) -> Line:
    failure: EngineError = unreachable(target.address, _NO_ADDRESS)
    places = await _places(target, endpoint, sockets, until)
    for position, place in enumerate(places):
        share = (until - sockets.world.now()) / (len(places) - position)
        try:
            return await _connect(target, place, sockets, label, sockets.world.now() + share)
        except EngineUnavailable as error:
            failure = error
    raise failure


async def _places(target: Target, endpoint: Endpoint, sockets: Sockets, until: float) -> list[dict[str, str]]:
    """What to tell libpq about an endpoint, one for each of its addresses."""
    port = str(endpoint.port)
    if endpoint.path:
        return [{"port": port} if endpoint.path == DEFAULT_SOCKET else {"host": endpoint.path, "port": port}]
    try:
        found = await sockets.look_up(endpoint.host, endpoint.port, until)
    except TimeoutError:
        raise unreachable(target.address, "its name could not be looked up in time") from None
    except OSError as error:
        raise unreachable(target.address, error.strerror or "its name is not known") from None
    # The host stands beside its address: its certificate is for the host.
    return [{"host": endpoint.host, "hostaddr": place[0], "port": port} for _, place in found]


async def _connect(target: Target, place: dict[str, str], sockets: Sockets, label: str, until: float) -> Line:
    settings = {**USUAL, "fallback_application_name": application_name(label), **target.parameters, **place}
    pgconn = pq.PGconn.connect_start(Hidden(make_conninfo("", **settings)).encode())
    failure = ""
    try:
        # libpq wants its socket to be written to first.
        status: int = pq.PollingStatus.WRITING
        while pgconn.status != pq.ConnStatus.BAD and status != pq.PollingStatus.OK:
            to_write = status == pq.PollingStatus.WRITING
            if not await sockets.ready(pgconn.socket, to_write=to_write, until=until):
                raise TimeoutError
            status = pgconn.connect_poll()
        if pgconn.status == pq.ConnStatus.BAD:
            failure = why_not_let_in(pgconn.get_error_message(), target.parameters.get("password"))
    except TimeoutError:
        failure = "no answer in time"
    except (OSError, psycopg.Error):
        failure = "the connection broke"
    except BaseException:
        pgconn.finish()
        raise
    if failure:
        pgconn.finish()
        raise unreachable(target.address, failure)
    return _checked(Line(pgconn, sockets, target.address), pgconn, target)


def _checked(line: Line, pgconn: pq.abc.PGconn, target: Target) -> Line:
    if pgconn.server_version < OLDEST_SERVER:
        line.close()
        raise EngineError(f"{target.address} runs a PostgreSQL that is older than 10, and that is needed at least")
    # Servers before 14 do not tell; there the first write does.
    for setting in (b"in_hot_standby", b"default_transaction_read_only"):
        if pgconn.parameter_status(setting) == b"on":
            line.close()
            raise EngineUnavailable(
                f"{target.address} takes no writes ({setting.decode()} is on); leases live on the primary: connect to "
                "that, or give all servers as host1,host2"
            )
    return line


def application_name(label: str) -> str:
    """A name for pg_stat_activity, which shows printable ASCII and 63 characters of it."""
    return ("leasehold:" + re.sub(r"[^!-~]", "_", label))[:63]
