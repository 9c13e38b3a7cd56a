"""The command as its users have it: selection, silence, formats, fixes, exit codes, and files that are no Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.tool import Result, call_in_process

BAD = """\
def nightly(redis, token):
    if redis.setnx("lock:nightly", token):
        redis.expire("lock:nightly", 30)
        export()
"""
FIXED = """\
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, ex=30):
        export()
"""
TWO = BAD + "\n\ndef release(redis, key, token):\n    if redis.get(key) == token:\n        redis.delete(key)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(TWO)
    return tmp_path


def lint(*arguments: str) -> Result:
    return call_in_process(["lint", *arguments], {"PATH": os.environ["PATH"]})


def codes(result: Result) -> list[str]:
    return [one["code"] for one in json.loads(result.stdout)["findings"]]


def test_findings_are_told_one_a_line(folder: Path) -> None:
    result = lint("jobs.py")
    assert result.returncode == 1
    first, second = result.stdout.splitlines()
    assert first.startswith("jobs.py:2:8: LH101 ")
    assert second.startswith("jobs.py:9:9: LH111 ")
    assert "2 findings in 1 file" in result.stderr
    assert "leasehold explain LH101" in result.stderr


def test_the_line_is_shown_and_marked(folder: Path) -> None:
    result = lint("--source", "jobs.py")
    assert '    2 |     if redis.setnx("lock:nightly", token):' in result.stdout
    assert "      |        " + "^" * len('redis.setnx("lock:nightly", token)') in result.stdout


def test_colour_only_when_wanted(folder: Path) -> None:
    assert "\033[" not in lint("jobs.py").stdout
    assert "\033[" in call_in_process(["lint", "jobs.py"], {"FORCE_COLOR": "1"}).stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--select", "LH101"], ["LH101"]),
        (["--select", "LH11"], ["LH111"]),
        (["--select", "get-compare-delete"], ["LH111"]),
        (["--ignore", "LH101,LH111"], []),
        (["--select", "ALL", "--ignore", "LH11"], ["LH101"]),
    ],
)
def test_rules_are_selected(folder: Path, options: list[str], expected: list[str]) -> None:
    assert codes(lint("--format", "json", *options, "jobs.py")) == expected


@pytest.mark.parametrize("option", ["--select", "--ignore", "--extend-select"])
def test_an_unknown_rule_is_told(folder: Path, option: str) -> None:
    result = lint(option, "LH999", "jobs.py")
    assert result.returncode == 2
    assert "'LH999' names no rule" in result.stderr


@pytest.mark.parametrize(
    ("comment", "silenced"),
    [("# noqa", True), ("# noqa: LH101", True), ("# noqa: E501, LH101", True), ("# noqa: E501", False), ("", False)],
)
def test_noqa(folder: Path, comment: str, silenced: bool) -> None:
    (folder / "jobs.py").write_text(
        BAD.replace("token):\n    ", f"token):  {comment}\n    ", 1).replace("):\n", "):\n")
    )
    text = BAD.splitlines()
    text[1] += f"  {comment}"
    (folder / "jobs.py").write_text("\n".join(text) + "\n")
    assert codes(lint("--format", "json", "jobs.py")) == ([] if silenced else ["LH101"])


def test_noqa_counts_on_every_line_of_an_expression(folder: Path) -> None:
    (folder / "jobs.py").write_text(
        'def f(redis, t):\n    redis.setnx(\n        "lock", t\n    )  # noqa: LH102, LH130\n'
    )
    assert lint("jobs.py").returncode == 0


def test_settings_come_from_pyproject(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.leasehold.lint]\nignore = ["LH101"]\nexclude = ["old/"]\n')
    (folder / "old").mkdir()
    (folder / "old" / "jobs.py").write_text(TWO)
    assert codes(lint("--format", "json")) == ["LH111"]


def test_per_file_ignores(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.leasehold.lint.per-file-ignores]\n"jobs.py" = ["LH11"]\n')
    assert codes(lint("--format", "json")) == ["LH101"]


@pytest.mark.parametrize(
    "settings",
    [
        "[tool.leasehold.lint]\nslect = []",
        "[tool.leasehold.lint]\nselect = 3",
        "[tool.leasehold.lint]\ntests = 'yes'",
        "[tool.leasehold]\nlint = 3",
        "not toml",
        "[tool.leasehold.lint]\nper-file-ignores = []",
        "[tool.leasehold.lint]\nbaseline = 1",
    ],
)
def test_wrong_settings_are_told_in_one_line(folder: Path, settings: str) -> None:
    (folder / "pyproject.toml").write_text(settings)
    result = lint()
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "pyproject.toml" in result.stderr


def test_baseline_lets_only_new_findings_fail(folder: Path) -> None:
    assert lint("--write-baseline", "known.json", "jobs.py").returncode == 0
    (folder / "jobs.py").write_text("import os\n\n\n" + TWO)
    moved = lint("--baseline", "known.json", "jobs.py")
    assert moved.returncode == 0, moved.stdout
    assert "2 known from the baseline" in moved.stderr
    (folder / "jobs.py").write_text(TWO + "\n\ndef more(redis, t):\n    return redis.set('a-lock', t, nx=True)\n")
    assert codes(lint("--format", "json", "--baseline", "known.json", "jobs.py")) == ["LH102"]
    (folder / "jobs.py").write_text(FIXED)
    assert "2 of the baseline no longer there" in lint("--baseline", "known.json", "jobs.py").stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "findings": []}', '{"version":1,"findings":[{}]}'])
def test_a_broken_baseline_is_told(folder: Path, text: str) -> None:
    (folder / "known.json").write_text(text)
    result = lint("--baseline", "known.json", "jobs.py")
    assert result.returncode == 2
    assert "--write-baseline" in result.stderr


def test_fix_changes_what_is_certain_and_keeps_the_rest(folder: Path) -> None:
    result = lint("--fix", "jobs.py")
    assert result.returncode == 1
    assert (folder / "jobs.py").read_text() == TWO.replace(BAD, FIXED)
    assert "1 fixed" in result.stderr
    assert "LH111" in result.stdout
    assert "LH101" not in result.stdout


def test_fix_keeps_encoding_line_ends_and_mode(folder: Path) -> None:
    file = folder / "jobs.py"
    source = "# -*- coding: latin-1 -*-\n# caf\xe9\n" + BAD
    file.write_bytes(source.replace("\n", "\r\n").encode("latin-1"))
    file.chmod(0o750)
    assert lint("--fix", "jobs.py").returncode == 0
    expected = ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + FIXED).replace("\n", "\r\n").encode("latin-1")
    assert file.read_bytes() == expected
    assert file.stat().st_mode & 0o777 == 0o750


def test_diff_changes_nothing_and_applies(folder: Path) -> None:
    result = lint("--diff", "jobs.py")
    assert result.returncode == 1
    assert (folder / "jobs.py").read_text() == TWO
    subprocess.run(["patch", "-p1"], input=result.stdout, text=True, check=True, cwd=folder, capture_output=True)
    assert (folder / "jobs.py").read_text() == TWO.replace(BAD, FIXED)


NOT_AWAITED = "import asyncio\n\nlock = asyncio.Lock()\n\nasync def f():\n    lock.acquire()\n"
WALL_CLOCK = """\
import time

