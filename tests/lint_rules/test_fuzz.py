"""Whatever the source is, the answer is findings or a clear problem; never an error of the linter itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.lint.rule import all_rules
from leasehold.lint.run import look_at_source

RULES = all_rules()
EXAMPLES = [example for rule in RULES for heading in ("Bad", "Good") for example in rule.examples(heading)]
LINES = sorted({line for example in EXAMPLES for line in example.splitlines()})
WORDS = sorted({word for line in LINES for word in line.replace("(", " ( ").replace(")", " ) ").split()})

shuffled = st.lists(st.sampled_from(LINES), max_size=25).map("\n".join)
spliced = st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=4).map("\n".join)
words = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=40).map(" ".join)
nested = st.builds(
    lambda lines, keyword: f"{keyword}:\n" + "".join(f"    {line}\n" for line in lines),
    st.lists(st.sampled_from([line.strip() for line in LINES]), min_size=1, max_size=12),
    st.sampled_from(["def f(redis, lock)", "async def f(lock)", "class Lock", "while True", "with lock", "if redis"]),
)
holes = st.builds(
    lambda example, start, length, put: example[:start] + put + example[start + length :],
    st.sampled_from(EXAMPLES),
    st.integers(0, 300),
    st.integers(0, 12),
    st.sampled_from(["", "()", "*a", "**k", "None", "[]", "lambda: 0", "x", "\n", "self.", "await ", "not "]),
)


@settings(max_examples=1500, deadline=None)
@given(source=shuffled | spliced | words | nested | holes | st.text())
def test_any_source(source: str) -> None:
    report = look_at_source("any.py", source, RULES)
    lines = source.count("\n") + source.count("\r") + 1
    for finding in report.findings:
        assert 1 <= finding.line <= lines
        assert finding.column >= 1
    for problem in report.problems:
        assert "please report" not in problem.message, problem.message
        assert "\n" not in problem.message
