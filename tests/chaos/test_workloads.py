"""Each workload does its laps cleanly, and shows at the resource when a holder is overtaken."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from tests.cli.tool import wait_for

from leasehold.chaos.checkers import Verdict, judge
from leasehold.chaos.hand import Grip, Hand, Terms
from leasehold.chaos.history import RUN, Event, Recorder, merged
from leasehold.chaos.leasehold_subject import LeaseholdSubject
from leasehold.chaos.marks import Marks
from leasehold.chaos.resource import Resource
from leasehold.chaos.run_info import RunInfo
from leasehold.chaos.subject import Held, Mode
from leasehold.chaos.workloads import WORKLOADS, Workload, partitions, several

H = TypeVar("H", bound=Hand)
TTL = 30.0
SHORT = 1.0
READ_THEN_WRITE = ["register", "counter", "set", "bank", "queue", "several"]


class AlwaysHeld:
    """A grant that its holder never stops to believe in."""

    until = math.inf

    def __init__(self, token: int) -> None:
        self.token = token

    def believes(self) -> bool:
        return True

    def release(self) -> bool:
        return True


class NoLock:
    """A lock that excludes nobody: as good as one whose holders were all stalled past their leases."""

    name: ClassVar[str] = "no-lock"
    modes: ClassVar[frozenset[Mode]] = frozenset({"exclusive", "shared", "permit"})

    def __init__(self, tokens: Iterator[int]) -> None:
        self._tokens = tokens

    def take(self, _name: str, **_terms: Any) -> Held:
        return AlwaysHeld(next(self._tokens))

    def take_several(self, names: list[str], **_terms: object) -> list[Held]:
        return [AlwaysHeld(next(self._tokens)) for _ in names]

    def close(self) -> None:
        pass


class Scene:
    """Hands of several workers in one process, on one resource."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.workload, self.folder, self._began = workload, folder, time.monotonic()
        self.resource = Resource(folder / "resource.db", self._began)
        self.resource.create()
        workload.prepare(self.resource)
        self._marks = Marks(folder / "marks", 9)
        self._hands: list[Hand] = []
        self._to_close: list[Callable[[], object]] = [self.resource.close, self._marks.close]

    def hand(self, subject: Any, kind: type[H] = Hand) -> H:  # type: ignore[assignment]
        number = len(self._hands)
        record = self._recorder(f"w{number + 1}")
        self._to_close.append(subject.close)
        hand = kind(
            f"w{number + 1}",
            number,
            subject=subject,
            resource=self.resource,
            record=record,
            marks=self._marks,
            terms=Terms(TTL, 5.0, 2),
            chance=random.Random(number),
            first_op=0,
        )
        self._hands.append(hand)
        return hand

    def _recorder(self, worker: str) -> Recorder:
        record = Recorder(self.folder / f"events-{worker}.jsonl", worker, self._began)
        self._to_close.append(record.close)
        return record

    def history(self) -> list[Event]:
        """What was recorded so far."""
        return [*merged(self.folder.glob("events-*.jsonl")), *self.resource.log()]

    def close(self) -> None:
        for close in reversed(self._to_close):
            close()

    def judged(self) -> dict[str, Verdict]:
        record = self._recorder(RUN)
        for final in self.workload.final(self.resource):
            detail = {"resource": final.side, "kind": final.kind, "key": final.key, "value": final.value, "final": True}
            record.event("got", name=final.key, op=0, token=None, detail={**detail, **final.more})
        record("settled")
        info = RunInfo("sqlite", "", "leasehold", self.workload.name, (), 0, 1.0, TTL, 2, "", permits=2)
        return {verdict.name: verdict for verdict in judge(self.history(), info)}


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """The scene of the workload that the test names."""
    scene = Scene(WORKLOADS[request.param], tmp_path)
    yield scene
    scene.close()


def of(*names: str) -> pytest.MarkDecorator:
    """Run a test on these workloads."""
    return pytest.mark.parametrize("scene", names, indirect=True)


class Hurried(Hand):
    """A hand whose work takes no time."""

    def work(self) -> None:
        """Be ready at once."""


class Overtaken(Hurried):
    """A hand that is overtaken by somebody else's whole lap while it works."""

    meanwhile: Sequence[Callable[[], None]] = ()

    def work(self) -> None:
        """Let happen what is to happen meanwhile: each time that there is work, the next thing."""
        happens, self.meanwhile = self.meanwhile[:1], self.meanwhile[1:]
        for one in happens:
            one()


def laps(scene: Scene, hand: Hand, count: int, *, stall: float = 0.0) -> None:
    """Do so many laps, after a while."""
    time.sleep(stall)
    for _ in range(count):
        scene.workload.lap(hand)


