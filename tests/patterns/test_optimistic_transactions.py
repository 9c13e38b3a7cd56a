"""How long attempts pause, the same in async code, and how etcd and gRPC say that somebody was first."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncmy
import grpc
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support.etcd_server import encoded, running_etcd
from tests.support.mariadb_server import PASSWORD

from leasehold import Misuse, TooManyConflicts, VersionConflict
from leasehold.patterns.optimistic import (
    AsyncVersions,
    Versioned,
    is_conflict,
    must_hold,
    retry_on_conflict,
)

_tables = itertools.count()


def _table() -> str:
    return f"fresh_{os.getpid()}_{next(_tables)}"


def test_pauses_are_full_jitter_up_to_a_bound_that_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)

    @retry_on_conflict(attempts=12, within=60)
    def always() -> None:
        raise VersionConflict("again")

    for chance in (1.0, 0.0, 0.5):
        monkeypatch.setattr(random, "random", lambda chance=chance: chance)
        with pytest.raises(TooManyConflicts):
            always()
    bounds = [min(0.005 * 2**number, 0.5) for number in range(11)]
    assert pauses == [*bounds, *[0.0] * 11, *[bound / 2 for bound in bounds]]


# Async code

Open = Callable[[], contextlib.AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["psycopg", "asyncmy", "sqlalchemy"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    @contextlib.asynccontextmanager
    async def by_psycopg() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(request.getfixturevalue("postgres_server").url) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def by_asyncmy() -> AsyncIterator[Any]:
        port = request.getfixturevalue("mariadb_server").port
        connection = await asyncmy.connect(
            host="127.0.0.1", port=port, user="leasehold", password=PASSWORD, database="leasehold"
        )
        yield connection
        connection.close()

    @contextlib.asynccontextmanager
    async def by_sqlalchemy() -> AsyncIterator[Any]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 30})
        async with engine.connect() as connection:
            yield connection
        await engine.dispose()

    ways: dict[str, Open] = {"psycopg": by_psycopg, "asyncmy": by_asyncmy, "sqlalchemy": by_sqlalchemy}
    return ways[request.param]


def test_async_transfers_keep_the_sum(opening: Open) -> None:
    table = _table()

    async def clerk(number: int) -> None:
        async with opening() as connection:
            store = AsyncVersions(connection, table=table)

            @retry_on_conflict(attempts=300, within=60)
            async def transfer(source: str, target: str) -> None:
                one, other = await store.read(source), await store.read(target)
                await asyncio.sleep(0.001)
                await store.write_all(
                    {
                        source: Versioned(one.value - 1, one.version),
                        target: Versioned(other.value + 1, other.version),
                    }
                )

            for step in range(6):
                await transfer("abc"[(number + step) % 3], "abc"[(number + step + 1) % 3])

    async def run() -> None:
        async with opening() as connection:
            store = AsyncVersions(connection, table=table)
            await store.create()
            for account in "abc":
                assert await store.write(account, 100, 0) == 1
            with pytest.raises(VersionConflict):
                await store.write_all({"a": Versioned(0, 1), "b": Versioned(0, 7)})
            await asyncio.gather(*(clerk(number) for number in range(3)))
            accounts = [await store.read(account) for account in "abc"]
            assert sum(account.value for account in accounts) == 300
            assert sum(account.version for account in accounts) == 3 + 2 * 3 * 6

    asyncio.run(run())


# etcd and gRPC


def test_a_transaction_of_etcd_whose_conditions_failed_is_a_conflict(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as server:
        key, overtaken = encoded("account"), [False, True]

        @retry_on_conflict
        def add(amount: int) -> None:
            kept = server.ask("/v3/kv/range", {"key": key}).get("kvs", [{"value": "", "mod_revision": "0"}])[0]
            if overtaken.pop():
                server.ask("/v3/kv/put", {"key": key, "value": encoded("100")})
            balance = int(base64.b64decode(kept["value"]) or 0) + amount
            compare = [{"key": key, "target": "MOD", "modRevision": kept["mod_revision"]}]
            put = [{"requestPut": {"key": key, "value": encoded(str(balance))}}]
            must_hold(server.ask("/v3/kv/txn", {"compare": compare, "success": put}))

        add(5)
        assert base64.b64decode(server.ask("/v3/kv/range", {"key": key})["kvs"][0]["value"]) == b"105"
        assert add.conflicts.in_vain == 1  # type: ignore[attr-defined]


def test_what_clients_of_etcd_say_is_understood() -> None:
    class Answer:
        succeeded = False

    refused: Any
    for refused in (False, (False, []), {}, {"succeeded": False}, Answer()):
        with pytest.raises(VersionConflict):
            must_hold(refused)
    for fine in (True, (True, [1]), {"succeeded": True}):
        assert must_hold(fine) is fine
    for wrong in (None, 1, "yes", ()):
        with pytest.raises(Misuse):
            must_hold(wrong)


def test_what_a_grpc_server_aborts_is_recognised() -> None:
    def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode[request.decode()], "planted")
        raise AssertionError

    calls = grpc.method_handlers_generic_handler("test", {"ask": grpc.unary_unary_rpc_method_handler(handle)})
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((calls,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            ask: Any = channel.unary_unary("/test/ask")
            for status, expected in (("ABORTED", True), ("NOT_FOUND", False)):
                with pytest.raises(grpc.RpcError) as raised:
                    ask(status.encode(), timeout=20)
                assert is_conflict(raised.value) is expected
        server.stop(None).wait(20)
