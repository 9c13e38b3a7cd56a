"""When a release at a majority of servers says that the lease was held until then."""

from __future__ import annotations

import pytest

from leasehold.core.quorum import Barred, Outcome, Returned, judge_release
from leasehold.errors import OutcomeUnknown

YES, NO, SILENT = Returned(held=True), Returned(held=False), None
OUT, GONE = Barred(1.0), OutcomeUnknown("no answer")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([YES, YES, SILENT], True),
        ([NO, NO, SILENT], False),
        ([YES, NO, SILENT], None),  # the third tells whether it was overtaken, or one has missed the grant
        ([YES, NO, YES], True),
        ([YES, NO, NO], False),
        ([YES, OUT, NO], False),
        ([YES, NO, GONE], True),  # nobody can tell any more
        ([YES, GONE, GONE], None),
        ([YES, SILENT, SILENT], None),
        ([YES, YES, NO, NO, SILENT], None),
        ([YES, YES, NO, NO, NO], False),
        ([YES, YES, YES, SILENT, SILENT], True),
        ([NO, NO, NO, YES, SILENT], False),
    ],
)
def test_a_lease_was_held_if_a_majority_says_so(outcomes: list[Outcome], *, verdict: bool | None) -> None:
    assert judge_release(outcomes) is verdict


def test_one_server_is_believed_when_no_more_answers_are_to_come() -> None:
    assert judge_release([YES, NO, SILENT], final=True) is True
    assert judge_release([NO, NO, SILENT], final=True) is False
    assert judge_release([YES, SILENT, SILENT], final=True) is None
