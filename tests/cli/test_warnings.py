"""What Leasehold warns of a deployment: told where somebody reads it, never in the mail of a quiet crontab."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Server
from tests.cli.tool import Command, Heart

LONG = "3000d"
WARNING = "is plain TCP to another machine"


@pytest.fixture
def far(server: Server, tmp_path: Path) -> Iterator[Command]:
    """The command on a server whose address is not the loopback's; on Linux this one leads to the same machine."""
    command = Command(f"redis://0.0.0.0:{server.port}/0", tmp_path)
    yield command
    command.end_all()


@pytest.mark.parametrize("quiet", ["--quiet", "-q"])
def test_a_quiet_run_says_nothing_of_the_deployment(far: Command, quiet: str) -> None:
    result = far("run", "quiet-run", quiet, "--", "echo", "the program's own")
    assert (result.returncode, result.stdout, result.stderr) == (0, "the program's own\n", "")


def test_a_quiet_run_says_nothing_of_steps_that_were_shortened(leasehold: Command) -> None:
    run = ("run", "name", "--ttl", "10", "--on-lost", "term:20,kill")
    assert "instead of 20" in leasehold(*run, "--", "true").stderr
    assert leasehold(*run, "--quiet", "--", "true").stderr == ""


def test_a_quiet_run_tells_of_errors(far: Command) -> None:
    result = far("run", "name", "--quiet", "--on", "redis://0.0.0.0:1", "--", "true")
    assert (result.returncode, result.stderr.count("\n")) == (78, 1)
    assert "cannot be reached" in result.stderr


def test_a_run_warns_when_its_program_runs_and_only_then(far: Command, heart: Heart) -> None:
    run = ("run", f"ticks-{secrets.token_hex(4)}", "--every", LONG, "--", "true")
    ran, done_before = far(*run), far(*run)
    assert (ran.returncode, done_before.returncode) == (0, 76)
    assert (ran.stderr.count(WARNING), ran.stderr.count("\n")) == (1, 1)
    assert done_before.stderr == ""

    far.start_with(heart, "busy-afar", "--quiet")
    busy = far("run", "busy-afar", "--", "true")
    assert (busy.returncode, WARNING in busy.stderr, busy.stderr.count("\n")) == (75, False, 1)


def test_a_verbose_run_warns_at_once(far: Command, heart: Heart) -> None:
    far.start_with(heart, "verbose-afar", "--quiet")
    busy = far("run", "verbose-afar", "--verbose", "--", "true")
    assert (busy.returncode, busy.stderr.count(WARNING)) == (75, 1)


def test_other_verbs_warn(far: Command) -> None:
    assert WARNING in far.in_process_of_its_own("status").stderr


def test_a_plain_connection_that_is_meant_is_declared_with_pythons_own_filter(far: Command) -> None:
    result = far("run", "meant-afar", "--", "true", PYTHONWARNINGS="ignore::UserWarning")
    assert (result.returncode, result.stderr) == (0, "")
