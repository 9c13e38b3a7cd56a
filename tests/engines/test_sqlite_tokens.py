"""Tokens never fall: not over power cuts, reboots, forgotten names, or a wall clock that is set back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.sqlite_help import MovableClock, Worker, opened, soon, want, workers

from leasehold.core.engine import Busy, Grant, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine
from leasehold.errors import EngineError
from leasehold.names import HIGHEST_TOKEN
from leasehold.wires.boot_clock import linux_boot, system_clock
from leasehold.wires.sqlite_upkeep import CEILING_STEP, KEEP_IDLE, SWEEP_AT_ONCE

HOUR = 3600 * 1_000_000


def token_of(engine: SqliteEngine, name: str = "n") -> int:
    """Take the name, give it back, and say which token it was."""
    answer = run_blocking(engine.take(want(name, "h"), until=soon(engine)))
    assert isinstance(answer, Grant)
    assert run_blocking(engine.release(name, "h", until=soon(engine)))
    return answer.token


def meta(path: Path, column: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT {column} FROM meta").fetchone()[0])


# A power cut


def copy_files(there: Path, here: Path) -> None:
    """What is on the disk: the file and its log. What is in shared memory is lost with the power."""
    for suffix in ("", "-wal"):
        source = there.with_name(there.name + suffix)
        target = here.with_name(here.name + suffix)
        if source.exists():
            shutil.copyfile(source, target)
            target.chmod(0o600)


def test_tokens_of_commits_that_a_power_cut_undid_are_not_handed_out_again(tmp_path: Path) -> None:
    path, survivor = tmp_path / "l.db", tmp_path / "after.db"
    clock = MovableClock()
    handed_out = []
    with opened(path, clock) as engine:
        handed_out.append(token_of(engine))
        for _ in range(5):
            clock.wall += CEILING_STEP // 2
            before = meta(path, "ceiling")
            handed_out.append(token_of(engine))
            if meta(path, "ceiling") != before:
                copy_files(path, survivor)  # the ceiling is synced; nothing that follows is
        clock.wall += CEILING_STEP // 3
        elsewhere = token_of(engine, "another")
        clock.wall -= HOUR
        handed_out += [token_of(engine) for _ in range(100)]
    assert sorted(set(handed_out)) == handed_out
    # The machine comes up with its clock an hour behind, and with the file as of the last sync.
    reborn = MovableClock("boot-2", now=7_000_000, stamp=clock.wall - HOUR)
    with opened(survivor, reborn) as engine:
        for name in ("n", "another", "unknown"):
            assert token_of(engine, name) > max(*handed_out, elsewhere)


EXT4_IOC_SHUTDOWN, WITHOUT_FLUSHING = 0x8004587D, 2


class Disk:
    """A small disk of our own whose power can be cut: what was not synced is gone."""

    def __init__(self, image: Path, place: Path) -> None:
        self.image, self.place = image, place
        with image.open("wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        place.mkdir()
        self.plug_in()
        place.chmod(0o700)
        subprocess.run(["sync", "--file-system", str(place)], check=True)

    def plug_in(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.place)], check=True)

    def unplug(self) -> None:
        subprocess.run(["umount", str(self.place)], check=True)

    def cut_power(self) -> None:
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
        finally:
            os.close(descriptor)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists() or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and a loop device, to have a disk whose power can be cut")
    made = Disk(tmp_path / "image", tmp_path / "disk")
    yield made
    made.unplug()


TAKE_UNTIL_THE_LIGHTS_GO_OUT = """
    sys.path.insert(0, sys.argv[2])
    from tests.engines.sqlite_help import MovableClock, family
    clock = MovableClock()
    engine = family(path, clock).blocking()
    for number in range(int(sys.argv[3])):
        clock.wall += 7_000_000
        held = hold("n")
        give_back(held)
        say(held.token)
    say("done")
    sys.stdin.readline()
