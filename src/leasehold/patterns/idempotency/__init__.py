"""Idempotency keys: an operation that is asked for again is not carried out again; its result is given again.

What it does not promise: that the operation runs only once. A run that crashed is run again, by whoever asks next, and
what it did before it crashed it did; recovery points tell the next run how far it came. A run that merely stalls may
overlap with the one that took over; its result is refused then, by its token, and so are its writes if they are fenced
with `run.token` or committed together with the result.

>>> import pathlib, tempfile
>>> store = SqlKeys(pathlib.Path(tempfile.mkdtemp()) / "app.db")
>>> store.create()
>>> payments = Idempotency(store, scope="payments")
>>> def charge(run):
...     print("charging")
...     return {"charged": 10}
>>> payments.once("order-42", charge, payload={"amount": 10})
charging
{'charged': 10}
>>> payments.once("order-42", charge, payload={"amount": 10})
{'charged': 10}
>>> store.close()
"""

from leasehold.patterns.idempotency.keys import (
    STRIPE,
    AsyncIdempotency,
    AsyncRun,
    Idempotency,
    Policy,
    Run,
)
from leasehold.patterns.idempotency.records import Change, Claim, Record, Store, fingerprint_of
from leasehold.patterns.idempotency.redis import AsyncRedisKeys, RedisKeys
from leasehold.patterns.idempotency.sql import InThreads, SqlKeys

__all__ = [
    "STRIPE",
    "AsyncIdempotency",
    "AsyncRedisKeys",
    "AsyncRun",
    "Change",
    "Claim",
    "Idempotency",
    "InThreads",
    "Policy",
    "Record",
    "RedisKeys",
    "Run",
    "SqlKeys",
    "Store",
    "fingerprint_of",
]
