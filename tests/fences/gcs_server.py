"""Google Cloud Storage as an emulator plays it, in a process of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tests.support.python_server import running_module

import servers


def running_gcs() -> AbstractContextManager[str]:
    """Its URL, for as long as the block; `LEASEHOLD_TEST_GCS_URL` names another server that has the tests' bucket."""
    given = servers.given_url("gcs")
    return nullcontext(given) if given else running_module("tests.fences.gcs_app", answers_at="/storage/v1/b")
