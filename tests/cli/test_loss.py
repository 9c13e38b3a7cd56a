"""What happens to the program when its lease cannot be kept, or when `leasehold run` itself fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Server
from tests.cli.tool import Command, Heart, guard_of, lives, now, wait_for

from leasehold.testing.processes import freeze

TTL = 3.0


def ended_in_time(process: subprocess.Popen[str], heart: Heart, deadline: float) -> str:
    """Wait for code 77; nothing of the program may have lived at the deadline. Returns what was said."""
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 77, stderr
    assert not lives(heart.pid)
    assert heart.latest_beat < deadline
    return stderr


def test_a_release_by_force_ends_the_whole_group(each: Command, heart: Heart, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    running = each.start_with(heart, name, "--ttl", str(TTL), program=heart.as_grandchild())
    # Until the break the lease may have been renewed, so its deadline is at most this.
    broken = each("break", name, "--because", "a test", "--yes")
    deadline = now() + TTL * 0.99
    assert broken.returncode == 0
    stderr = ended_in_time(running, heart, deadline)
    assert "was lost: the engine no longer knows this holder" in stderr
    assert "the program gets SIGTERM, and SIGKILL in " in stderr
    assert "exit code 77, because the lease was lost; the program's own was 143" in stderr


def test_who_ignores_sigterm_is_killed_in_time(leasehold: Command, heart: Heart) -> None:
    running = leasehold.start_with(heart, "name", "--ttl", str(TTL), program=heart.as_grandchild("SIGTERM"))
    leasehold("break", "name", "--because", "a test", "--yes")
    ended_in_time(running, heart, now() + TTL * 0.99)


def test_a_stopped_engine_ends_the_program_before_its_deadline(server: Server, tmp_path: Path, heart: Heart) -> None:
    leasehold = Command(server.url, tmp_path)
    try:
        running = leasehold.start_with(
            heart, "stopped-engine", "--ttl", str(TTL), program=heart.as_grandchild("SIGTERM")
        )
        time.sleep(TTL / 2)  # so that it has been renewed at least once
        server.freeze()
        stderr = ended_in_time(running, heart, now() + TTL * 0.99)
        assert "cannot be kept: it could not be renewed and ends in" in stderr
    finally:
        leasehold.end_all()


def test_a_short_outage_harms_nobody(server: Server, tmp_path: Path, heart: Heart) -> None:
    leasehold = Command(server.url, tmp_path)
    try:
        running = leasehold.start_with(heart, "short-outage", "--ttl", str(TTL))
        server.freeze()
        time.sleep(1.0)
        server.thaw()
        time.sleep(TTL)
        assert running.poll() is None
        assert lives(heart.pid)
        running.terminate()
        assert running.wait(20) == 143
    finally:
        leasehold.end_all()


def test_the_program_can_tidy_up_in_its_grace(leasehold: Command) -> None:
    tidy = "trap 'echo tidied; exit 9' INT; : > ready; while :; do sleep 0.05; done"
    running = leasehold.start("run", "name", "--ttl", str(TTL), "--on-lost", "int:1,kill", "--", "sh", "-c", tidy)
    wait_for((leasehold.folder / "ready").exists, "the program is ready")
    leasehold("break", "name", "--because", "a test", "--yes")
    stdout, stderr = running.communicate(timeout=20)
    assert (running.returncode, stdout) == (77, "tidied\n")
    assert "the program gets SIGINT" in stderr
    assert "the program's own was 9" in stderr


def test_the_longest_hold_ends_a_hung_program(leasehold: Command, heart: Heart) -> None:
    running = leasehold.start("run", "name", "--longest-hold", "2", "--", *heart.command("SIGTERM"))
    started_by = now() + 2
    heart.wait_until_it_beats()
    latest = now() + 2
    assert "longest hold of 2 s" in ended_in_time(running, heart, latest)
    assert heart.latest_beat > started_by - 1.5


def test_a_program_that_ended_after_the_loss_is_told(leasehold: Command) -> None:
    """The loss is found only at the release, and must not pass for a success."""
    running = leasehold.start("run", "name", "--ttl", "20", "--", "sh", "-c", ": > ready; sleep 2")
    wait_for((leasehold.folder / "ready").exists, "the program is ready")
    leasehold("break", "name", "--because", "a test", "--yes")
    assert "was lost" in running.communicate(timeout=20)[1]
    assert running.returncode == 77


# Leasehold itself fails


def test_killed_leasehold_takes_the_program_along(each: Command, heart: Heart, request: pytest.FixtureRequest) -> None:
    running = each.start_with(
        heart, request.node.name, "--ttl", str(TTL), program=heart.as_grandchild("SIGTERM", "SIGHUP")
    )
    running.kill()
    deadline = now() + TTL * 0.99
    wait_for(lambda: not lives(heart.pid), "the program is gone")
    assert heart.latest_beat < deadline


def test_killed_leasehold_still_gives_the_program_its_grace(leasehold: Command, heart: Heart) -> None:
    tidy = "trap 'echo tidied > tidied; exit' TERM; \"$@\" & while :; do sleep 0.05; done"
    running = leasehold.start_with(heart, "name", program=["sh", "-c", tidy, "sh", *heart.command()])
    running.kill()
    wait_for((leasehold.folder / "tidied").exists, "the program has tidied up")
    wait_for(lambda: not lives(heart.pid), "all of it is gone")


def test_a_stopped_leasehold_cannot_keep_the_program_alive(leasehold: Command, heart: Heart, tmp_path: Path) -> None:
    """The guard ends the program; the next holder finds it gone."""
    running = leasehold.start_with(heart, "name", "--ttl", str(TTL), program=heart.as_grandchild("SIGTERM"))
    freeze(running.pid)
    try:
        next_one = leasehold("run", "name", "--wait", "30", "--", "cat", "/proc/uptime")
        assert next_one.returncode == 0
        assert heart.latest_beat <= float(next_one.stdout.split()[0])
        assert not lives(heart.pid)
    finally:
        running.send_signal(signal.SIGCONT)
    assert "its TTL ran out" in running.communicate(timeout=20)[1]
    assert running.returncode == 77


def test_a_program_that_left_its_group_is_ended_too(leasehold: Command, heart: Heart) -> None:
    """As an interactive shell does: it makes a group of its own."""
    leaves = heart.folder / "leaves.py"
    leaves.write_text("import os, sys\nos.setpgid(0, 0)\nos.execv(sys.argv[1], sys.argv[1:])")
    program = [heart.command()[0], str(leaves), *heart.command()]
    running = leasehold.start_with(heart, "name", "--ttl", str(TTL), program=program)
    leasehold("break", "name", "--because", "a test", "--yes")
    assert "the program's own was 143" in ended_in_time(running, heart, now() + TTL * 0.99)


def test_a_program_that_left_its_group_does_not_outlive_leasehold(leasehold: Command, heart: Heart) -> None:
    leaves = heart.folder / "leaves.py"
    leaves.write_text("import os, sys\nos.setpgid(0, 0)\nos.execv(sys.argv[1], sys.argv[1:])")
    program = [heart.command()[0], str(leaves), *heart.command("SIGTERM")]
    running = leasehold.start_with(heart, "name", "--ttl", str(TTL), program=program)
    running.kill()
    deadline = now() + TTL * 0.99
    wait_for(lambda: not lives(heart.pid), "the program is gone")
    assert heart.latest_beat < deadline


def test_killing_the_guard_harms_nobody(leasehold: Command, heart: Heart) -> None:
    running = leasehold.start_with(heart, "name", "--ttl", "3")
    guard = guard_of(running.pid, heart)
    os.kill(guard, signal.SIGKILL)
    time.sleep(4)
    assert running.poll() is None
    assert lives(heart.pid)
    running.terminate()
    assert running.wait(20) == 143
    assert json.loads(leasehold("status", "--json").stdout)["names"] == []