def overtaken_lap(scene: Scene, subject: Any) -> dict[str, Verdict]:
    """Both workers do a lap; then one is overtaken by a few laps of the other, in the middle of its own."""
    slow, quick = scene.hand(subject, Overtaken), scene.hand(subject, Hurried)
    laps(scene, quick, 1)
    laps(scene, slow, 1)
    slow.meanwhile = [lambda: laps(scene, quick, 6)]
    laps(scene, slow, 1)
    laps(scene, quick, 1)
    return scene.judged()


@of(*(name for name in WORKLOADS if name != "partitions"))
def test_laps_are_clean_when_nothing_is_broken(scene: Scene) -> None:
    url = f"sqlite:///{scene.folder}/leases.db"
    hands = [scene.hand(LeaseholdSubject(url, "chaos"), Hurried) for _ in range(2)]
    for hand in hands * 4:
        scene.workload.lap(hand)
        hand.laps += 1
    verdicts = scene.judged()
    assert {verdict.name: verdict.violations for verdict in verdicts.values() if verdict.violations} == {}
    assert verdicts["token order"].judged >= 8
    at_the_resource = {"payments": "idempotency", "jobs": "once-only jobs", "permits": "permits"}
    assert verdicts[at_the_resource.get(scene.workload.name, "stale writes")].judged > 0


@of(*READ_THEN_WRITE)
def test_only_the_plain_side_loses_when_a_holder_is_overtaken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "NAMES", ("north", "east"))  # so that all laps meet on the same two
    verdicts = overtaken_lap(scene, NoLock(itertools.count(1)))
    assert verdicts["lost updates"].violations == ()
    assert verdicts["stale writes"].violations == ()
    assert verdicts["stale writes"].figures["refused by the fence"] != 0
    assert verdicts["lost updates"].shown


