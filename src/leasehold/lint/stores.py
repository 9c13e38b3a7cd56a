"""Locks that are made by hand from commands of Redis or of a cache: which call takes, renews or deletes which key."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from leasehold.lint.kinds import CACHE
from leasehold.lint.module import (
    Module,
    argument,
    has_unknown_arguments,
    inside,
    is_none,
    method_of,
    receiver_of,
)
from leasehold.lint.words import speaks_of_lock, words_of

TAKES, SETS, READS, DELETES, RENEWS, EXISTS = "takes", "sets", "reads", "deletes", "renews", "exists"

_MEANING = {
    "setnx": TAKES,
    "set": SETS,
    "setex": SETS,
    "psetex": SETS,
    "get": READS,
    "getset": READS,
    "delete": DELETES,
    "unlink": DELETES,
    "expire": RENEWS,
    "pexpire": RENEWS,
    "expireat": RENEWS,
    "pexpireat": RENEWS,
    "exists": EXISTS,
}
_CACHE_MEANING = {
    "add": TAKES,
    "aadd": TAKES,
    "set": SETS,
    "aset": SETS,
    "get": READS,
    "aget": READS,
    "delete": DELETES,
    "adelete": DELETES,
    "touch": RENEWS,
    "has_key": EXISTS,
}


@dataclass(frozen=True)
class Operation:
    """One command on one key."""

    call: ast.Call
    meaning: str
    command: str
    receiver: ast.expr
    receiver_text: str
    key: ast.expr
    key_text: str
    value: ast.expr | None
    ttl: ast.expr | None
    may_have_ttl: bool
    """A time to live is there, or cannot be ruled out."""
    is_cache: bool
    in_pipeline: bool


_found: WeakKeyDictionary[Module, list[Operation]] = WeakKeyDictionary()


def operations(module: Module) -> list[Operation]:
    """Every command on a key in this file, where the receiver is a Redis client or a cache."""
    if module not in _found:
        _found[module] = list(_read(module))
    return _found[module]


def _read(module: Module) -> Iterator[Operation]:
    candidates = [call for call in module.calls if isinstance(call.func, ast.Attribute) and _could_be(call)]
    # `setnx` and `nx=True` are words of Redis alone: who is called so is a Redis client, whatever its name.
    proven = {module.text(receiver_of(call)) for call in candidates if _is_unmistakable(call)}
    for call in candidates:
        receiver = receiver_of(call)
        if receiver is None or not (call.args or call.keywords):
            continue
        text = module.text(receiver)
        kind = module.kind(receiver)
        if kind is CACHE or (kind is None and _is_cache_name(receiver) and text not in proven):
            if method_of(call) in _CACHE_MEANING:
                yield from _cache_operation(module, call, receiver, text)
        elif method_of(call) in _MEANING and (text in proven or module.values.looks_like_redis(receiver)):
            yield from _redis_operation(module, call, receiver, text)


def _could_be(call: ast.Call) -> bool:
    return method_of(call) in _MEANING or method_of(call) in _CACHE_MEANING


def _is_unmistakable(call: ast.Call) -> bool:
    name = method_of(call)
    return (name == "setnx" and len(call.args) == 2) or (name == "set" and _is_nx(call))


def _is_nx(call: ast.Call) -> bool:
    given = argument(call, "nx", 4)
    return isinstance(given, ast.Constant) and bool(given.value)


def _is_cache_name(receiver: ast.expr) -> bool:
    """``cache.add(...)``: Django's cache, also when it comes from a module of the project."""
    return isinstance(receiver, ast.Name) and receiver.id == "cache"


