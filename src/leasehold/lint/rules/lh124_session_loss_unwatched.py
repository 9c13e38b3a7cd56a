"""A lock of ZooKeeper is used and nobody listens for the loss of its session.

## Why

A lock of kazoo lives as long as the session. When the connection is suspended, the server may already have ended the
session and given the lock to another one, while this process is still in its block: kazoo tells it only through a
listener.

## Bad

```py
from kazoo.client import KazooClient

zk = KazooClient("localhost:2181")
zk.start()
with zk.Lock("/nightly", "worker-1"):
    export()
```

## Good

```py
from kazoo.client import KazooClient, KazooState

zk = KazooClient("localhost:2181")
zk.add_listener(lambda state: stop_the_work() if state != KazooState.CONNECTED else None)
zk.start()
with zk.Lock("/nightly", "worker-1"):
    export()
```

## Not reported

Files that add a listener anywhere, and clients that were made in another file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import KAZOO_LOCK
from leasehold.lint.locks import made_things
from leasehold.lint.module import Module, method_of
from leasehold.lint.rule import rule


@rule("LH124", "session-loss-unwatched", __doc__, words=("kazoo",))
def check(module: Module) -> Iterator[Finding]:
    """Report the call that makes the lock."""
    if any(method_of(call) in ("add_listener", "listen") for call in module.calls):
        return
    if any(node.attr == "state" for node in module.all(ast.Attribute)):
        return
    for call, kind in made_things(module):
        if kind is KAZOO_LOCK and isinstance(call.func, ast.Attribute):
            yield module.finding(
                "LH124",
                call,
                "when the session is suspended this lock may already be another's: add_listener, and stop the work",
            )