"""


@pytest.mark.parametrize("takes", [1, 3, 30])
def test_a_true_power_cut(disk: Disk, takes: int) -> None:
    path = disk.place / "l.db"
    worker = Worker(path, TAKE_UNTIL_THE_LIGHTS_GO_OUT, Path.cwd(), takes)
    try:
        handed_out = [int(worker.line()[0]) for _ in range(takes)]
        assert worker.line() == ["done"]
        disk.cut_power()
    finally:
        worker.end()
    disk.unplug()
    disk.plug_in()
    with opened(path, MovableClock("boot-2", now=1, stamp=5)) as engine:
        assert token_of(engine) > max(handed_out)


def test_what_is_synced_always_survives_a_true_power_cut(disk: Disk) -> None:
    path = disk.place / "l.db"
    code = """
        from leasehold.engines.sqlite import SqliteFamily
        from leasehold.wires.sqlite_file import lease_file
        engine = SqliteFamily(lease_file(f"sqlite:///{path}?synchronous=full"), "").blocking()
        held = hold("kept", ttl=100.0)
        say(held.token)
        sys.stdin.readline()
    """
    with workers(path, code, 1) as [worker]:
        token = int(worker.line()[0])
        disk.cut_power()
    disk.unplug()
    disk.plug_in()
    with opened(path) as engine:  # the same boot, so the lease is still held
        status = run_blocking(engine.status("kept", until=soon(engine)))
    assert status is not None
    assert [holder.token for holder in status.holders] == [token]


# A reboot


def test_after_a_reboot_everything_is_free_at_once_and_tokens_go_on(tmp_path: Path) -> None:
    path, clock = tmp_path / "l.db", MovableClock()
    with opened(path, clock) as engine:
        held = run_blocking(engine.take(want("n", "h"), until=soon(engine)))
        shared = run_blocking(engine.take(Want("s", "h", 30.0, "shared"), until=soon(engine)))
        queued = run_blocking(engine.take(want("n", "waiter"), until=soon(engine), patience=20.0))
    assert isinstance(held, Grant)
    assert isinstance(shared, Grant)
    assert isinstance(queued, Busy)
    reborn = MovableClock("boot-2", now=3_000_000, stamp=clock.wall - HOUR)
    with opened(path, reborn) as engine:
        assert run_blocking(engine.names(after=None, limit=9, until=soon(engine))) == []
        for name, before in (("n", held), ("s", shared)):
            grant = run_blocking(engine.take(want(name, "next"), until=soon(engine)))
            assert isinstance(grant, Grant)
            assert grant.token > before.token
        assert run_blocking(engine.release("n", "h", until=soon(engine))) is False


def test_a_lock_delay_outlives_a_reboot(tmp_path: Path) -> None:
    path, clock = tmp_path / "l.db", MovableClock()
    with opened(path, clock) as engine:
        for name, mode in (("exclusive", "exclusive"), ("shared", "shared")):
            wanted = Want(name, "h", 30.0, mode, delay=5.0)  # type: ignore[arg-type]
            assert isinstance(run_blocking(engine.take(wanted, until=soon(engine))), Grant)
    reborn = MovableClock("boot-2", now=3_000_000)
    with opened(path, reborn) as engine:
        for name in ("exclusive", "shared"):
            answer = run_blocking(engine.take(want(name, "next"), until=soon(engine)))
            assert isinstance(answer, Busy)
            assert answer.ask_again == 5.0
        reborn.micros += 5_000_000
        assert isinstance(run_blocking(engine.take(want("exclusive", "next"), until=soon(engine))), Grant)


def test_only_the_first_to_open_the_file_ends_the_leases_of_the_last_boot(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path, MovableClock("boot-1")) as engine:
        token_of(engine)
    with opened(path, MovableClock("boot-2")) as first:
        assert isinstance(run_blocking(first.take(want("n", "h"), until=soon(first))), Grant)
        with opened(path, MovableClock("boot-2")) as second:
            assert isinstance(run_blocking(second.take(want("n", "other"), until=soon(second))), Busy)


def test_a_suspended_laptop_wakes_up_with_its_leases_over(tmp_path: Path) -> None:
    clock = MovableClock()
    with opened(tmp_path / "l.db", clock) as engine:
        assert isinstance(run_blocking(engine.take(want("n", "h"), until=soon(engine))), Grant)
        clock.micros += 8 * HOUR  # the clock since boot goes on while the lid is closed
        assert run_blocking(engine.release("n", "h", until=soon(engine))) is False
        assert isinstance(run_blocking(engine.take(want("n", "next"), until=soon(engine))), Grant)


# The wall clock, and names that are forgotten


def test_the_wall_clock_only_gives_tokens_their_size(tmp_path: Path) -> None:
    clock = MovableClock()
    with opened(tmp_path / "l.db", clock) as engine:
        first = token_of(engine)
        assert first == clock.wall
        clock.wall -= 10 * HOUR
        assert [token_of(engine) for _ in range(3)] == [first + 1, first + 2, first + 3]
        clock.wall += 20 * HOUR
        assert token_of(engine) == clock.wall


def test_a_clock_in_the_far_future_is_an_error_not_an_overflow(tmp_path: Path) -> None:
    clock = MovableClock(stamp=HIGHEST_TOKEN - 5)
    with opened(tmp_path / "first.db") as engine:
        token_of(engine)
    (tmp_path / "first.db").rename(tmp_path / "l.db")
    clock.boot = system_clock().boot
    clock.micros = system_clock().now()
    with opened(tmp_path / "l.db", clock) as engine, pytest.raises(EngineError, match="far into the future"):
        token_of(engine)


def rows(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM lease").fetchone()[0])


def test_names_that_nobody_uses_are_forgotten_and_their_tokens_do_not_fall(tmp_path: Path) -> None:
    path, clock = tmp_path / "l.db", MovableClock()
    names = [f"name-{number}" for number in range(2 * SWEEP_AT_ONCE)]
    with opened(path, clock) as engine:
        held = run_blocking(engine.take(Want("held", "h", 86_400.0 * 2), until=soon(engine)))
        assert isinstance(held, Grant)
        highest = max(token_of(engine, name) for name in names)
        assert rows(path) == len(names) + 1
        clock.micros += KEEP_IDLE + 1
        clock.wall -= HOUR
        for _ in range(1500):
            token_of(engine, "busy")
        assert rows(path) == 2, "only the name that is held and the one in use are left"
        for name in names[:5]:
            assert token_of(engine, name) > highest
        status = run_blocking(engine.status("held", until=soon(engine)))
        assert status is not None
        assert [holder.token for holder in status.holders] == [held.token]


def test_ten_thousand_failed_takes_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with opened(path) as engine:
        assert isinstance(run_blocking(engine.take(want("n", "h"), until=soon(engine))), Grant)
        for number in range(10_000):
            answer = run_blocking(engine.take(want("n", f"failed-{number}"), until=soon(engine)))
            assert isinstance(answer, Busy)
        for number in range(200):  # with a place in the queue, which they leave
            run_blocking(engine.take(want("n", f"queued-{number}"), until=soon(engine), patience=5.0))
            run_blocking(engine.release("n", f"queued-{number}", until=soon(engine)))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            counts = [
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("lease", "seat", "waiter")
            ]
        assert counts == [1, 0, 0]
        run_blocking(engine.release("n", "h", until=soon(engine)))


# The clock of the host


def test_the_boot_as_linux_tells_it(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b-1\n")
    assert linux_boot(tmp_path) == ("b-1", 0), "a kernel without time namespaces"
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/time").symlink_to("time:[1]")
    (tmp_path / "self/ns/time_for_children").symlink_to("time:[1]")
    (tmp_path / "self/timens_offsets").write_text("monotonic 5 0\nboottime -7 250000000\n")
    assert linux_boot(tmp_path) == ("b-1", -6_750_000)
    (tmp_path / "self/ns/time_for_children").unlink()
    (tmp_path / "self/ns/time_for_children").symlink_to("time:[2]")
    assert linux_boot(tmp_path) == ("b-1 time:[1]", 0)


def test_a_container_with_a_shifted_clock_is_excluded_like_everybody_else(tmp_path: Path) -> None:
    can = subprocess.run(
        ["unshare", "--time", "--boottime", "86400", "--fork", "true"], capture_output=True, check=False
    )
    if can.returncode != 0:
        pytest.skip("needs the right to make a time namespace")
    code = """
        held = run_blocking(engine.take(Want("n", "inside", 30.0), until=world.now() + 5))
        say(type(held).__name__, int(time.clock_gettime(time.CLOCK_BOOTTIME)))
    """
    with opened(tmp_path / "l.db") as engine:
        assert isinstance(run_blocking(engine.take(want("n", "outside"), until=soon(engine))), Grant)
        worker = Worker(tmp_path / "l.db", code, under=["unshare", "--time", "--boottime", "86400", "--fork"])
        try:
            said, seconds = worker.line()
        finally:
            worker.end()
        assert said == "Busy"
        assert int(seconds) > 86_400
        status = run_blocking(engine.status("n", until=soon(engine)))
        assert status is not None
        assert 20 < status.holders[0].expires_in <= 30
