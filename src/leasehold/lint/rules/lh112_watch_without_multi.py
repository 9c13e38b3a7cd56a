"""A key is watched, compared and changed, and the change is not in a transaction.

## Why

After `watch()` a pipeline of redis-py sends every command at once. Only what stands between `multi()` and `execute()`
is refused when the watched key has changed; without `multi()` the `WATCH` protects nothing.

## Bad

```py
def release(redis, key, token):
    with redis.pipeline() as pipe:
        pipe.watch(key)
        if pipe.get(key) == token:
            pipe.delete(key)
```

## Good

```py
def release(redis, key, token):
    with redis.pipeline() as pipe:
        pipe.watch(key)
        if pipe.get(key) == token:
            pipe.multi()
            pipe.delete(key)
            pipe.execute()
```

## Not reported

Functions that pass the pipeline on to another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, calls_in, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import DELETES, RENEWS, SETS, operations


@rule("LH112", "watch-without-multi", __doc__, words=("watch(",))
def check(module: Module) -> Iterator[Finding]:
    """Report the first change that is not in a transaction."""
    for watch in module.calls:
        if method_of(watch) != "watch" or not watch.args:
            continue
        pipeline = module.text(receiver_of(watch))
        keys = {module.text(key) for key in watch.args}
        scope = module.scope_of(watch)
        if any(method_of(call) == "multi" for call in calls_in(scope, nested=True)):
            continue
        for operation in operations(module):
            if (
                operation.meaning in (SETS, DELETES, RENEWS)
                and operation.receiver_text == pipeline
                and operation.key_text in keys
                and module.scope_of(operation.call) is scope
                and operation.call.lineno > watch.lineno
            ):
                yield module.finding(
                    "LH112",
                    operation.call,
                    f"{operation.command} is carried out at once, whatever happened to the watched key: "
                    f"call {pipeline}.multi() before it and {pipeline}.execute() after it",
                )
                break
