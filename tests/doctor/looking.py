"""How the tests read a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable

from leasehold.doctor import Diagnosis, examine
from leasehold.doctor.findings import Finding

WITHIN = 20.0
"""Patient, for a busy machine: no test here is about speed."""


def diagnosis_of(url: object) -> Diagnosis:
    """Look at an engine, and see to it that what was found can be shown."""
    diagnosis = examine(url, within=WITHIN)
    for finding in diagnosis.findings:
        assert finding.seen
        assert "\n" not in finding.seen
        assert "canary" not in f"{finding.seen} {finding.fix} {diagnosis.address}"
        if finding.level in ("warning", "problem") and finding.check != "transport":
            assert finding.fix, f"what to do about it is not said: {finding}"
    return diagnosis


def finding_of(url: object, check: str) -> Finding:
    """The finding about one thing; there is exactly one."""
    found = diagnosis_of(url).findings
    about = [one for one in found if one.check == check]
    assert len(about) == 1, found
    return about[0]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for the server to have done what it was told."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def level_of(url: object, check: str) -> str:
    return finding_of(url, check).level
