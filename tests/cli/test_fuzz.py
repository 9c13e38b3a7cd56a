"""Whatever is typed, the answer is a known exit code and at most one line on stderr; never a traceback."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.tool import call_in_process

CODES = {0, 1, 64, 78, 126, 127}
VERBS = ["run", "status", "break", "engines", "completion", "--help", "--version"]
OPTIONS = [
    "--on", "--namespace", "--ttl", "--wait", "--on-lost", "--longest-hold", "--purpose", "--shared", "--permits",
    "--label", "--quiet", "-v", "-q", "-y", "--yes", "--because", "--json", "--limit", "-h", "-hv", "--", "-",
]  # fmt: skip
VALUES = [
    "0", "-1", "1", "1e400", "nan", "inf", "9" * 400, "1.5h", "term:1,kill", "kill", "term:1e9", "correctness",
    "redis://127.0.0.1:1", "redis://[::1", "redis://\x00", "rediss://h:99999", "sqlite://", "sqlite:///dev/null",
    "sqlite:///nonexistent/x.db", "://", "a://b", "name", "\ud800", "\x00", "é", "e\u0301", "\u202e", "[red]", "%",
    "%s{}", "${HOME}", "no-such-program", "/", "x" * 300,
]  # fmt: skip

words = st.sampled_from(OPTIONS) | st.sampled_from(VALUES) | st.text(max_size=20)
joined = st.builds(
    lambda option, value: f"{option}={value}", st.sampled_from(OPTIONS), st.sampled_from(VALUES) | st.text()
)
# What is fuzzed is the command, not the machine that it runs on: no word may be the name of a program. So there is none
# on the PATH, and at the end stands one that cannot exist.
lines = st.builds(
    lambda verb, rest: [verb, *rest, *(["--", "./no-such-program"] if verb == "run" else [])],
    st.sampled_from(VERBS) | words,
    st.lists(words | joined, max_size=7),
)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as home:
        yield {"HOME": home, "PATH": f"{home}/empty", "LEASEHOLD_URL": f"sqlite:///{home}/leases.db"}


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=lines)
def test_any_command_line(environment: dict[str, str], line: list[str]) -> None:
    result = call_in_process(line, environment)
    assert result.returncode in CODES, (result.returncode, result.stderr)
    assert "Traceback" not in result.stderr
    if result.returncode != 0 and line:
        assert result.stderr.count("\n") == 1
    assert all(character.isprintable() or character == "\n" for character in result.stderr)
