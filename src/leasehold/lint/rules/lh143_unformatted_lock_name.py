"""The name of a lock has a placeholder in braces and is not an f-string.

## Why

Without the `f`, `"order:{order_id}"` is one and the same name for every order: all of them wait for a single lock.

## Bad

```py
import redis

r = redis.Redis()

def ship(order_id):
    with r.lock("order:{order_id}", timeout=30):
        send(order_id)
```

## Good

```py
import redis

r = redis.Redis()

def ship(order_id):
    with r.lock(f"order:{order_id}", timeout=30):
        send(order_id)
```

## Not reported

Placeholders that are no name in this function, such as the braces of a Redis cluster's hash tags.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.ids import lock_ids
from leasehold.lint.module import Module
from leasehold.lint.rule import rule

_PLACEHOLDER = re.compile(r"\{([a-z_]\w*)(?:\.\w+)*\}", re.IGNORECASE)


@rule("LH143", "unformatted-lock-name", __doc__, words=("{",))
def check(module: Module) -> Iterator[Finding]:
    """Report the name."""
    for ids in lock_ids(module):
        if not isinstance(ids, ast.Constant) or not isinstance(ids.value, str):
            continue
        function = module.function_of(ids)
        for name in _PLACEHOLDER.findall(ids.value) if function is not None else ():
            if function is not None and name in module.values.scope(function):
                yield module.finding("LH143", ids, f'{{{name}}} is not filled in: all share this one lock; write f"…"')
                break
