"""Something in the locked block is allowed to take longer than the lock lasts.

## Why

A request with a timeout of 30 seconds inside of a lock of 5 seconds can, by what is written there, go on for 25
seconds without the lock. It will, on the day when the other side is slow.

## Bad

```py
import redis
import requests

r = redis.Redis()

def charge(url):
    with r.lock("charge", timeout=5):
        requests.get(url, timeout=30)
```

## Good

```py
import redis
import requests

r = redis.Redis()

def charge(url):
    with r.lock("charge", timeout=60):
        requests.post(url, timeout=30)
```

## Not reported

Times that are not written out as numbers, locks that renew themselves, and blocks that renew. Calls that wait for
others in the same program: the `get` of a queue, the `join` of a thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.clocks import is_sleep
from leasehold.lint.finding import Finding
from leasehold.lint.kinds import HTTP
from leasehold.lint.locks import RENEW, lock_kind, making_call
from leasehold.lint.module import Module, argument, calls_in_block, is_false, method_of, number, receiver_of
from leasehold.lint.rule import rule

TTL = ("timeout", "expire", "auto_release_time", "ttl")
OTHER_TIMEOUTS = frozenset({"acquire", "lock", "join", "get", "put", "wait", "poll", "set", "add"})
"""Calls whose timeout is no time of work: they wait for others, or set a time to live."""
REQUESTS = frozenset(f"{library}.{verb}" for library in ("requests", "httpx") for verb in ("get", "put"))


@rule("LH123", "work-can-outlive-ttl", __doc__, words=("lock",))
def check(module: Module) -> Iterator[Finding]:
    """Report the call that may take longer."""
    for item in module.all(ast.withitem):
        block = module.parents[item]
        ttl = _ttl(module, item.context_expr)
        if ttl is None or not isinstance(block, ast.With | ast.AsyncWith):
            continue
        calls = list(calls_in_block(block.body))
        if any(method_of(call) in RENEW for call in calls):
            continue
        for call in calls:
            takes = _most_seconds(module, call)
            if takes is not None and takes > ttl:
                yield module.finding(
                    "LH123",
                    call,
                    f"this may take {takes:g} s, and the lock lasts {ttl:g} s: make it longer, or renew it",
                )


def _ttl(module: Module, lock: ast.expr) -> float | None:
    kind, call = lock_kind(module, lock), making_call(module, lock)
    if kind is None or not kind.expires or call is None:
        return None
    renews = argument(call, "auto_renewal")
    if kind.renews and not is_false(argument(call, "renew")):
        return None
    if renews is not None and not is_false(renews):
        return None
    return next((number(given) for name in TTL if (given := argument(call, name)) is not None), None)


def _most_seconds(module: Module, call: ast.Call) -> float | None:
    if is_sleep(module, call):
        return number(argument(call, "seconds", 0))
    if method_of(call) in OTHER_TIMEOUTS and not _is_request(module, call):
        return None
    return number(argument(call, "timeout"))


def _is_request(module: Module, call: ast.Call) -> bool:
    """Whether this asks another server, which is work: queues and caches have a `get` and a `put` as well."""
    return module.called(call) in REQUESTS or module.kind(receiver_of(call)) is HTTP
