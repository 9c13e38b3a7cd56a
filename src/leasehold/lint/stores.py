"""Locks that are made by hand from commands of Redis or of a cache: which call takes, renews or deletes which key."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from leasehold.lint import words
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
_OTHER_DATA = frozenset(
    {
        "incr", "incrby", "incrbyfloat", "decr", "decrby", "aincr", "adecr", "getbit", "setbit", "bitcount", "pfadd",
        "lpush", "rpush", "lpushx", "rpushx", "lpop", "rpop", "blpop", "brpop", "lrange", "ltrim", "llen", "lrem",
        "sadd", "srem", "smembers", "sismember", "scard", "spop",
        "zadd", "zrem", "zincrby", "zrange", "zrangebyscore", "zremrangebyscore", "zcard", "zscore", "zrank",
        "hset", "hsetnx", "hmset", "hget", "hmget", "hgetall", "hdel", "hincrby", "hincrbyfloat", "hexists", "hlen",
        "xadd", "xread", "xlen", "xtrim", "geoadd",
    }
)  # fmt: skip
"""Commands on a counter, a list, a set, a hash or a stream: a key of those holds no token."""


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
    """Every command on a key in this file that may hold a token, where the receiver is a Redis client or a cache."""
    if module not in _found:
        read = list(_read(module))
        others = _keys_of_other_data(module, {one.receiver_text for one in read}) if read else set()
        _found[module] = [one for one in read if (module.scope_of(one.call), one.key_text) not in others]
    return _found[module]


def _keys_of_other_data(module: Module, stores: set[str]) -> set[tuple[ast.AST, str]]:
    """The keys that a function uses as something else than a plain value, each with that function."""
    return {
        (module.scope_of(call), module.text(key))
        for call in module.calls
        if method_of(call) in _OTHER_DATA
        and (receiver := receiver_of(call)) is not None
        and (module.text(receiver) in stores or module.values.looks_like_redis(receiver))
        and (key := argument(call, "name", 0)) is not None
    }


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
    """Whether the key, or what it is assigned, is called a lock.

    What may as well keep a person out of an account is one only where it is taken as one.
    """
    names = [name for name in _names_of(module, operation.key) if words.names_lock(name)]
    return bool(names) and (not all(map(words.names_flag, names)) or _is_taken(module, operation))


def _names_of(module: Module, key: ast.expr) -> list[str]:
    """By what a key is called something: the text in it where that speaks of a lock, or else its variables."""
    made_of = [key, *filter(None, map(_named_by, module.values.values_of(key)))]
    texts = [text for text in map(_written_in, made_of) if speaks_of_lock(text)]
    return texts or [_variable_in(module, part) for part in made_of]


def _written_in(part: ast.AST) -> str:
    """The text in an expression, with a gap where something is put in."""
    constants = (node.value for node in inside(part) if isinstance(node, ast.Constant))
    return "{}".join(value for value in constants if isinstance(value, str))


def _named_by(value: ast.AST) -> ast.AST | None:
    """What tells what a value is: of a call only what is called."""
    if isinstance(value, ast.Call):
        return value.func
    return None if isinstance(value, ast.Await) else value


def _variable_in(module: Module, part: ast.AST) -> str:
    """Its last name, if that speaks of a lock: ``lock_info`` is none, and ``lock_info.key`` is the key of one."""
    if not isinstance(part, ast.Attribute | ast.Subscript):
        return module.text(part)
    last = part.attr if isinstance(part, ast.Attribute) else ""
    return last if speaks_of_lock(last) else " ".join(words_of(module.text(part)))


def _is_taken(module: Module, operation: Operation) -> bool:
    return any(one.meaning is TAKES and one.key_text == operation.key_text for one in operations(module))


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
