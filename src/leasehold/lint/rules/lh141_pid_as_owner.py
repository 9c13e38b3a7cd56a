"""The value that proves whose lock it is, is a process id (or another number that others have too).

## Why

In containers the first process has id 1 everywhere, and ids are used again. Two holders with the same value pass each
other's check of ownership: one releases or renews the lock of the other.

## Bad

```py
import os

def take(redis, key):
    return redis.set(key, str(os.getpid()), nx=True, ex=30)

def lock_job(redis, job):
    return take(redis, f"lock:{job}") and redis.set(f"lock:{job}", os.getpid(), nx=True, ex=30)
```

## Good

```py
import uuid

def lock_job(redis, job):
    token = uuid.uuid4().hex
    return token if redis.set(f"lock:{job}", token, nx=True, ex=30) else None
```

## Not reported

Values that also contain something random, or the name of the host.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, method_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import takes

SHARED = ("os.getpid", "threading.get_ident", "threading.current_thread", "multiprocessing.current_process", "id")
DISTINCT = ("uuid", "token", "random", "secrets", "hostname", "node", "getnode", "fqdn", "urandom", "nonce", "host")

NAMED = ("uuid", "random", "hostname", "nonce")
"""Variables with one of these in their name are taken at their word."""


@rule("LH141", "pid-as-owner", __doc__, words=("getpid", "get_ident", "current_thread", "current_process"))
def check(module: Module) -> Iterator[Finding]:
    """Report the value."""
    for operation in takes(module):
        if operation.value is None:
            continue
        sources = list(module.values.sources(operation.value))
        calls = [one for one in sources if isinstance(one, ast.Call)]
        shared = [one for one in calls if module.called(one) in SHARED]
        words = " ".join([*(method_of(one) for one in calls), *(module.called(one) or "" for one in calls)]).lower()
        named = " ".join(module.text(one).lower() for one in sources if isinstance(one, ast.Name | ast.Attribute))
        if shared and not any(word in words for word in DISTINCT) and not any(word in named for word in NAMED):
            yield module.finding(
                "LH141",
                operation.value,
                "others have the same number (every container has a process 1): use a random token, such as uuid4",
            )
