"""A fence adds at most one round trip, and none where it rides in the caller's own statement, script or request.

Counted by a proxy between client and server, beside the same write by the same client without a fence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from tests.fences.counting_proxy import CountingProxy
from tests.fences.guards import Guard
from tests.fences.registry import ADAPTERS, ASYNC_ADAPTERS, KINDS, every_kind, opened

from leasehold.fences import SqlFence

RIDES = ("redis", "valkey", "column", "http", "etcd", "dynamodb")
"""These add none; all others add one."""
IN_THIS_PROCESS = ("sqlite", "file", "http asyncio")
WARM = 12  # psycopg prepares a statement when it comes for the fifth time, which takes a round trip
TRIES = 5


def added_by(kind: str) -> int:
    return 0 if kind.startswith(RIDES) else 1


COUNTED = [kind for kind in KINDS if not kind.startswith(IN_THIS_PROCESS) and KINDS[kind].place != "sqlite"]
OFTEN = [*ADAPTERS, *ASYNC_ADAPTERS, "psycopg2 postgresql", "django mysql"]


@contextmanager
def counted(kind: str, address: str, resource: str) -> Iterator[tuple[Guard, CountingProxy]]:
    """A client whose server is behind a proxy."""
    host, port = re.findall(r"(127\.0\.0\.1):(\d+)", address)[0]
    with CountingProxy(host, int(port)) as proxy:
        through = address.replace(f"{host}:{port}", f"{host}:{proxy.port}")
        with closing(opened(kind, through, resource, patience=30)) as guard:
            yield guard, proxy


def least(proxy: CountingProxy, deed: Callable[[], object]) -> int:
    """Of several times: heartbeats and the like can only add to it."""
    return min(proxy.round_trips_of(deed) for _ in range(TRIES))


@pytest.mark.parametrize("kind", [one for one in every_kind(OFTEN) if one.values[0] in COUNTED])
def test_a_fence_adds_no_more_round_trips_than_it_says(
    kind: str, address_of: Callable[[str], str], resource: str
) -> None:
    with counted(kind, address_of(KINDS[kind].place), resource) as (guard, proxy):
        for token in range(WARM):
            guard.write(token, f"warm {token}")
            guard.write_past(f"past {token}")
        tokens = iter(range(WARM, 1000))
        plain = least(proxy, lambda: guard.write_past(f"past {next(tokens)}"))
        fenced = least(proxy, lambda: guard.write(next(tokens), f"fenced {next(tokens)}"))
        again = least(proxy, lambda: guard.write(900, f"again {next(tokens)}"))
    assert plain > 0, "the proxy counts"
    assert (fenced - plain, again - plain) == (added_by(kind), added_by(kind))


def test_psycopg2_without_autocommit_adds_two(address_of: Callable[[str], str], resource: str) -> None:
    """The exception: its commit() takes no other statement along, so that the savepoint's end is one of its own."""
    change = "UPDATE thing SET value = 'x' WHERE resource = 'none'"
    with counted("psycopg2 postgresql", address_of("postgresql"), resource) as (guard, proxy):
        connection = guard.given  # type: ignore[attr-defined]
        connection.autocommit = False
        fence, tokens = SqlFence(connection), iter(range(1000))
        fence.announce(resource, 0)

        def plain() -> None:
            with connection.cursor() as cursor:
                cursor.execute(change)
            connection.commit()

        def fenced() -> None:
            with fence.writing(resource, next(tokens)), connection.cursor() as cursor:
                cursor.execute(change)

        assert least(proxy, fenced) - least(proxy, plain) == 2
