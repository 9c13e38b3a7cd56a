"""A session of Consul is made with a lock delay of zero.

## Why

When a session is invalidated, Consul keeps its locks from being taken for the lock delay (15 seconds by default), so
that the old holder, who does not know yet, can stop. With a delay of zero the next one starts at once, beside it.

## Bad

```py
import consul

c = consul.Consul()
session = c.session.create(name="nightly", ttl=30, lock_delay=0)
```

## Good

```py
import consul

c = consul.Consul()
session = c.session.create(name="nightly", ttl=30, lock_delay=15)
```

## Not reported

Delays that are not written out.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, argument, method_of, number, receiver_of
from leasehold.lint.rule import rule


@rule("LH161", "consul-lock-delay-zero", __doc__, words=("lock_delay",))
def check(module: Module) -> Iterator[Finding]:
    """Report the delay."""
    for call in module.calls:
        if method_of(call) != "create" or not module.text(receiver_of(call)).endswith("session"):
            continue
        delay = argument(call, "lock_delay")
        if delay is not None and number(delay) == 0:
            yield module.finding(
                "LH161",
                delay,
                "without a lock delay the next holder starts while the old one still believes in its lock",
            )
