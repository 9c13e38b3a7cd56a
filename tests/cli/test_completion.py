"""``leasehold completion``: real scripts, tried in a real shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.tool import Command, Heart


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(leasehold: Command, shell: str) -> None:
    result = leasehold("completion", shell)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"_LEASEHOLD_COMPLETE={shell}_complete" in result.stdout


def test_the_bash_script_is_valid(leasehold: Command) -> None:
    script = leasehold("completion", "bash").stdout
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=True)
    assert (checked.stdout, checked.stderr) == ("", "")


def completed(leasehold: Command, *words: str) -> list[str]:
    """Load the script into bash and complete the last word."""
    script = f"""
    PATH={Path(sys.executable).parent}:$PATH
    eval "$(leasehold completion bash)"
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
    _leasehold_completion leasehold
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "-c", script, "bash", *words], capture_output=True, text=True, check=True, env=leasehold.environment
    )
    assert result.stderr == ""
    return result.stdout.split()


def test_verbs_options_and_names_are_completed(leasehold: Command, heart: Heart) -> None:
    assert completed(leasehold, "leasehold", "st") == ["status"]
    assert "--longest-hold" in completed(leasehold, "leasehold", "run", "--lo")
    leasehold.start_with(heart, "nightly-export")
    assert completed(leasehold, "leasehold", "break", "nig") == ["nightly-export"]
    assert completed(leasehold, "leasehold", "break", "x") == []


def test_an_unreachable_engine_completes_nothing_and_says_nothing(leasehold: Command) -> None:
    leasehold.environment["LEASEHOLD_URL"] = "redis://127.0.0.1:1/0"
    assert completed(leasehold, "leasehold", "break", "nig") == []
