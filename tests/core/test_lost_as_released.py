"""A lease that is lost while it is being given back, after its holder has looked: the loss is told, nothing is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leasehold import AsyncLeasehold, Leasehold, LeaseLost
from leasehold.core.held import RAN_OUT, Held
from leasehold.keeping import KeeperThread


@pytest.fixture(autouse=True)
def lost_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper latches the loss just before it is told to forget the lease."""
    forget = KeeperThread.forget

    def latch_and_forget(keeper: KeeperThread, held: Held) -> bool:
        held.end(RAN_OUT)
        return forget(keeper, held)

    monkeypatch.setattr(KeeperThread, "forget", latch_and_forget)


def test_in_blocking_code(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks:
        lease = locks.lock("n", ttl=30).acquire()
        with pytest.raises(LeaseLost, match="TTL ran out"):
            lease.release()
        status = locks.status("n")
        assert status is not None
        assert len(status.holders) == 1, "it was given back, and its lock-delay cut off"


def test_in_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLeasehold(tmp_path / "leases.db") as locks:
            lease = await locks.lock("n", ttl=30).acquire()
            with pytest.raises(LeaseLost, match="TTL ran out"):
                await lease.release()
            status = await locks.status("n")
            assert status is not None
            assert len(status.holders) == 1, "it was given back, and its lock-delay cut off"

    asyncio.run(run())
