"""What engines are tested with."""

import pytest

pytest.register_assert_rewrite("leasehold.testing.contract")

from leasehold.testing.stage import EngineUnderTest  # noqa: E402 -- assertions must be prepared first

__all__ = ["EngineUnderTest"]