def _redis_operation(module: Module, call: ast.Call, receiver: ast.expr, text: str) -> Iterator[Operation]:
    command = method_of(call)
    key = argument(call, "name", 0)
    if key is None or isinstance(key, ast.Starred):
        return
    meaning = TAKES if command == "set" and _is_nx(call) else _MEANING[command]
    ttl, value = None, None
    if command == "set":
        given = [argument(call, "ex", 2), argument(call, "px", 3), argument(call, "exat"), argument(call, "pxat")]
        ttl = next((one for one in given if one is not None and not is_none(one)), None)
        value = argument(call, "value", 1)
    elif command in ("setex", "psetex"):
        ttl, value = argument(call, "time", 1), argument(call, "value", 2)
    elif command in ("setnx", "getset"):
        value = argument(call, "value", 1)
    elif meaning is RENEWS:
        ttl = argument(call, "time", 1)
    kind = module.kind(receiver)
    yield Operation(
        call=call,
        meaning=meaning,
        command=command,
        receiver=receiver,
        receiver_text=text,
        key=key,
        key_text=module.text(key),
        value=value,
        ttl=ttl,
        may_have_ttl=ttl is not None or (command == "set" and has_unknown_arguments(call)),
        is_cache=False,
        in_pipeline=(kind is not None and kind.role == "pipeline") or bool(words_of(text) & {"pipe", "pipeline"}),
    )


def _cache_operation(module: Module, call: ast.Call, receiver: ast.expr, text: str) -> Iterator[Operation]:
    key = argument(call, "key", 0)
    if key is None or isinstance(key, ast.Starred):
        return
    command = method_of(call)
    timeout = argument(call, "timeout", 2)
    yield Operation(
        call=call,
        meaning=_CACHE_MEANING[command],
        command=command,
        receiver=receiver,
        receiver_text=text,
        key=key,
        key_text=module.text(key),
        value=argument(call, "value", 1),
        ttl=timeout,
        may_have_ttl=not is_none(timeout),  # without the argument it is the cache's default: 300 s
        is_cache=True,
        in_pipeline=False,
    )


# Which key is a lock


def names_lock(module: Module, operation: Operation) -> bool:
    """Whether the key, or what it is assigned, is called a lock."""
    if speaks_of_lock(operation.key_text):
        return True
    for value in module.values.values_of(operation.key):
        if not isinstance(value, ast.Call | ast.Await) and speaks_of_lock(module.text(value)):
            return True
        if isinstance(value, ast.Call) and speaks_of_lock(module.text(value.func)):
            return True
    return False


def in_lock_code(module: Module, node: ast.AST) -> bool:
    """Whether the function or the class that a node stands in is called a lock."""
    around = [module.function_of(node), module.class_of(node)]
    return any(speaks_of_lock(one.name) for one in around if one is not None)


def is_lock_key(module: Module, operation: Operation) -> bool:
    """Whether the key is that of a lock, by its name or by where it stands."""
    return names_lock(module, operation) or in_lock_code(module, operation.call)


def same_key(module: Module, operation: Operation, *meanings: str) -> list[Operation]:
    """The other commands with one of these meanings on the same key, in the same class or function."""
    unit = module.unit_of(operation.call)
    return [
        other
        for other in operations(module)
        if other is not operation
        and other.meaning in meanings
        and other.key_text == operation.key_text
        and module.unit_of(other.call) is unit
    ]


def same_function(module: Module, operation: Operation, *meanings: str) -> list[Operation]:
    """Like `same_key`, in the same function."""
    scope = module.scope_of(operation.call)
    return [other for other in same_key(module, operation, *meanings) if module.scope_of(other.call) is scope]


def takes(module: Module) -> Iterator[Operation]:
    """Every command that takes a lock."""
    for operation in operations(module):
        if operation.meaning is TAKES and is_taken_as_lock(module, operation):
            yield operation


def is_taken_as_lock(module: Module, operation: Operation) -> bool:
    """Whether a set-if-absent is a lock: it is called one, or the key is deleted again when the work is done."""
    if is_lock_key(module, operation):
        return True
    return any(module.in_finally(other.call) is not None for other in same_key(module, operation, DELETES))


def compares_with(module: Module, test: ast.AST, key_text: str) -> ast.Compare | None:
    """The comparison of a test whose one side was read from this key."""
    for node in inside(test):
        if not isinstance(node, ast.Compare):
            continue
        for side in [node.left, *node.comparators]:
            if any(_reads(module, source, key_text) for source in module.values.sources(side)):
                return node
    return None


def _reads(module: Module, node: ast.AST, key_text: str) -> bool:
    return any(
        one.call is node and one.meaning is READS and one.key_text == key_text and one.command != "getset"
        for one in operations(module)
    )
