"""Lock objects: which calls acquire, release and renew one, and whether a thing is a lock at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.kinds import GIVES, MADE_BY, Kind
from leasehold.lint.module import Module, argument, inside, is_false, is_none, method_of, receiver_of
from leasehold.lint.words import is_called_lock, words_of

ACQUIRE = frozenset({"acquire", "try_acquire", "acquire_read_lock", "acquire_write_lock"})
RELEASE = frozenset({"release", "unlock", "release_read_lock", "release_write_lock"})
RENEW = frozenset({"extend", "reacquire", "renew", "refresh", "keepalive", "keep_alive", "extend_lease", "renew_lease"})
NOT_A_LOCK = frozenset(
    {"pool", "connection", "conn", "token", "tokens", "cookie", "password", "gil", "budget", "limiter"}
)


_MAKERS = frozenset(name.rpartition(".")[2] for name in MADE_BY) | frozenset(name for _, name in GIVES)


def made_things(module: Module) -> Iterator[tuple[ast.Call, Kind]]:
    """Every call that makes a thing of a known kind, where the name of what is called lets one expect it."""
    imports = module.values.imports
    for call in module.calls:
        name = method_of(call)
        if name in _MAKERS or imports.get(name) in MADE_BY:
            kind = module.kind(call)
            if kind is not None:
                yield call, kind


def lock_kind(module: Module, node: ast.AST | None) -> Kind | None:
    """The kind of a lock object, where it is known."""
    kind = module.kind(node)
    return kind if kind is not None and kind.role in ("lock", "lease") else None


def is_lock(module: Module, node: ast.AST | None) -> bool:
    """Whether an expression is a lock object: by its kind, or else by its name."""
    if node is None:
        return False
    kind = module.kind(node)
    if kind is not None:
        return kind.role in ("lock", "lease")
    name = last_name(node)
    return is_called_lock(name) and not words_of(name) & NOT_A_LOCK


def last_name(node: ast.AST) -> str:
    """The last identifier of a name, an attribute or a subscript: ``self._locks[key]`` -> ``_locks``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return last_name(value)
        case _:
            return ""


def acquires(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Every call of acquire on a lock object, with that object."""
    yield from _calls(module, ACQUIRE)


def releases(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Every call of release on a lock object, with that object."""
    yield from _calls(module, RELEASE)


def renewals(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Every call that prolongs a lock object."""
    yield from _calls(module, RENEW)


def _calls(module: Module, methods: frozenset[str]) -> Iterator[tuple[ast.Call, ast.expr]]:
    for call in module.calls:
        receiver = receiver_of(call)
        if receiver is not None and method_of(call) in methods and is_lock(module, receiver):
            yield call, receiver


def may_fail(module: Module, call: ast.Call, lock: ast.expr) -> bool:
    """Whether this acquire can come back without the lock."""
    if method_of(call) == "try_acquire":
        return True
    given = argument(call, "blocking", 0)
    if is_false(given):
        return True
    for name in ("timeout", "blocking_timeout"):
        wait = argument(call, name)
        if wait is not None and not is_none(wait):
            return True
    return any(_is_impatient(value) for value in [lock, *module.values.values_of(lock)])


def _is_impatient(made_by: ast.AST) -> bool:
    """Whether a lock was made so that its acquire may give up."""
    if not isinstance(made_by, ast.Call):
        return False
    wait = argument(made_by, "blocking_timeout")
    return is_false(argument(made_by, "blocking")) or (wait is not None and not is_none(wait))


def making_call(module: Module, lock: ast.AST) -> ast.Call | None:
    """The call that made a lock, where there is exactly one."""
    if isinstance(lock, ast.Await):
        lock = lock.value
    if isinstance(lock, ast.Call):
        return lock
    made = [value for value in module.values.values_of(lock) if isinstance(value, ast.Call)]
    return made[0] if len(made) == 1 else None


def is_guarded(module: Module, node: ast.AST, until: ast.AST) -> bool:
    """Whether a condition stands between a node and one of those around it."""
    for parent in module.above(node):
        if parent is until:
            return False
        if isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Match):
            return True
    return False


def leaves(block: list[ast.stmt]) -> bool:
    """Whether a list of statements ends by leaving: return, raise, continue, break, or ending the process."""
    if not block:
        return False
    last = block[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return method_of(last.value) in ("exit", "_exit")
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def goes_on_quietly(handler: ast.ExceptHandler) -> bool:
    """Whether an except clause neither leaves, nor raises, nor tells anybody who would act on it."""
    for node in inside(ast.Module(body=handler.body, type_ignores=[])):
        if isinstance(node, ast.Raise | ast.Return | ast.Break | ast.Assign | ast.AugAssign | ast.Yield | ast.If):
            return False
        if isinstance(node, ast.Call) and method_of(node) not in QUIET:
            return False
    return True


QUIET = frozenset({"debug", "info", "log", "print", "sleep", "format", "str", "repr", "_", "echo"})


def names_in(node: ast.AST | None) -> set[str]:
    """The last parts of the names that an except clause (or ``suppress``) lists."""
    match node:
        case ast.Tuple(elts=elts):
            return {name for one in elts for name in names_in(one)}
        case None:
            return {"BaseException"}
        case _:
            return {last_name(node)} - {""}
