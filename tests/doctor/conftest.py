"""No test of the doctor is about how quick this machine is today."""

from __future__ import annotations

import pytest

from leasehold import doctor


@pytest.fixture(autouse=True)
def slow_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SLOW", 60.0)
