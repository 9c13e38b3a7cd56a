"""One key, one execution, one result, in async code."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncmy
import psycopg
import pytest
from tests.patterns.conftest import PATIENT, async_store_of, store_of
from tests.support.mariadb_server import PASSWORD

from leasehold import KeyReused, StaleToken
from leasehold.patterns.idempotency import AsyncIdempotency, AsyncRun, InThreads, SqlKeys, Store


def test_async_callers_at_once_and_one_execution(store: Store) -> None:
    async def run() -> None:
        async with async_store_of(store) as keeping:
            await use(AsyncIdempotency(keeping, scope="payments"))

    async def use(keys: AsyncIdempotency) -> None:
        runs = []

        async def charge(run: AsyncRun) -> int:
            runs.append(run.token)
            await run.reach("begun")
            await asyncio.sleep(0.2)
            await run.renew()
            return run.token

        results = await asyncio.gather(*(keys.once("order-1", charge, payload=1, wait=PATIENT) for _ in range(50)))
        assert set(results) == set(runs)
        assert len(runs) == 1
        with pytest.raises(KeyReused):
            await keys.once("order-1", charge, payload=2)

        @keys.idempotent(key=lambda order: f"mail/{order}")
        async def send(order: int) -> str:
            runs.append(order)
            return "sent"

        assert [await send(5), await send(5)] == ["sent", "sent"]
        assert runs[1:] == [5]
        assert await keys.forget("mail/5", because="to be sent again")
        assert await send(5) == "sent"
        assert len(runs) == 3
        assert await keys.sweep() == 0

    asyncio.run(run())


def test_an_async_run_that_stalled_is_refused(store: Store) -> None:
    async def run() -> None:
        async with async_store_of(store) as keeping:
            keys = AsyncIdempotency(keeping, scope="payments", lease=0.2)

            async def takes_over(_run: AsyncRun) -> str:
                return "by the second"

            async def stalls(_run: AsyncRun) -> str:
                await asyncio.sleep(0.4)
                assert await keys.once("order-1", takes_over, wait=5) == "by the second"
                return "by the first"

            with pytest.raises(StaleToken):
                await keys.once("order-1", stalls)
            assert await keys.once("order-1", stalls) == "by the second"

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_an_async_result_commits_with_the_callers_own_transaction(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def connected() -> Any:
        if kind == "postgresql":
            return await psycopg.AsyncConnection.connect(request.getfixturevalue("postgres_server").url)
        port = request.getfixturevalue("mariadb_server").port
        return await asyncmy.connect(
            host="127.0.0.1", port=port, user="leasehold", password=PASSWORD, database="leasehold"
        )

    async def run(store: SqlKeys) -> None:
        keys, own, ends = AsyncIdempotency(InThreads(store), scope="payments", lease=0.2), await connected(), []

        async def pay(run: AsyncRun) -> str:
            await run.complete("paid", on=own)
            ends.append(run.token)
            if len(ends) == 1:
                await own.rollback()
                raise KeyboardInterrupt  # as good as a crash
            await own.commit()
            return "paid"

        try:
            await keys.once("order-1", pay)
        except KeyboardInterrupt:
            assert await keys.once("order-1", pay, wait=PATIENT) == "paid"
        assert await keys.once("order-1", pay) == "paid"
        assert len(ends) == 2
        closing = own.close()
        if closing is not None:
            await closing

    with store_of(kind, request, tmp_path) as store:
        asyncio.run(run(store))
