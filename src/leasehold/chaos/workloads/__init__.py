"""What the workers of a run do, one file a workload. Each is judged at the resource, on its plain and fenced side.

>>> ", ".join(sorted(WORKLOADS))
'bank, counter, election, jobs, partitions, payments, permits, queue, register, set, several, shared'
"""

from __future__ import annotations

from typing import Final

from leasehold.chaos.workloads.bank import Bank
from leasehold.chaos.workloads.counter import Counter
from leasehold.chaos.workloads.election import Elections
from leasehold.chaos.workloads.jobs import OnceOnlyJobs
from leasehold.chaos.workloads.partitions import SingleWriters
from leasehold.chaos.workloads.payments import Payments
from leasehold.chaos.workloads.permits import Permits
from leasehold.chaos.workloads.queue import Queue
from leasehold.chaos.workloads.register import Register
from leasehold.chaos.workloads.set import GrowingSet
from leasehold.chaos.workloads.several import SeveralNames
from leasehold.chaos.workloads.shared import SharedRegister
from leasehold.chaos.workloads.workload import Final as FinalValue
from leasehold.chaos.workloads.workload import Workload

__all__ = ["WORKLOADS", "FinalValue", "Workload"]

WORKLOADS: Final[dict[str, Workload]] = {
    workload.name: workload
    for workload in (
        Register(),
        Counter(),
        GrowingSet(),
        Bank(),
        Queue(),
        SharedRegister(),
        Permits(),
        SeveralNames(),
        Elections(),
        SingleWriters(),
        Payments(),
        OnceOnlyJobs(),
    )
}
