"""Streams that cannot show every letter: what they lack is escaped, and nothing fails."""

from __future__ import annotations

import subprocess

import pytest
from tests.cli.tool import LEASEHOLD, Command, Heart


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("arguments", [["explain", "LH110"], ["status", "größe 中"], ["engines", "redis"], ["doctor"]])
def test_what_a_stream_cannot_show_is_escaped(leasehold: Command, encoding: str, arguments: list[str]) -> None:
    result = subprocess.run(
        [*LEASEHOLD, *arguments], capture_output=True, check=False, timeout=60, cwd=leasehold.folder,
        env={**leasehold.environment, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (result.returncode in (0, 1), result.stderr) == (True, b"")
    if arguments[0] == "status":
        assert rb"\u4e2d" in result.stdout


def test_a_held_name_is_shown_where_it_cannot_be_written(leasehold: Command, heart: Heart) -> None:
    leasehold.start_with(heart, "größe")
    shown = leasehold.in_process_of_its_own("status", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert r"gr\xf6\xdfe" in shown.stdout
