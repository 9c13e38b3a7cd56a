"""``leasehold chaos`` as people use it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.tool import LEASEHOLD, Command, lives, wait_for

from leasehold.chaos import running
from leasehold.chaos.checkers import Verdict
from leasehold.chaos.faults import FAULTS
from leasehold.chaos.workloads import WORKLOADS

SHORT = ("chaos", "--for", "0.2", "--ttl", "1", "--workers", "2", "--seed", "7", "--faults", "kill")


@pytest.fixture
def leasehold(tmp_path: Path) -> Iterator[Command]:
    command = Command(f"sqlite:///{tmp_path}/leases.db", tmp_path)
    yield command
    command.end_all()


def test_the_list_names_everything_and_what_it_needs(leasehold: Command) -> None:
    shown = leasehold("chaos", "--list")
    assert shown.returncode == 0
    for name in (*WORKLOADS, *FAULTS, "redis-py"):
        assert f"\n{name} " in shown.stdout
    listed = json.loads(leasehold("chaos", "--list", "--json").stdout)
    needs = {row["name"]: row["needs"] for row in listed["faults"]}
    assert needs["pause"] == ""
    assert needs["engine-restart"] == "--start"
    assert needs["leader-kill"] == "--start with --members 3"
    assert needs["partition"] == "an engine reached over TCP"
    assert needs["failover"] == "--start redis or valkey with --members 2"


def test_a_run_for_people_says_what_was_seen_and_how_to_repeat_it(leasehold: Command, tmp_path: Path) -> None:
    result = leasehold(*SHORT, "--report", str(tmp_path / "out"))
    assert result.returncode == 0, result
    assert "No violation was seen" in result.stdout
    again = "leasehold chaos --workload register --faults kill --seed 7 --for 0.2 --workers 2 --ttl 1 --wait 2"
    assert f"again: {again}\n" in result.stdout
    assert "breaking things" in result.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.json", "history.jsonl"}


@pytest.mark.parametrize("folder", ["/proc/out", "/dev/null/out"])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(leasehold: Command, folder: str) -> None:
    result = leasehold(*SHORT, "--report", folder)
    assert (result.returncode, result.stdout) == (64, "")
    assert result.stderr.startswith(f"leasehold chaos: Invalid value for --report: cannot write into '{folder}': ")
    assert result.stderr.count("\n") == 1, "nothing was run"


def test_a_report_that_cannot_be_written_after_all_does_not_hide_the_verdicts(
    leasehold: Command, tmp_path: Path
) -> None:
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    people, program = (leasehold(*SHORT, *form, "--report", str(tmp_path / "out")) for form in ([], ["--json"]))
    assert (people.returncode, program.returncode) == (74, 74)
    assert "No violation was seen" in people.stdout
    assert json.loads(program.stdout)["report"] is None
    for result in (people, program):
        assert "leasehold: the report could not be written: Is a directory: " in result.stderr


def test_a_violation_is_exit_code_one(leasehold: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    violated = [Verdict("token order", "Tokens increase.", "violated", 3)]
    monkeypatch.setattr(running, "judge", lambda *_history: violated)
    result = leasehold(*SHORT, "--json")
    assert result.returncode == 1
    answer = json.loads(result.stdout)
    assert answer["violated"] is True
    assert answer["verdicts"][0]["name"] == "token order"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--faults", "pause,nothing"], "there is no fault 'nothing'; there are pause"),
        (["--faults", "pairs,random"], "choose one"),
        (["--workload", "nothing"], "there is no workload 'nothing'; there are register"),
        (["--subject", "nothing"], "there is no subject 'nothing'; there are leasehold"),
        (["--on", "redis://127.0.0.1", "--start", "redis"], "not both"),
        (["--on", ""], "--on is empty"),
        (["--members", "3"], "about the servers of --start"),
        (["--start", "nothing"], "cannot be started here"),
        (["--start", "postgresql", "--members", "3"], "stands alone"),
        (["--start", "redis", "--members", "3"], "2 members at most, not 3"),
        (["--start", "redlock"], "give it 3 members or more, not 1"),
        (["--faults", "partition"], "none of these faults can be made here: partition: the engine is a file"),
        (["--for", "soon"], "not a duration"),
    ],
)
def test_what_cannot_be_right_is_said_in_one_line(leasehold: Command, arguments: list[str], says: str) -> None:
    result = leasehold("chaos", *arguments, "--json")
    assert result.returncode == 64, result
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_an_engine_that_is_not_there(leasehold: Command) -> None:
    result = leasehold("chaos", "--on", "redis://127.0.0.1:1/0", "--json")
    assert result.returncode == 78
    assert result.stderr.count("\n") == 1


def test_it_does_without_what_only_tests_need() -> None:
    """Whoever installs Leasehold alone has no pytest."""
    words = "import sys; sys.modules['pytest'] = None; import leasehold.chaos.worker, leasehold.cli.chaos_shown"
    subprocess.run([sys.executable, "-c", words], check=True)


def test_a_password_is_nowhere_in_the_answer(leasehold: Command) -> None:
    result = leasehold("chaos", "--on", "redis://:hunter22@127.0.0.1:1/0")
    assert result.returncode == 78
    assert "hunter22" not in result.stdout + result.stderr
    assert "--on 'redis://:***@127.0.0.1:1/0'" in result.stderr


def test_faults_are_completed_after_a_comma(leasehold: Command) -> None:
    result = leasehold.in_process_of_its_own(
        _LEASEHOLD_COMPLETE="bash_complete", COMP_WORDS="leasehold chaos --faults pause,pause-", COMP_CWORD="3"
    )
    assert result.stdout == "plain,pause,pause-in-gap\n"


def children_of(parent: int) -> list[int]:
    """The processes that this one has started and that live."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and lives(int(process.name)):
            with contextlib.suppress(OSError):
                if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(process.name))
    return found


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_that_was_started(tmp_path: Path, signum: signal.Signals) -> None:
    """A frozen worker, one that runs, and the server; and no file is left behind."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    leasehold = Command("", tmp_path)
    leasehold.environment["TMPDIR"] = str(temporary)
    leasehold.environment.pop("LEASEHOLD_URL")
    news = tmp_path / "news"
    with news.open("w") as stderr:
        process = subprocess.Popen(
            [*LEASEHOLD, "chaos", "--start", "redis", "--faults", "pause", "--ttl", "1", "--workers", "2"],
            stderr=stderr,
            env=leasehold.environment,
            cwd=tmp_path,
        )
        try:
            wait_for(lambda: "strikes w" in news.read_text() or process.poll() is not None, "a fault has struck")
            started = children_of(process.pid)
            assert len(started) == 3
            process.send_signal(signum)
            assert process.wait(60) == -signum
        finally:
            process.kill()
            process.wait()
    assert not [pid for pid in started if lives(pid)]
    assert list(temporary.iterdir()) == []
