"""Leaders are elected, observed, resign and are followed in the same way on every engine, in both worlds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.patterns.conftest import engine_of

from leasehold import AsyncLeasehold, Leasehold, NotAcquired
from leasehold.patterns.election import AsyncElection, AsyncTerm, Election, Leader, Term

PATIENT, TTL = 60.0, 20.0
LONG = ["etcd", "zookeeper", "consul", "redlock", "postgres+session", "mariadb+session"]
"""Whose servers take their time to start, or that are like others."""


@pytest.fixture(
    params=["sqlite", "redis", "postgres", "mariadb", *(pytest.param(one, marks=pytest.mark.nightly) for one in LONG)]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with engine_of(request.param, request, tmp_path) as url:
        yield url


def test_a_leader_is_observed_resigns_and_is_followed(url: str) -> None:
    name, until, led = f"leader-{time.monotonic_ns()}", threading.Event(), list[int]()

    def work(term: Term) -> None:
        led.append(term.token)
        until.set()

    with Leasehold(url, label="one") as one, Leasehold(url, label="two") as two:
        second = Election(two, name, ttl=TTL)
        seen = second.observe(every=0.05)
        assert next(seen) is None
        following = threading.Thread(target=second.serve, args=(work,), kwargs={"until": until})
        with Election(one, name, ttl=TTL).lead(wait=PATIENT) as term:
            leader = next(seen)
            assert isinstance(leader, Leader)
            assert (leader.token, leader.holder.partition("@")[0]) == (term.token, "one")
            with pytest.raises(NotAcquired), second.lead(wait=0):
                pytest.fail("two lead at once")
            following.start()
            term.resign("enough")
            assert term.stopping
            assert led == []
        following.join(PATIENT)
        assert not following.is_alive()
        assert led[0] > term.token
        asyncio.run(_async_leaders(url, name, led[0]))


async def _async_leaders(url: str, name: str, last: int) -> None:
    until, led = asyncio.Event(), list[int]()

    async def work(term: AsyncTerm) -> None:
        led.append(term.token)
        until.set()

    async with AsyncLeasehold(url, label="three") as three, AsyncLeasehold(url) as four, asyncio.timeout(PATIENT):
        async with AsyncElection(three, name, ttl=TTL).lead() as term:
            assert term.token > last
            async for leader in AsyncElection(four, name, ttl=TTL).observe(every=0.05):
                assert leader is not None
                assert (leader.token, leader.holder.partition("@")[0]) == (term.token, "three")
                break
            following = asyncio.create_task(AsyncElection(four, name, ttl=TTL).serve(work, until=until))
            await asyncio.sleep(0)
            assert led == []
        await following
        assert led[0] > term.token


@pytest.mark.nightly
def test_a_higher_priority_leads_and_leaves_it_to_whom_it_likes(url: str) -> None:
    """Two blocking candidates, and an async one to which they give way, and which gives way to the last of them."""
    name, until, low_leads = f"leader-{time.monotonic_ns()}", threading.Event(), threading.Event()
    led: list[tuple[str, int, str | None]] = []

    def lead(label: str, term: Term) -> None:
        low_leads.set()
        if label == "spare":
            until.set()
        term.wait(PATIENT)
        led.append((label, term.token, term.why))

    def candidate(label: str) -> None:
        with Leasehold(url, label=label) as locks:
            election = Election(locks, name, ttl=TTL, priority=0, candidate=label)
            election.serve(lambda term: lead(label, term), until=until)

    async def lead_and_resign(term: AsyncTerm) -> None:
        led.append(("high", term.token, None))
        term.resign("enough", in_favour_of="spare")

    async def high() -> None:
        async with AsyncLeasehold(url, label="high") as locks:
            election, done = AsyncElection(locks, name, ttl=TTL, priority=2, candidate="high"), asyncio.Event()
            serving = asyncio.create_task(election.serve(lead_and_resign, until=done))
            await asyncio.to_thread(until.wait, PATIENT)
            done.set()
            await serving

    with ThreadPoolExecutor(3) as pool:
        low = pool.submit(candidate, "low")
        low.add_done_callback(lambda _: low_leads.set())  # nobody is to wait for one that has failed
        low_leads.wait(PATIENT)
        serving = [low, pool.submit(candidate, "spare"), pool.submit(asyncio.run, high())]
        for one in serving:
            one.add_done_callback(lambda _: until.set())
        until.wait(PATIENT)
        until.set()
        for one in serving:
            one.result(PATIENT)
    assert [(label, why) for label, _, why in led] == [
        ("low", "a candidate of higher priority stands"),
        ("high", None),
        ("spare", "this instance is to stop"),
    ]
    assert [token for _, token, _ in led] == sorted({token for _, token, _ in led})
