"""Signals sent to `leasehold run`: they are the program's."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from tests.cli.tool import LEASEHOLD, Command, Heart, lives, wait_for


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_is_forwarded_to_the_program(leasehold: Command, name: str) -> None:
    tell = f"trap 'echo got {name}; exit 7' {name}; : > ready; while :; do sleep 0.05; done"
    running = leasehold.start("run", "name", "--", "sh", "-c", tell)
    wait_for((leasehold.folder / "ready").exists, "the program is ready")
    running.send_signal(getattr(signal, f"SIG{name}"))
    assert running.communicate(timeout=20)[0] == f"got {name}\n"
    assert running.returncode == 7


def test_a_signal_reaches_all_of_the_group(leasehold: Command, heart: Heart) -> None:
    running = leasehold.start_with(heart, "name", program=heart.as_grandchild())
    running.terminate()
    assert running.wait(20) == 143
    assert not lives(heart.pid)
    assert json.loads(leasehold("status", "--json").stdout)["names"] == []


def test_an_interrupted_program_interrupts_leasehold(leasehold: Command, heart: Heart) -> None:
    """It ends by the signal itself, so that a script which called it stops as well."""
    running = leasehold.start_with(heart, "name", program=["sh", "-c", '"$@"; exit 0', "sh", *heart.command()])
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == -signal.SIGINT
    assert json.loads(leasehold("status", "--json").stdout)["names"] == []


def test_a_program_that_survives_a_signal_goes_on(leasehold: Command, heart: Heart) -> None:
    running = leasehold.start_with(heart, "name", program=heart.command("SIGINT"))
    running.send_signal(signal.SIGINT)
    beat = heart.latest_beat
    wait_for(lambda: heart.latest_beat > beat + 0.5, "the program goes on")
    assert running.poll() is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_and_leaves_nothing(leasehold: Command, heart: Heart, signum: signal.Signals) -> None:
    leasehold.start_with(heart, "name")
    waiting = leasehold.start("run", "name", "--wait", "60", "--", "touch", "ran")

    def waiters() -> object:
        return json.loads(leasehold("status", "name", "--json").stdout)["names"][0]["waiters"]

    wait_for(waiters, "it waits")
    waiting.send_signal(signum)
    assert waiting.communicate(timeout=20) == ("", "")
    assert waiting.returncode == -signum
    assert waiters() == []
    assert not (leasehold.folder / "ran").exists()


def test_what_the_caller_ignores_stays_ignored(leasehold: Command, heart: Heart) -> None:
    """As with nohup: the hang-up ends neither leasehold nor the program."""
    running = subprocess.Popen(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *LEASEHOLD, "run", "name", "--", *heart.command()],
        env=leasehold.environment,
        cwd=leasehold.folder,
    )
    try:
        heart.wait_until_it_beats()
        running.send_signal(signal.SIGHUP)
        subprocess.run(["kill", "-HUP", str(heart.pid)], check=True)
        beat = heart.latest_beat
        wait_for(lambda: heart.latest_beat > beat + 0.5, "the program goes on")
        assert running.poll() is None
        running.terminate()
        assert running.wait(20) == 143
    finally:
        running.kill()
        running.wait(20)


def test_a_program_that_somebody_stopped_keeps_its_lease(leasehold: Command, heart: Heart) -> None:
    running = leasehold.start_with(heart, "name", "--ttl", "3")
    subprocess.run(["kill", "-STOP", str(heart.pid)], check=True)
    assert leasehold("run", "name", "--wait", "4", "--", "true").returncode == 75
    subprocess.run(["kill", "-CONT", str(heart.pid)], check=True)
    beat = heart.latest_beat
    wait_for(lambda: heart.latest_beat > beat, "the program goes on")
    running.terminate()
    assert running.wait(20) == 143
