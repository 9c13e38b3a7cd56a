"""The contract that every engine keeps, as a suite that anybody can run on an engine of their own.

A module of tests needs two things, the suite and one fixture::

    from leasehold.testing import EngineUnderTest
    from leasehold.testing.contract import *

    @pytest.fixture(scope="session")
    def engine_under_test():
        return EngineUnderTest(url="myengine://127.0.0.1:1234", pause=…, resume=…, restart=…, address=…)

Every scenario then runs twice, for blocking and for async code, in a namespace of its own. What the engine can do is
read from the capabilities that it declares; a scenario that needs another one, or a hook that was not given, is
skipped and says which.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.testing.stage import EngineUnderTest

__all__ = ["EngineUnderTest"]


def __getattr__(name: str) -> Any:
    """Import what needs pytest only when it is asked for: the chaos tester uses the proxy, on machines without it."""
    if name == "EngineUnderTest":
        from leasehold.testing.stage import EngineUnderTest

        return EngineUnderTest
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
