"""``leasehold run``: the program, its lease, its environment and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.tool import LEASEHOLD, Command, Heart, Result, lives, now, wait_for


def printed_environment(result: Result) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in result.stdout.splitlines() if line.startswith("LEASEHOLD_"))


def test_two_runs_exclude_each_other(each: Command, heart: Heart, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    each.start_with(heart, name)
    asked_at = now()
    second = each("run", name, "--", "touch", "second-ran")
    assert second.returncode == 75
    assert "is not free; held by " in second.stderr
    assert second.stderr.count("\n") == 1
    assert not (each.folder / "second-ran").exists()
    assert now() - asked_at < 10


def test_a_waiting_run_follows_with_a_higher_token(each: Command, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    first = each.start("run", name, "--", "sh", "-c", "echo $LEASEHOLD_TOKEN; : > started; sleep 1; : > ended")
    wait_for((each.folder / "started").exists, "the first has started")
    second = each("run", name, "--wait", "30", "--", "sh", "-c", "test -e ended && echo $LEASEHOLD_TOKEN")
    assert (second.returncode, second.stderr) == (0, "")
    assert int(second.stdout) > int(first.communicate(timeout=20)[0])
    assert first.returncode == 0


def test_quiet_says_nothing_of_a_busy_name(leasehold: Command, heart: Heart) -> None:
    leasehold.start_with(heart, "name")
    busy = leasehold("run", "name", "--quiet", "--", "true")
    assert (busy.returncode, busy.stdout, busy.stderr) == (75, "", "")


def test_the_environment_of_the_program(leasehold: Command) -> None:
    before = now()
    result = leasehold("run", "nightly export", "--ttl", "1m", "--", "env")
    after = now()
    environment = printed_environment(result)
    assert environment["LEASEHOLD_NAME"] == "nightly export"
    assert environment["LEASEHOLD_TTL"] == "60"
    assert int(environment["LEASEHOLD_TOKEN"]) > 0
    deadline = float(environment["LEASEHOLD_DEADLINE"])
    assert before + 60 * 0.98 - 0.1 < deadline < after + 60 * 0.99


def test_tokens_increase(each: Command, request: pytest.FixtureRequest) -> None:
    tokens = [int(each("run", request.node.name, "--", "printenv", "LEASEHOLD_TOKEN").stdout) for _ in range(3)]
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -HUP $$", 129),
    ],
)
def test_the_exit_code_is_the_programs(leasehold: Command, program: str, code: int) -> None:
    result = leasehold("run", "name", "--", "sh", "-c", program)
    assert (result.returncode, result.stderr) == (code, "")


def test_the_lease_is_released_at_once(each: Command, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    assert each("run", name, "--", "false").returncode == 1
    assert json.loads(each("status", name, "--json").stdout)["names"][0]["holders"] == []


def test_the_program_gets_its_arguments_and_streams_untouched(leasehold: Command) -> None:
    arguments = ["--ttl", "$HOME", "*", "", "a b", "--", "-v"]
    echo = "import sys; print(sys.argv[1:]); print(sys.stdin.read()); print('err', file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-m", "leasehold", "run", "name", "--", sys.executable, "-c", echo, *arguments],
        input="from stdin",
        capture_output=True,
        text=True,
        check=False,
        env=leasehold.environment,
    )
    assert result.stdout == f"{arguments}\nfrom stdin\n"
    assert result.stderr == "err\n"


def test_the_program_inherits_nothing_that_is_ours(leasehold: Command) -> None:
    """No descriptor, and no signal that only we ignore."""
    look = ["sh", "-c", "ls /proc/$$/fd; grep SigIgn /proc/$$/status"]
    *descriptors, ignored = leasehold("run", "name", "--", *look).stdout.splitlines()
    *expected, as_we_are = subprocess.run(look, capture_output=True, text=True, check=True).stdout.splitlines()
    assert descriptors == expected
    # The C library ignores two signals of its own in what it starts, one way of starting more than another.
    of_ours = ~(1 << 31 | 1 << 32)
    assert int(ignored.split()[1], 16) & of_ours == int(as_we_are.split()[1], 16) & of_ours


def test_closed_streams_are_no_problem_and_stay_closed(leasehold: Command) -> None:
    program = ["sh", "-c", "ls /proc/$$/fd > seen; exit 3"]
    closed = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *LEASEHOLD, "run", "name", "--ttl", "2", "--", *program],
        env=leasehold.environment,
        cwd=leasehold.folder,
        check=False,
    )
    assert closed.returncode == 3
    assert not {"0", "2"} & set((leasehold.folder / "seen").read_text().split())


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [
        ("no-such-program", 127, "the program 'no-such-program' was not found on PATH"),
        ("./no-such-program", 127, "the program './no-such-program' was not found"),
        ("./plain-file", 126, "the program './plain-file' cannot be executed: it is not an executable file"),
        ("./no-interpreter", 126, "neither a binary nor a script with an interpreter line (#!)"),
        (".", 126, "the program '.' cannot be executed"),
        ("./", 126, "the program './' cannot be executed"),
    ],
)
def test_a_program_that_cannot_be_started(leasehold: Command, program: str, code: int, message: str) -> None:
    (leasehold.folder / "plain-file").write_text("text")
    script = leasehold.folder / "no-interpreter"
    script.write_text("echo this must not be given to a shell")
    script.chmod(0o755)
    result = leasehold("run", "name", "--", program)
    assert result.returncode == code
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert json.loads(leasehold("status", "--json").stdout)["names"] == []


def test_shared_holders_hold_together_and_keep_writers_out(
    each: Command, heart: Heart, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    each.start_with(heart, name, "--shared")
    assert each("run", name, "--shared", "--", "true").returncode == 0
    assert each("run", name, "--", "true").returncode == 75


def test_permits_are_counted(leasehold: Command, tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        leasehold.start_with(Heart(folder), "name", "--permits", "2")
    assert leasehold("run", "name", "--permits", "2", "--", "true").returncode == 75


def test_namespaces_are_apart(leasehold: Command, heart: Heart) -> None:
    leasehold.start_with(heart, "name", "--namespace", "one")
    assert leasehold("run", "name", "--namespace", "two", "--", "true").returncode == 0
    assert leasehold("run", "name", "--namespace", "one", "--", "true").returncode == 75


def test_a_long_program_is_renewed(leasehold: Command) -> None:
    result = leasehold("run", "name", "--ttl", "2", "--", "sleep", "4")
    assert (result.returncode, result.stderr) == (0, "")


def test_what_the_program_leaves_behind_is_ended_before_the_release(
    each: Command, heart: Heart, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    leave = [
        "sh",
        "-c",
        '"$@" & while ! test -e heartbeat; do sleep 0.05; done; exit 4',
        "sh",
        *heart.command("SIGTERM"),
    ]
    result = each("run", name, "--ttl", "3", "--", *leave)
    assert result.returncode == 4
    assert "left processes behind" in result.stderr
    assert not lives(heart.pid)
    assert json.loads(each("status", name, "--json").stdout)["names"][0]["holders"] == []


def test_a_daemon_that_left_the_group_is_left_alone(leasehold: Command, heart: Heart) -> None:
    daemon = 'setsid "$@" >/dev/null 2>&1 & while ! test -e heartbeat; do sleep 0.05; done'
    result = leasehold("run", "name", "--", "sh", "-c", daemon, "sh", *heart.command())
    try:
        assert (result.returncode, result.stderr) == (0, "")
        assert lives(heart.pid)
    finally:
        os.kill(heart.pid, 9)


def test_nothing_of_leasehold_is_left(leasehold: Command) -> None:
    started = leasehold.start("run", "name", "--", "sleep", "0.3")
    wait_for(lambda: len(children_of(started.pid)) == 2, "the guard and the program are there")
    guard_and_program = children_of(started.pid)
    assert started.wait(20) == 0
    assert not any(lives(pid) for pid in guard_and_program)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_verbose_tells_of_the_lease(leasehold: Command) -> None:
    lines = leasehold("run", "name", "-v", "--", "true").stderr.splitlines()
    assert lines[0].startswith("leasehold: holds 'name' with token ")
    assert lines[1] == "leasehold: released 'name'"


def test_verbose_tells_whom_it_waits_for(leasehold: Command, heart: Heart) -> None:
    first = leasehold.start_with(heart, "name", "--label", "the first")
    second = leasehold.start("run", "name", "--wait", "20", "-v", "--", "true")
    assert second.stderr is not None
    assert "waiting up to 20 s for 'name', held by the first@" in second.stderr.readline()
    first.terminate()
    second.communicate(timeout=20)
    assert second.returncode == 0


def test_steps_that_do_not_fit_are_told(leasehold: Command) -> None:
    asked = leasehold("run", "name", "--ttl", "5", "--on-lost", "int:2,term:3", "--", "true")
    assert "--on-lost take 1.75 s instead of 5 s" in asked.stderr
    by_default = leasehold("run", "name", "--ttl", "5", "--", "true")
    assert by_default.stderr == ""
