"""Virtual time: who is resumed when, by whom, and what a pause or a death does to that."""

from __future__ import annotations

import pytest

from leasehold.sim.scheduler import PARK, Interrupted, Process, Scheduler, Spinning, Task


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(on_error=lambda task, error: errors.append(f"{task.label}: {error!r}"))


errors: list[str] = []
said: list[tuple[float, object]] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    errors.clear()
    said.clear()


async def sleep(scheduler: Scheduler, seconds: float) -> None:
    scheduler.resume_at(scheduler.now + seconds, scheduler.current)
    await PARK


async def say_after(scheduler: Scheduler, seconds: float, what: object) -> None:
    await sleep(scheduler, seconds)
    said.append((scheduler.now, what))


def test_things_happen_in_the_order_of_time_and_then_of_arrangement(scheduler: Scheduler) -> None:
    process = Process("A")
    for seconds, what in ((2.0, "late"), (1.0, "early"), (1.0, "early too")):
        scheduler.spawn(say_after(scheduler, seconds, what), process, "")
    scheduler.run(5.0)
    assert said == [(1.0, "early"), (1.0, "early too"), (2.0, "late")]
    assert scheduler.now == 5.0


def test_the_first_who_resumes_a_task_wins(scheduler: Scheduler) -> None:
    async def wait_for_answer() -> None:
        task = scheduler.current
        scheduler.resume_at(1.0, task, "answer")
        scheduler.resume_at(2.0, task, "timeout")
        said.append((scheduler.now, await PARK))
        said.append((scheduler.now, await PARK))

    scheduler.spawn(wait_for_answer(), Process("A"), "")
    scheduler.run(5.0)
    assert said == [(0.0, "answer")] or said == [(1.0, "answer")]
    scheduler.close()


def test_a_paused_process_sees_to_everything_when_it_wakes_up(scheduler: Scheduler) -> None:
    paused, other = Process("A"), Process("B")
    scheduler.spawn(say_after(scheduler, 1.0, "paused"), paused, "")
    scheduler.spawn(say_after(scheduler, 1.0, "other"), other, "")
    scheduler.run(0.5)
    paused.paused = True
    scheduler.call_at(3.0, scheduler.wake, paused, lambda: 0.25)
    scheduler.run(5.0)
    assert said == [(1.0, "other"), (3.25, "paused")]


def test_nothing_runs_in_a_dead_process_not_even_its_clean_up(scheduler: Scheduler) -> None:
    process = Process("A")

    async def careful() -> None:
        try:
            await sleep(scheduler, 1.0)
        except BaseException:
            said.append((scheduler.now, "on the way out"))
            raise

    scheduler.spawn(careful(), process, "")
    scheduler.run(0.5)
    process.die()
    scheduler.run(5.0)
    assert said == []
    scheduler.close()


def test_an_interruption_arrives_at_the_await(scheduler: Scheduler) -> None:
    async def interrupted() -> None:
        try:
            await sleep(scheduler, 10.0)
        except Interrupted:
            said.append((scheduler.now, "interrupted"))
            await sleep(scheduler, 1.0)
            said.append((scheduler.now, "went on"))

    task = scheduler.spawn(interrupted(), Process("A"), "")
    scheduler.call_at(2.0, scheduler.throw, task, Interrupted())
    scheduler.run(20.0)
    assert said == [(2.0, "interrupted"), (3.0, "went on")]


def test_a_fuse_burns_at_the_nth_suspension(scheduler: Scheduler) -> None:
    async def three_sleeps() -> None:
        for _ in range(3):
            await sleep(scheduler, 1.0)

    task: Task = scheduler.spawn(three_sleeps(), Process("A"), "")
    task.fuse, task.on_fuse = 2, lambda: said.append((scheduler.now, "burnt"))
    scheduler.run(5.0)
    assert said == [(1.0, "burnt")]


def test_an_error_is_reported_and_ends_the_task_only(scheduler: Scheduler) -> None:
    async def fails() -> None:
        await sleep(scheduler, 1.0)
        raise ValueError("no")

    scheduler.spawn(fails(), Process("A"), "bad")
    scheduler.spawn(say_after(scheduler, 2.0, "good"), Process("A"), "good")
    scheduler.run(5.0)
    assert errors == ["bad: ValueError('no')"]
    assert said == [(2.0, "good")]


def test_who_runs_in_circles_is_found_out(scheduler: Scheduler) -> None:
    async def circles() -> None:
        while True:
            await sleep(scheduler, 0.0)

    scheduler.spawn(circles(), Process("A"), "spinner")
    with pytest.raises(Spinning, match="spinner of A spins"):
        scheduler.run(1.0)
    scheduler.close()
