"""The plan for the end of a program: whatever is asked for, SIGKILL comes before the deadline."""

from __future__ import annotations

import doctest
import signal
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.cli import on_lost, output
from leasehold.cli.on_lost import Countdown, Steps, Window, parse
from leasehold.cli.options import seconds_in
from leasehold.core.held import margin

seconds = st.floats(0, 1e6, allow_nan=False)
steps = st.builds(Steps, st.lists(st.tuples(st.sampled_from([1, 2, 3, 15]), st.floats(0, 3600)), max_size=8).map(tuple))
windows = st.builds(Window, st.floats(0.05, 86400), st.none() | st.floats(0.05, 86400))


@pytest.mark.parametrize(
    ("text", "pauses"),
    [
        ("term:10,kill", ((15, 10.0),)),
        ("term:10", ((15, 10.0),)),
        ("kill", ()),
        ("KILL", ()),
        ("SIGINT:500ms, sigterm:1m , SIGKILL", ((2, 0.5), (15, 60.0))),
        ("usr1:0,kill", ((int(signal.SIGUSR1), 0.0),)),
    ],
)
def test_steps_are_read(text: str, pauses: tuple[tuple[int, float], ...]) -> None:
    assert parse(text) == Steps(pauses)


@pytest.mark.parametrize(
    "text",
    ["", ",", "kill,term:1", "kill,kill", "term", "term:", "term:-1", "term:nan", "stop:1", "9:1", "term:2h,kill"],
)
def test_wrong_steps_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("30", 30), ("1.5", 1.5), (".5", 0.5), ("250ms", 0.25), ("90 s", 90), ("15m", 900), ("2h", 7200)],
)
def test_durations_are_read(text: str, value: float) -> None:
    assert seconds_in(text) == value


@pytest.mark.parametrize("module", [on_lost, output])
def test_the_examples_in_the_source_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@given(asked=steps, window=windows)
def test_fitted_steps_leave_time_for_renewals(asked: Steps, window: Window) -> None:
    fitted = asked.fitted(window)
    begins_with_left = fitted.total + window.reserve
    assert window.reserve > 0
    assert begins_with_left <= window.shortest * 0.4 + 1e-6
    # A healthy lease is renewed when a third of it is over, so it never comes near the first step.
    assert begins_with_left < window.shortest * 2 / 3 - margin(window.shortest, 0)
    assert [signum for signum, _ in fitted.pauses] == [signum for signum, _ in asked.pauses]
    if asked.total <= window.room:
        assert fitted == asked


@given(planned=steps, window=windows, begun=seconds, left=st.floats(-1000, 1e5), looks=st.lists(st.floats(0, 1e5)))
def test_every_signal_is_sent_once_in_order_and_kill_in_time(
    planned: Steps, window: Window, begun: float, left: float, looks: list[float]
) -> None:
    deadline = begun + left
    countdown = Countdown(planned, now=begun, deadline=deadline, reserve=window.reserve)
    assert countdown.kill_at <= max(deadline - window.reserve, begun)
    assert countdown.kill_at <= begun + planned.total + 1e-6
    sent: list[int] = []
    for look in sorted(looks):
        due = countdown.due(begun + look)
        assert (signal.SIGKILL in due) <= (begun + look >= countdown.kill_at)
        sent += due
    sent += countdown.due(countdown.kill_at)
    assert sent == [*(signum for signum, _ in planned.pauses), signal.SIGKILL]
    assert countdown.next_at is None
