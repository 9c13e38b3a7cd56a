"""Whatever is typed, the answer is a known exit code and at most one line on stderr; never a traceback."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.tool import call_in_process

BY_NIGHT, PARTS = 40_000, 4
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


def check(environment: dict[str, str], line: list[str]) -> int:
    """Call it, and see that it says what it should; returns its exit code."""
    result = call_in_process(line, environment)
    assert result.returncode in CODES, (line, result.returncode, result.stderr)
    assert "Traceback" not in result.stderr, line
    if result.returncode != 0 and line:
        assert result.stderr.count("\n") == 1, (line, result.stderr)
    assert all(character.isprintable() or character == "\n" for character in result.stderr), line
    return result.returncode


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=lines)
def test_any_command_line(environment: dict[str, str], line: list[str]) -> None:
    check(environment, line)


def some_line(chance: random.Random) -> list[str]:
    """The same by chance alone, which is quick; no verb that only tells of itself, for these are slow."""

    def word() -> str:
        kind = chance.random()
        if kind < 0.8:
            return chance.choice(OPTIONS if kind < 0.4 else VALUES)
        return "".join(chr(chance.randrange(1, 0x3000)) for _ in range(chance.randrange(12)))

    def pair() -> str:
        return f"{chance.choice(OPTIONS)}={chance.choice(VALUES) if chance.random() < 0.7 else word()}"

    verb = chance.choice(VERBS[:3]) if chance.random() < 0.9 else word()
    rest = [pair() if chance.random() < 0.3 else word() for _ in range(chance.randrange(8))]
    return [verb, *rest, *(["--", "./no-such-program"] if verb == "run" else [])]


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_tens_of_thousands_of_command_lines(environment: dict[str, str], part: int) -> None:
    chance = random.Random(part)
    codes = Counter(check(environment, some_line(chance)) for _ in range(BY_NIGHT // PARTS))
    assert min(codes[0], codes[64], codes[127]) > 0, codes
