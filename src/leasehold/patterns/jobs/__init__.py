"""Once-only jobs: a scheduled job on many instances runs once for each tick.

A run is keyed by its tick, in the time of the store that all instances share, not by an instance's own "now": clocks
that differ, schedulers that fire late or twice, and instances that start at the same second make no second run. Every
tick is done, or reported as missed; none is passed over in silence.

What it does not promise: that a run which crashed half way was not begun. The tick is run again by the next instance
that asks, with a higher token, and learns from recovery points how far the first one came.

>>> import pathlib, tempfile
>>> from leasehold.patterns.idempotency import SqlKeys
>>> store = SqlKeys(pathlib.Path(tempfile.mkdtemp()) / "app.db")
>>> store.create()
>>> @Jobs(store).once_per("1d", name="nightly-export")
... def export(run):
...     return "exported"
>>> [export().state, export().state]
['ran', 'done before']
>>> store.close()
"""

from leasehold.patterns.jobs.book import Ended, Missed
from leasehold.patterns.jobs.jobs import AsyncJob, AsyncJobRun, AsyncJobs, Job, JobRun, Jobs, JobStatus, Outcome
from leasehold.patterns.jobs.schedules import Cron, Every, Schedule, seconds_of

__all__ = [
    "AsyncJob",
    "AsyncJobRun",
    "AsyncJobs",
    "Cron",
    "Ended",
    "Every",
    "Job",
    "JobRun",
    "JobStatus",
    "Jobs",
    "Missed",
    "Outcome",
    "Schedule",
    "seconds_of",
]
