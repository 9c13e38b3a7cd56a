"""Redlock is used with one server, or with an even number of them.

## Why

Redlock rests on a majority of independent servers. With one there is no majority to speak of: it is a plain lock with
more steps. With two, both must be up; with four, as many may fail as with three. And with any number it needs clocks
that agree: where a wrong result would do harm, send a fencing token along and let the storage check it.

## Bad

```py
from redlock import Redlock

locks = Redlock([{"host": "localhost", "port": 6379, "db": 0}])
```

## Good

```py
from redlock import Redlock

locks = Redlock([{"host": "redis-1"}, {"host": "redis-2"}, {"host": "redis-3"}])
```

## Not reported

Lists of servers that are not written out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import AIOREDLOCK, ASYNC_POTTERY_LOCK, POTTERY_LOCK, REDLOCK, REDLOCK_LOCK
from leasehold.lint.locks import made_things
from leasehold.lint.module import Module, argument
from leasehold.lint.rule import rule

_SERVERS = {
    REDLOCK: ("connection_list", 0),
    REDLOCK_LOCK: ("connection_details", 1),
    AIOREDLOCK: ("redis_connections", 0),
    POTTERY_LOCK: ("masters", None),
    ASYNC_POTTERY_LOCK: ("masters", None),
}


@rule("LH160", "redlock-too-few", __doc__, words=("redlock",))
def check(module: Module) -> Iterator[Finding]:
    """Report the list of servers."""
    for call, kind in made_things(module):
        if kind not in _SERVERS:
            continue
        servers = argument(call, *_SERVERS[kind])
        count = _length(module, servers)
        if servers is None or count is None or (count % 2 == 1 and count > 1):
            continue
        why = (
            "one server is no majority"
            if count == 1
            else f"{count} servers bear no more failures than {max(count - 1, 0)}"
        )
        yield module.finding("LH160", servers, f"{why}: use three or five, or one store and a fencing token")


def _length(module: Module, servers: ast.expr | None) -> int | None:
    known = [servers, *(module.values.values_of(servers) if isinstance(servers, ast.Name) else ())]
    for one in known:
        if isinstance(one, ast.List | ast.Set | ast.Tuple):
            return None if any(isinstance(item, ast.Starred) for item in one.elts) else len(one.elts) or None
    return None
