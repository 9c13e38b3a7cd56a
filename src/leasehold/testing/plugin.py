"""The pytest plugin: one fixture, with which people prove that their own code survives a stall.

def test_a_stalled_payment_changes_nothing(stall):
    stall.prove(pay, state=ledger, setup=new_ledger)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leasehold.testing.stalling import Stall


@pytest.fixture
def stall() -> Stall:
    """Freezes a critical section at each of its steps, lets a second holder in, thaws it, and judges what it did."""
    from leasehold.testing.stalling import Stall

    return Stall()