@of(*READ_THEN_WRITE)
def test_the_fenced_side_loses_too_without_increasing_tokens(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above relies on: the same laps with one token for all are called violated."""
    monkeypatch.setattr(several, "NAMES", ("north", "east"))
    verdicts = overtaken_lap(scene, NoLock(itertools.repeat(1)))
    assert verdicts["lost updates"].violations
    assert verdicts["token order"].violations


@of("payments", "jobs")
def test_an_effect_takes_place_once_though_its_first_run_was_taken_for_crashed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = itertools.count(1)
    slow, quick = scene.hand(NoLock(tokens), Overtaken), scene.hand(NoLock(tokens), Hurried)
    for hand in (slow, quick):
        monkeypatch.setattr(hand, "now", lambda: 0.0)  # all laps are about the same payment
        hand.terms = replace(hand.terms, ttl=SHORT)
    # Its first work is that on the plain side, where nothing happens to it.
    slow.meanwhile = [lambda: None, lambda: laps(scene, quick, 1, stall=SHORT + 0.2)]
    laps(scene, slow, 1)
    refused = [event for event in scene.history() if event.kind == "refused"]
    assert [event.worker for event in refused] == ["w1"]
    verdicts = scene.judged()
    claim = verdicts["idempotency" if scene.workload.name == "payments" else "once-only jobs"]
    assert claim.judged > 0
    assert claim.violations == ()


@of("payments")
def test_everybody_who_asks_for_a_payment_is_given_the_result_of_the_one_that_was_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = [scene.hand(NoLock(itertools.count(1)), Hurried) for _ in range(3)]
    for hand in hands:
        monkeypatch.setattr(hand, "now", lambda: 0.0)
        laps(scene, hand, 1)
    verdict = scene.judged()["idempotency"]
    assert verdict.figures["answers"] == 4  # the one who paid is also told by the key
    assert verdict.status == "held"
    scene.hand(NoLock(itertools.count(1))).answered("payment", "payment-0", "another result")
    assert scene.judged()["idempotency"].status == "violated"


class Owner:
    """A writer of a partition, who never learns that it was overtaken."""

    partition = 0
    stopping = False

    def __init__(self, token: int) -> None:
        self.token = token


def overtaken_owner(scene: Scene, first: int, second: int) -> Verdict:
    """One owner is overtaken by another between its read and its write; the verdict on partitions."""
    workload = scene.workload
    assert isinstance(workload, partitions.SingleWriters)
    slow, quick = (scene.hand(NoLock(itertools.count(1)), kind) for kind in (Overtaken, Hurried))
    assert isinstance(slow, Overtaken)
    slow.meanwhile = [lambda: workload._write(quick, Owner(second))]  # type: ignore[arg-type]
    workload._write(slow, Owner(first))  # type: ignore[arg-type]
    return scene.judged()["partitions"]


@of("partitions")
def test_only_the_plain_side_of_a_partition_has_two_writers_when_one_is_overtaken(scene: Scene) -> None:
    verdict = overtaken_owner(scene, 1, 2)
    assert verdict.status == "held"
    assert verdict.shown


@of("partitions")
def test_two_owners_with_one_token_are_found(scene: Scene) -> None:
    assert overtaken_owner(scene, 1, 1).status == "violated"


@of("partitions")
def test_owners_write_alone_when_nothing_is_broken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "STAYS", (1.0, 1.0))
    url = f"sqlite:///{scene.folder}/leases.db"
    hands = [scene.hand(LeaseholdSubject(url, "chaos"), Hurried) for _ in range(2)]
    for hand in hands:
        hand.terms = replace(hand.terms, ttl=SHORT)

    def has_written_in_two_epochs() -> bool:
        for hand in hands:
            laps(scene, hand, 1)
        verdicts = scene.judged()
        assert {one.name: one.violations for one in verdicts.values() if one.violations} == {}
        return int(verdicts["partitions"].figures["epochs"]) > partitions.ENTITIES.partitions

    wait_for(has_written_in_two_epochs, "partitions were written to by both")


@of("bank")
def test_the_sum_of_a_bank_is_judged(scene: Scene) -> None:
    """Money that comes from nowhere, with every transfer in the ledger."""
    laps(scene, scene.hand(NoLock(itertools.count(1)), Hurried), 3)
    assert scene.judged()["lost updates"].violations == ()
    scene.resource.look("fenced", lambda cells: cells.put("account/a", cells.get("account/a") + 1))
    [violation] = scene.judged()["lost updates"].violations
    assert "off by 1" in violation.text


@of("bank")
def test_a_bank_that_loses_updates_loses_money(scene: Scene) -> None:
    tokens = itertools.count(1)
    slow, quick = scene.hand(NoLock(tokens), Overtaken), scene.hand(NoLock(tokens), Hurried)
    slow.meanwhile = [lambda: laps(scene, quick, 20)]
    scene.workload.lap(slow)
    off_by = {final.side: final.more["off_by"] for final in scene.workload.final(scene.resource)}
    assert off_by["fenced"] == 0
    assert off_by["plain"] != 0


@of("shared")
def test_readers_keep_earlier_writers_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a shared lock announces its token, so that no writer who came before it writes after it."""
    tokens = itertools.count(1)
    slow, reader = scene.hand(NoLock(tokens), Overtaken), scene.hand(NoLock(tokens), Hurried)
    monkeypatch.setattr(slow.chance, "random", lambda: 0.0)  # it writes
    monkeypatch.setattr(reader.chance, "random", lambda: 1.0)  # it reads
    slow.meanwhile = [lambda: laps(scene, reader, 1)]
    scene.workload.lap(slow)
    verdicts = scene.judged()
    assert verdicts["stale writes"].figures["refused by the fence"] == 1
    assert verdicts["stale writes"].violations == ()


@of("permits")
def test_more_inside_than_permits_is_counted_at_the_resource(scene: Scene) -> None:
    tokens = itertools.count(1)
    first, second, third = (scene.hand(NoLock(tokens), Overtaken) for _ in range(3))
    first.meanwhile = [lambda: laps(scene, second, 1)]
    second.meanwhile = [lambda: laps(scene, third, 1)]
    scene.workload.lap(first)
    [final] = scene.workload.final(scene.resource)
    assert final.value == 3
    assert scene.judged()["permits"].violations


@of("register")
def test_a_loss_that_is_told_before_the_grant_is_recorded_after_it(scene: Scene) -> None:
    class Hasty(NoLock):
        def take(self, _name: str, **terms: Any) -> Held:
            terms["told"]()
            return AlwaysHeld(1)

    with scene.hand(Hasty(itertools.count(1))).holding("register"):
        pass
    kinds = [event.kind for event in scene.history()]
    assert kinds.index("granted") < kinds.index("lost")


@of("register")
def test_what_a_library_raises_is_a_result(scene: Scene) -> None:
    class Raising(NoLock):
        def take(self, _name: str, **_terms: Any) -> Held:
            raise OSError("gone")

    scene.workload.lap(scene.hand(Raising(itertools.count(1))))
    assert [event.kind for event in scene.history()] == ["ask", "unknown"]


def test_a_machine_that_stands_still_does_not_move_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a successor would seem to be granted before the end of a belief that was over."""
    held = AlwaysHeld(7)
    held.until = 1012.5
    monkeypatch.setattr(time, "monotonic", itertools.count(1010.0, 1.0).__next__)  # a second passes at every look
    record = Recorder(tmp_path / "events.jsonl", "w1", 1000.0)
    Grip(record, "name", 1).granted(held)
    record.close()
    [granted] = merged([tmp_path / "events.jsonl"])
    assert granted.detail["believed"] == 12.5