def take_lock(lock, t):
    end = time.time() + t
    while time.time() < end:
        if lock.acquire(False):
            return True
        time.sleep(0.1)
    return False
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NOT_AWAITED, NOT_AWAITED.replace("lock.acq", "await lock.acq")),
        (WALL_CLOCK, WALL_CLOCK.replace("time.time()", "time.monotonic()")),
    ],
)
def test_other_fixes(folder: Path, before: str, after: str) -> None:
    (folder / "jobs.py").write_text(before)
    lint("--fix", "jobs.py")
    assert (folder / "jobs.py").read_text() == after


def test_what_leaves_the_function_is_not_fixed(folder: Path) -> None:
    """The deadline is stored: there the wall clock is needed."""
    source = WALL_CLOCK.replace("    while", "    row.end = end\n    while")
    (folder / "jobs.py").write_text(source)
    lint("--fix", "jobs.py")
    assert (folder / "jobs.py").read_text() == source


def test_tests_are_left_out_unless_wanted(folder: Path) -> None:
    (folder / "test_jobs.py").write_text(TWO)
    assert len(codes(lint("--format", "json"))) == 2
    assert len(codes(lint("--format", "json", "--tests"))) == 4
    assert "1 test file left out" in lint().stderr


def test_github_annotations_are_escaped(folder: Path) -> None:
    (folder / "a,b:c%.py").write_text(BAD)
    first = lint("--format", "github", "a,b:c%.py").stdout.splitlines()[0]
    assert first.startswith(
        "::error file=a%2Cb%3Ac%25.py,line=2,endLine=2,col=8,endColumn=42,title=LH101 setnx-then-ex"
    )


