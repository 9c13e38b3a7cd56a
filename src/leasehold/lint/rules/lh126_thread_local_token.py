"""A lock of redis-py is renewed from another thread, which does not know its token.

## Why

redis-py keeps a lock's token in thread-local storage by default. In another thread `extend()` and `reacquire()` raise
"Cannot extend an unlocked lock" at once: the renewer ends on its first turn, usually unnoticed, and the lock expires
under the work.

## Bad

```py
import threading

import redis

lock = redis.Redis().lock("nightly", timeout=30)
threading.Timer(10, lock.reacquire).start()
```

## Good

```py
import threading

import redis

lock = redis.Redis().lock("nightly", timeout=30, thread_local=False)
threading.Timer(10, lock.reacquire).start()
```

## Not reported

Renewals inside of a function that is passed to the thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import GUESSED_REDIS_LOCK, REDIS_LOCK
from leasehold.lint.locks import RENEW, making_call
from leasehold.lint.module import Module, argument, has_unknown_arguments, is_false, method_of
from leasehold.lint.rule import rule

THREADS = frozenset({"Thread", "Timer", "submit", "run_in_executor", "to_thread", "start_soon", "add_job"})


@rule("LH126", "thread-local-token", __doc__, words=("extend", "reacquire"))
def check(module: Module) -> Iterator[Finding]:
    """Report the method that is passed to the thread."""
    for call in module.calls:
        if method_of(call) not in THREADS:
            continue
        for passed in [*call.args, *(keyword.value for keyword in call.keywords)]:
            if not isinstance(passed, ast.Attribute) or passed.attr not in RENEW:
                continue
            if module.kind(passed.value) not in (REDIS_LOCK, GUESSED_REDIS_LOCK):
                continue
            made = making_call(module, passed.value)
            known = made is not None and not has_unknown_arguments(made)
            if known and made is not None and not is_false(argument(made, "thread_local")):
                yield module.finding(
                    "LH126", passed, "the lock's token is thread-local: make the lock with thread_local=False"
                )
