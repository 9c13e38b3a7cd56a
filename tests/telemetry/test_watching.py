"""What the library says of leases, to whoever watches: each thing once, and nothing but what happened."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer, running
from tests.telemetry.conftest import wait_for

import leasehold
from leasehold import Leasehold, LeaseLost, NotAcquired, watching
from leasehold.core.held import RAN_OUT, REFUSED
from leasehold.events import Broken, Event, Failed, GaveUp, Granted, Lost, Released, Renewed


def kinds(seen: list[Event]) -> list[str]:
    return [type(event).__name__ for event in seen]


def test_a_lease_is_granted_and_released(locks: Leasehold, seen: list[Event], file: Path) -> None:
    with locks.lock("export/7", ttl=30) as lease:
        pass
    granted, released = seen
    assert isinstance(granted, Granted)
    assert isinstance(released, Released)
    assert granted.about == released.about == ("sqlite", f"sqlite:///{file}", "export/7", "exclusive")
    assert granted.token == released.token == lease.token
    assert granted.ttl == 30
    assert not granted.contended
    assert 0 <= granted.waited <= released.held


def test_the_same_in_asyncio(file: Path, seen: list[Event]) -> None:
    async def use() -> None:
        async with leasehold.AsyncLeasehold(file) as locks:
            async with locks.shared("export/7"):
                assert await locks.lock("export/7").try_acquire() is None
            lease = await locks.permits("export/8", 3).acquire()
            await lease.release()

    asyncio.run(use())
    assert kinds(seen) == ["Granted", "GaveUp", "Released", "Granted", "Released"]
    assert [event.about.mode for event in seen if isinstance(event, Granted)] == ["shared", "permit"]


def test_a_wait_for_somebody_else_is_contention(locks: Leasehold, seen: list[Event]) -> None:
    lease = locks.lock("x").acquire()
    waiter = threading.Thread(target=lambda: locks.lock("x", wait=30).acquire().release())
    waiter.start()
    wait_for(lambda: (status := locks.status("x")) and status.waiters, "somebody waits")
    lease.release()
    waiter.join(30)
    first, second = [event for event in seen if isinstance(event, Granted)]
    assert (first.contended, second.contended) == (False, True)
    assert second.waited > 0


def test_who_gives_up_learns_who_holds_it(locks: Leasehold, seen: list[Event]) -> None:
    with locks.lock("x") as lease:
        with pytest.raises(NotAcquired), locks.lock("x", wait=0.1):
            pass
        assert locks.lock("x").try_acquire() is None
    one, two = [event for event in seen if isinstance(event, GaveUp)]
    assert one.contended
    assert two.contended
    assert one.waited >= 0.1
    assert one.holder == two.holder == lease.holder


def test_a_renewal_and_a_loss_are_told_once(locks: Leasehold, seen: list[Event]) -> None:
    lease = locks.lock("x", ttl=4).acquire()
    wait_for(lambda: any(isinstance(event, Renewed) for event in seen), "it was renewed")
    locks.force_release("x", because="a test")
    wait_for(lambda: lease.lost, "the holder knows")
    with pytest.raises(LeaseLost):
        lease.release()
    wait_for(lambda: any(isinstance(event, Lost) for event in seen), "the loss was told")
    [broken] = [event for event in seen if isinstance(event, Broken)]
    assert (broken.because, broken.token > lease.token) == ("a test", True)
    [lost] = [event for event in seen if isinstance(event, Lost)]
    assert (lost.token, lost.reason) == (lease.token, REFUSED)
    assert not [event for event in seen if isinstance(event, Released)]


def test_a_loss_that_only_the_release_finds_is_told_once(locks: Leasehold, seen: list[Event]) -> None:
    lease = locks.lock("x", ttl=600).acquire()
    locks.force_release("x", because="a test")
    with pytest.raises(LeaseLost):
        lease.release()
    assert kinds(seen) == ["Granted", "Broken", "Lost"]


def test_an_engine_that_is_gone_is_seen_by_renewals_and_by_callers(tmp_path: Path, seen: list[Event]) -> None:
    with running(RedisServer("redis", tmp_path)) as server, Leasehold(server.url, request_timeout=0.5) as locks:
        lease, other = locks.lock("x", ttl=4).acquire(), locks.lock("z", ttl=60).acquire()
        server.kill()
        with pytest.raises(leasehold.EngineError):
            other.release()
        with pytest.raises(leasehold.EngineError), locks.lock("y", wait=0.2):
            pass
        wait_for(lambda: any(isinstance(event, Lost) for event in seen), "the lease is lost")
    assert lease.lost
    assert {(event.about.name, event.doing) for event in seen if isinstance(event, Failed)} == {
        ("x", "renew"),
        ("y", "acquire"),
    }
    [lost] = [event for event in seen if isinstance(event, Lost)]
    assert lost.reason == RAN_OUT
    assert ends(seen) == grants(seen), "also of the one whose release got no answer"


def test_several_names_that_are_not_all_free_leave_no_open_end(locks: Leasehold, seen: list[Event]) -> None:
    with locks.lock("b"), pytest.raises(NotAcquired), locks.several(["a", "b"], wait=0):
        pass
    with locks.several(["a", "b"]):
        pass
    assert [event.about.name for event in seen if isinstance(event, GaveUp)] == ["b"]
    assert ends(seen) == grants(seen)
    assert len(grants(seen)) == 4


def test_a_lease_that_nobody_can_reach_has_an_end_too(locks: Leasehold, seen: list[Event]) -> None:
    lease = locks.lock("x", ttl=600).acquire()
    del lease
    gc.collect()
    wait_for(lambda: len(seen) == 2, "the keeper has found it")
    assert kinds(seen) == ["Granted", "Released"]


def test_an_interrupted_body_and_an_interrupted_watcher_leave_no_open_end(locks: Leasehold, seen: list[Event]) -> None:
    with pytest.raises(KeyboardInterrupt), locks.lock("x"):
        raise KeyboardInterrupt

    def interrupted(event: Event) -> None:
        if isinstance(event, Granted):
            raise KeyboardInterrupt

    with leasehold.watch(interrupted), pytest.raises(KeyboardInterrupt), locks.lock("x"):
        pytest.fail("the body must not run")
    assert ends(seen) == grants(seen)
    assert len(grants(seen)) == 2


def test_every_grant_has_one_end_under_contention(locks: Leasehold, seen: list[Event]) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            try:
                with locks.lock(f"name/{(number + turn) % 2}", wait=30):
                    pass
            except NotAcquired:
                continue

    crew = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in crew:
        one.start()
    for one in crew:
        one.join(60)
    assert len(grants(seen)) + kinds(seen).count("GaveUp") == 40
    assert ends(seen) == grants(seen)


def grants(seen: list[Event]) -> list[tuple[str, int]]:
    return sorted((event.about.name, event.token) for event in seen if isinstance(event, Granted))


def ends(seen: list[Event]) -> list[tuple[str, int]]:
    return sorted((event.about.name, event.token) for event in seen if isinstance(event, Released | Lost))


def test_a_watcher_that_fails_is_logged_once_and_harms_nobody(
    locks: Leasehold, seen: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_event: Event) -> None:
        raise ValueError("planted")

    later: list[Event] = []
    caplog.set_level(logging.ERROR, "leasehold")
    with leasehold.watch(fails), leasehold.watch(later.append), locks.lock("x"), locks.lock("y"):
        pass
    assert len(seen) == len(later) == 4
    assert [record.exc_text or "" for record in caplog.records if "watcher failed" in record.message] != []
    assert len(caplog.records) == 1


def test_who_stops_watching_sees_nothing_more(locks: Leasehold) -> None:
    seen: list[Event] = []
    watch = leasehold.watch(seen.append)
    with locks.lock("x"):
        watch.stop()
        watch.stop()
    assert kinds(seen) == ["Granted"]
    assert watching.watchers == ()


def test_one_that_watches_twice_sees_each_event_once(locks: Leasehold) -> None:
    seen: list[Event] = []
    watcher = seen.append
    with leasehold.watch(watcher), leasehold.watch(watcher), locks.lock("x"):
        pass
    assert kinds(seen) == ["Granted", "Released"]


def test_a_watcher_must_be_callable() -> None:
    with pytest.raises(leasehold.Misuse, match="function that takes an event"):
        leasehold.watch("prometheus")  # type: ignore[arg-type]
