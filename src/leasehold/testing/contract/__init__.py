"""The contract that every engine keeps."""

# ruff: noqa: E402, F403 -- assertions must be prepared before the scenarios are imported
import pytest

pytest.register_assert_rewrite("leasehold.testing.contract")

from leasehold.testing.contract.fencing import *
from leasehold.testing.contract.interruptions import *
from leasehold.testing.contract.keeping import *
from leasehold.testing.contract.kinds import *
from leasehold.testing.contract.operating import *
from leasehold.testing.contract.outages import *
from leasehold.testing.contract.queueing import *
from leasehold.testing.contract.releasing import *
from leasehold.testing.contract.sharing import *
from leasehold.testing.contract.taking import *
from leasehold.testing.stage import make_stage as make_stage
