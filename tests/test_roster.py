"""The roster: what is looked at in a round, what is kept of it, and what of it matters."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer, running

from leasehold import HolderStatus, Leasehold, NameStatus, WaiterStatus
from leasehold.core.engine import TellsOfMany
from leasehold.errors import EngineUnavailable
from leasehold.roster import Findings, Roster, Scout, View
from leasehold.roster.book import MOST_QUEUES
from leasehold.roster.scout import LEAST_LOOKS


class Counting(Leasehold):
    """A client that counts what it asks the engine."""

    looks = 0

    def status(self, name: str) -> NameStatus | None:
        self.looks += 1
        return super().status(name)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    """More names than two pages of the listing hold."""
    with Counting(tmp_path_factory.mktemp("many") / "leases.db") as locks:
        leases = [locks.lock(f"name-{number:04}", ttl=600).acquire() for number in range(1100)]
        yield locks
        for lease in leases:
            lease.release()


def names(roster: Roster) -> list[str]:
    return sorted(row.status.name for row in roster)


def test_a_round_is_bounded_and_all_names_are_seen_in_the_end(many: Counting) -> None:
    roster, scout, view = Roster(), Scout(many, most=200), View()
    rounds = 0
    while not roster.complete:
        before = many.looks
        rest = roster.due(view, now=time.monotonic(), most=200)
        roster.note(scout.look([], rest, known=roster.known, within=60))
        assert many.looks - before <= 200
        rounds += 1
        assert rounds < 20
    assert names(roster) == [f"name-{number:04}" for number in range(1100)]
    assert rounds >= 6  # it cannot have seen them in fewer


def test_a_slow_engine_ends_a_round_early(many: Counting) -> None:
    before = many.looks
    found = Scout(many).look([], known=(), within=0)
    assert len(found.statuses) == many.looks - before == LEAST_LOOKS
    assert (len(found.listed), found.listing_ended) == (500, False)


def test_what_a_person_sees_is_looked_at_in_each_round(many: Counting) -> None:
    roster, scout, looked = Roster(), Scout(many, most=60), []
    for _ in range(3):
        rest = roster.due(View("0999"), now=time.monotonic())
        one = scout.look(["name-1099", "name-0007"], rest, known=roster.known, within=0)
        roster.note(one)
        looked.append(list(one.statuses))
    assert all(names[:2] == ["name-1099", "name-0007"] for names in looked)
    assert looked[2][2] == "name-0999"  # what is searched for goes before the rest of the new ones


def calls(server: RedisServer) -> dict[str, int]:
    """How often each command was carried out so far."""
    told = server.ask("INFO", "commandstats").decode()
    return {name: int(count) for name, count in re.findall(r"cmdstat_(\w+):calls=(\d+)", told)}


def test_a_redis_server_is_asked_once_for_each_name(tmp_path: Path) -> None:
    """The listing has to ask for each name anyway: what it hears is not asked for again."""
    with running(RedisServer("redis", tmp_path)) as server, Leasehold(server.url, request_timeout=30) as locks:
        server.ask("SET", "of another program", "x")
        leases = [locks.lock(f"name-{number:04}", ttl=600).acquire() for number in range(1300)]
        leases.append(locks.shared("shared", ttl=600).acquire())
        locks.lock("idle").acquire().release()
        locks.status("name-0000")  # the server knows the script
        roster, scout = Roster(), Scout(locks)
        before = calls(server)
        roster.note(scout.look(["name-0007"], known=(), within=60))
        assert calls(server)["evalsha"] - before["evalsha"] == 1301
        assert (len(roster.rows), roster.complete, roster.totals().holders) == (1301, True, 1301)
        roster.note(scout.look(["name-0007"], known=roster.known, within=60))  # from now on a part at a time
        found = scout.look_at_all(lambda name: name != "shared", most=5000)
        assert (len(found.statuses), found.listing_ended) == (1300, True)
        leases[5].release()
        seen = scout.look(["name-0005"], known=roster.known, within=60)
        assert seen.statuses["name-0005"] is not None
        assert seen.statuses["name-0005"].holders == ()


def test_a_listing_goes_on_where_an_error_has_cut_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(RedisServer("redis", tmp_path)) as server, Leasehold(server.url, request_timeout=30) as locks:
        leases = [locks.lock(f"name-{number:04}", ttl=600).acquire() for number in range(2500)]
        engine = locks._desk.engine
        assert isinstance(engine, TellsOfMany)
        roll, asked = engine.roll, []

        async def failing(*, at: str, until: float) -> tuple[list[NameStatus], str]:
            asked.append(at)
            if len(asked) % 2 == 0:
                raise EngineUnavailable("it does not answer")
            return await roll(at=at, until=until)

        monkeypatch.setattr(engine, "roll", failing)
        for within in (0, 60):  # a page at a time; all that an error lets through
            asked.clear()
            roster, scout = Roster(), Scout(locks)
            while not roster.complete:
                with contextlib.suppress(EngineUnavailable):
                    roster.note(scout.look([], known=roster.known, within=within))
                assert len(asked) < 50
            assert len(roster.rows) == len(leases)


def test_names_that_were_released_go_away(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks:
        roster, scout = Roster(), Scout(locks)
        lease = locks.lock("name").acquire()
        roster.note(scout.look([], known=(), within=1))
        assert names(roster) == ["name"]
        lease.release()
        roster.note(scout.look([], roster.due(View(), now=time.monotonic()), known=roster.known, within=1))
        assert (names(roster), roster.lost, roster.complete) == ([], 0, True)


def holder(token: int = 1, *, left: float = 30.0, held: float = 1.0) -> HolderStatus:
    return HolderStatus(token, "exclusive", f"worker-{token}", held, left)


def waiter(waited: float = 1.0) -> WaiterStatus:
    return WaiterStatus("exclusive", "waiter", waited, 10.0)


def found(*statuses: NameStatus, at: float, gone: tuple[str, ...] = ()) -> Findings:
    return Findings(at, {one.name: one for one in statuses} | dict.fromkeys(gone))


def test_times_run_on_between_looks() -> None:
    roster = Roster()
    roster.note(found(NameStatus("a", 1, (holder(left=2.0),), (waiter(),), 3.0), at=100.0))
    now = roster.rows["a"].at(101.5)
    assert (now.holders[0].expires_in, now.holders[0].held_for) == (0.5, 2.5)
    assert (now.waiters[0].waited_for, now.waiters[0].patience_left, now.closed_for) == (2.5, 8.5, 1.5)
    assert roster.rows["a"].at(200.0).holders[0].expires_in == 0.0


def test_a_lease_that_missed_its_renewal_is_overdue_and_then_seen_to_run_out() -> None:
    roster = Roster()
    roster.note(found(NameStatus("a", 1, (holder(left=30.0),), ()), at=100.0))
    assert roster.rows["a"].state == "held"
    roster.note(found(NameStatus("a", 1, (holder(left=14.0),), ()), at=116.0))
    assert (roster.rows["a"].state, roster.totals().overdue) == ("overdue", 1)
    roster.note(found(at=131.0, gone=("a",)))
    assert [(one.kind, one.name, one.token, one.about) for one in roster.events] == [("ran out", "a", 1, "worker-1")]
    assert (roster.lost, names(roster)) == (1, [])


@pytest.mark.parametrize(
    ("left", "later"),
    [(29.0, 31.0), (14.0, 1.0)],
    ids=["renewed when last seen", "gone before its end"],
)
def test_a_lease_that_may_have_been_released_did_not_run_out(left: float, later: float) -> None:
    roster = Roster()
    roster.note(found(NameStatus("a", 1, (holder(left=30.0),), ()), at=100.0))
    roster.note(found(NameStatus("a", 1, (holder(left=left),), ()), at=116.0))
    roster.note(found(NameStatus("a", 2, (holder(2),), ()), at=116.0 + later))
    assert (roster.lost, list(roster.events), names(roster)) == (0, [], ["a"])


def test_a_name_that_closed_lost_its_lease() -> None:
    roster = Roster()
    roster.note(found(NameStatus("a", 1, (holder(),), ()), at=100.0))
    roster.note(found(NameStatus("a", 1, (), (), 9.0), at=101.0))
    assert (roster.lost, roster.rows["a"].state, roster.totals().closed) == (1, "closed", 1)


def statuses() -> list[NameStatus]:
    return [
        NameStatus("quiet", 1, (holder(1, left=20, held=50),), ()),
        NameStatus("Crowded", 2, (holder(2, left=25),), (waiter(5.0), waiter(9.0))),
        NameStatus("busy", 3, (holder(3, left=10, held=9),), (waiter(),)),
        NameStatus("late", 4, (holder(4, left=9, held=21),), ()),
        NameStatus("free", 5, (), (waiter(),)),
        NameStatus("closed", 6, (), (), 5.0),
    ]


@pytest.fixture
def roster() -> Roster:
    one = Roster()
    one.note(found(NameStatus("late", 4, (holder(4, left=30),), ()), at=79.0))
    one.note(found(*statuses(), at=100.0))
    return one


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("attention", ["Crowded", "busy", "free", "late", "closed", "quiet"]),
        ("name", ["Crowded", "busy", "closed", "free", "late", "quiet"]),
        ("waiters", ["Crowded", "busy", "free", "closed", "late", "quiet"]),
        ("left", ["late", "busy", "quiet", "Crowded", "closed", "free"]),
        ("held", ["quiet", "late", "busy", "Crowded", "closed", "free"]),
    ],
)
def test_orders(roster: Roster, order: str, expected: list[str]) -> None:
    page = View(order=order).page(roster, limit=10)  # type: ignore[arg-type]
    assert [row.status.name for row in page.rows] == expected
    part = View(order=order).page(roster, start=2, limit=3)  # type: ignore[arg-type]
    assert ([row.status.name for row in part.rows], part.matching) == (expected[2:5], 6)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (View("E"), {"quiet", "Crowded", "late", "free", "closed"}),
        (View("C*"), {"Crowded", "closed"}),
        (View("*"), {"quiet", "Crowded", "busy", "late", "free", "closed"}),
        (View(only="waited"), {"Crowded", "busy", "free"}),
        (View("e", only="waited"), {"Crowded", "free"}),
        (View(only="overdue"), {"late"}),
        (View("nothing"), set()),
    ],
)
def test_only_what_is_wanted(roster: Roster, view: View, expected: set[str]) -> None:
    page = view.page(roster, limit=10)
    assert {row.status.name for row in page.rows} == expected
    assert page.matching == len(expected)


def test_totals(roster: Roster) -> None:
    totals = roster.totals()
    assert (totals.names, totals.holders, totals.waiters, totals.waited_for) == (6, 4, 4, 3)
    assert (totals.overdue, totals.closed, totals.longest_wait, totals.least_left) == (1, 1, 9.0, 9.0)


def test_queues_are_remembered_for_names_that_somebody_waits_for(roster: Roster) -> None:
    roster.note(found(NameStatus("busy", 3, (holder(3),), (waiter(), waiter(), waiter())), at=101.0))
    roster.note(found(NameStatus("busy", 3, (holder(3),), ()), at=102.0))
    assert [waiters for _, waiters in roster.queue_over_time("busy")] == [1, 3, 0]
    assert roster.queue_over_time("quiet") == ()
    for number in range(MOST_QUEUES + 5):
        roster.note(found(NameStatus(f"q-{number}", 3, (), (waiter(),)), at=103.0))
    assert roster.queue_over_time("busy") == ()
    assert roster.queue_over_time(f"q-{MOST_QUEUES + 4}")


def test_what_was_broken_is_told_and_looked_at_again(roster: Roster) -> None:
    roster.broken(statuses()[2])
    assert [(one.kind, one.name, one.token) for one in roster.events] == [("broken", "busy", 3)]
    assert roster.due(View(), now=101.0)[0] == "busy"
