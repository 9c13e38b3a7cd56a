"""Every way through the tree ends in advice, and every program that it gives runs as printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_terminal import Shell, shell
from tests.cli.tool import Command

import advice_page
from leasehold import Misuse
from leasehold.advice.engines import SYSTEMS, choose
from leasehold.advice.tree import LEAVES, QUESTIONS, walk, ways
from leasehold.cli import exits

ROOT = Path(__file__).parents[2]
__all__ = ["shell"]  # a fixture


def test_every_leaf_is_reached_and_every_question_asked() -> None:
    every = list(ways())
    assert {leaf.name for _, leaf in every} == set(LEAVES)
    assert {name for answers, _ in every for name in answers} == set(QUESTIONS)
    for answers, leaf in every:
        assert walk(answers)[1] is leaf


@pytest.mark.parametrize("name", LEAVES)
def test_its_program_runs(name: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LEAVES[name].sample, encoding="utf-8")
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    run = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
    assert (ROOT / "docs" / LEAVES[name].page).exists()


@pytest.mark.parametrize("answers", [pytest.param(answers, id=leaf.name) for answers, leaf in ways()])
def test_the_command_gives_it(leasehold: Command, answers: dict[str, bool]) -> None:
    given = [word for name, answer in answers.items() for word in ("-a", f"{name}={'yes' if answer else 'no'}")]
    leaf = walk(answers)[1]
    result = leasehold("advise", *given, "--run", "redis")
    assert result.returncode == 0, result.stderr
    assert leaf.title in result.stdout  # type: ignore[union-attr]
    said = json.loads(leasehold("advise", *given, "--json").stdout)
    assert said["answers"] == answers
    assert leasehold("advise", *given, "--sample").stdout == said["sample"]


def test_an_open_question_is_named(leasehold: Command) -> None:
    result = leasehold("advise", "-a", "harmless=no")
    assert result.returncode == exits.USAGE
    assert "-a repeated=yes" in result.stderr


@pytest.mark.parametrize("wrong", ["harmless", "harmless=perhaps", "unknown=yes", "=", ""])
def test_what_is_no_answer_is_refused(leasehold: Command, wrong: str) -> None:
    result = leasehold("advise", "-a", wrong)
    assert result.returncode == exits.USAGE
    assert "is no answer" in result.stderr


def test_answers_from_a_file(leasehold: Command, tmp_path: Path) -> None:
    file = tmp_path / "answers.toml"
    file.write_text('harmless = true\ncostly = true\nrun = ["etcd", "redis"]\nseveral_hosts = true\n')
    said = json.loads(leasehold("advise", "--from", str(file), "--json").stdout)
    assert said["pattern"] == "efficiency-lock"
    assert said["engine"]["engine"] == SYSTEMS["redis"].title
    for text in ("harmless = 1", "nonsense", "run = 'redis'", "several_hosts = 'yes'", "unknown = true"):
        file.write_text(text)
        assert leasehold("advise", "--from", str(file)).returncode == exits.USAGE
    assert leasehold("advise", "--from", str(tmp_path / "missing.toml")).returncode == exits.USAGE


def test_the_engine_is_one_that_somebody_has() -> None:
    assert choose(["redis", "etcd"], protects_state=True, several_hosts=True).engine == "etcd"
    assert choose(["redis", "etcd"], protects_state=False, several_hosts=True).engine == SYSTEMS["redis"].title
    assert "fence" in choose(["redis"], protects_state=True, several_hosts=True).why
    assert choose([], protects_state=True, several_hosts=False).engine == "SQLite"
    assert "one host" in choose(["none"], protects_state=True, several_hosts=True).why
    with pytest.raises(Misuse):
        choose(["oracle"], protects_state=True, several_hosts=True)


def test_the_page_and_its_picture_are_those_of_the_tree() -> None:
    hint = "python tools/advice_page.py"
    assert (ROOT / "docs/advice.md").read_text() == advice_page.page(), hint
    assert (ROOT / "docs/img/advice.svg").read_text() == advice_page.picture(), hint


def test_the_interview(shell: Shell) -> None:
    shell.type("leasehold advise\n")
    for question, answer in (("harm", "y"), ("most of the time", "y"), ("run already", "7"), ("several hosts", "y")):
        shell.expect(question)
        shell.type(f"{answer}\n")
    shell.expect("A lock that saves work")
    shell.expect("one Redis or Valkey")
    shell.expect("More:")