def test_stdin(folder: Path) -> None:
    command = [sys.executable, "-m", "leasehold", "lint", "-"]
    result = subprocess.run(command, input=BAD, text=True, capture_output=True, check=False)
    assert result.returncode == 1
    assert result.stdout.startswith("-:2:8: LH101")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"def (", "is not Python that can be parsed"),
        (b"\x00\x01", "null bytes"),
        (b"# ok\n# ok\nx = '\xff'", "is not utf-8 text"),
        (b"# coding: no-such\n", "encoding"),
        (b"# coding: rot13\n", "encoding"),
        (b"(" * 5000, "parse"),
        (b"-" * 200_000 + b"1", "parse"),
        (b"x = 1\n" * 800_000, "longer than 4 MB"),
    ],
)
def test_what_is_no_python_is_told_in_one_line(folder: Path, raw: bytes, told: str) -> None:
    (folder / "jobs.py").write_bytes(raw)
    result = lint("jobs.py")
    assert result.returncode == 2
    assert told in result.stdout
    assert result.stdout.count("\n") == 1
    assert "Traceback" not in result.stdout + result.stderr


def test_strange_files_do_no_harm(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    (folder / "self.py").symlink_to("self.py")
    os.mkfifo(folder / "pipe.py")
    assert codes(lint("--format", "json", ".")) == ["LH101", "LH111"]
    for name in ("pipe.py", "no-such.py", "self.py", "a\0b"):
        result = lint(name)
        assert result.returncode == 2, name
        assert result.stdout.count("\n") == 1


def test_source_cannot_steer_the_terminal(folder: Path) -> None:
    (folder / "jobs.py").write_text('def f(redis, t):\n    return redis.setnx("lock\x1b[2J\u202e", t)\n')
    result = lint("--source", "jobs.py")
    assert result.returncode == 1
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout


def test_many_processes_find_the_same(folder: Path) -> None:
    padding = "x = 1\n" * 18_000
    for number in range(6):
        (folder / f"job{number}.py").write_text(padding + TWO)
    alone, together = (lint("--format", "json", "--jobs", jobs, ".").stdout for jobs in ("1", "2"))
    assert alone == together
    assert len(json.loads(alone)["findings"]) == 14


def test_explain(folder: Path) -> None:
    page = call_in_process(["explain", "lh110"], {})
    assert page.returncode == 0
    assert page.stdout.startswith("# LH110 unconditional-release")
    assert "## Why" in page.stdout
    assert call_in_process(["explain", "unconditional-release"], {}).stdout == page.stdout
    listing = call_in_process(["explain"], {}).stdout
    assert listing.count("\n  LH") >= 40
    unknown = call_in_process(["explain", "LH999"], {})
    assert unknown.returncode == 2
    assert "there is no rule 'LH999'" in unknown.stderr
