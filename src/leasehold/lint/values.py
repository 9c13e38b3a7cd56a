"""Data flow within one file: imports, assignments, attributes of self, annotations, results of its own functions.

It follows no branches: a name that is bound to several kinds of things is of no known kind.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from leasehold.lint.kinds import CACHE, GIVES, GUESSED_REDIS, MADE_BY, REDIS, SAME_IN_WITH, SESSION, Kind

if TYPE_CHECKING:
    from leasehold.lint.module import Function, Module

MOST_STEPS = 6
"""How many assignments are followed, one to the next."""
MOST_SOURCES = 400
"""How many expressions a value is traced back to."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WRAPPERS = frozenset({"typing.Optional", "typing.Annotated", "typing.Final", "typing.ClassVar"})

_REDIS_NAME = re.compile(
    r"_*(?:\w+_)?(?:redis|valkey)_?(?:client|conn|connection|db|cli|instance|server|backend)?", re.IGNORECASE
)
"""``redis``, ``self._redis``, ``redis_client``, ``get_redis()``; not ``redis_url``."""
_REDIS_MODULES = ("redis", "valkey", "aioredis", "fakeredis")

_BUILTINS = frozenset({"hash", "id", "open"})

Binding = tuple[str, ast.AST]
"""How a name got its value (``=``, ``:`` an annotation, ``with``, ``?`` in another way), and the expression."""


class Values:
    """What the names of one file stand for."""

    def __init__(self, module: Module) -> None:
        """Nothing is looked at before it is asked for."""
        self._module = module
        self._kinds: dict[ast.AST, Kind | None] = {}
        self._scopes: dict[ast.AST, dict[str, list[Binding]]] = {}

    # Imports

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted name; a relative import begins with a dot."""
        found: dict[str, str] = {}
        for node in self._module.all(ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        for imported in self._module.all(ast.ImportFrom):
            origin = "." * imported.level + (imported.module or "")
            for alias in imported.names:
                found[alias.asname or alias.name] = f"{origin}.{alias.name}"
        return found

    def dotted(self, node: ast.AST | None) -> str | None:
        """The dotted name of a name or attribute that comes from an import or is builtin."""
        match node:
            case ast.Name(id=name):
                found = self.imports.get(name)
                return name if found is None and name in _BUILTINS and not self._is_bound(node, name) else found
            case ast.Attribute(value=value, attr=attr):
                before = self.dotted(value)
                return None if before is None else f"{before}.{attr}"
            case _:
                return None

    def _is_bound(self, node: ast.AST, name: str) -> bool:
        return bool(self.bindings_of(node, name)) or name in self.own_classes or name in self.own_functions

    # Bindings

    @cached_property
    def own_classes(self) -> dict[str, ast.ClassDef]:
        """The classes that this file defines."""
        return {node.name: node for node in self._module.all(ast.ClassDef)}

    @cached_property
    def own_functions(self) -> dict[str, Function]:
        """The functions (not methods) that this file defines."""
        return {
            node.name: node
            for node in self._module.functions
            if not isinstance(self._module.parents.get(node), ast.ClassDef)
        }

    def scope(self, owner: ast.AST) -> dict[str, list[Binding]]:
        """The names that a module, class or function binds itself."""
        found = self._scopes.get(owner)
        if found is None:
            found = self._scopes[owner] = defaultdict(list)
            for name, binding in _bound_in(owner):
                found[name].append(binding)
        return found

    def bindings_of(self, node: ast.AST, name: str) -> list[Binding]:
        """What a name that is used at this place may be bound to."""
        owners = self._module.owners
        first = owner = owners.get(node)
        while owner is not None:
            # What a class binds is seen in its body, not in its methods.
            if owner is first or not isinstance(owner, ast.ClassDef):
                found = self.scope(owner).get(name)
                if found:
                    return found
            owner = owners.get(owner)
        return []

    def values_of(self, node: ast.AST) -> list[ast.AST]:
        """The expressions that a name or an attribute of self is assigned, where they are known."""
        return [value for how, value in self._bindings(node) if how == "="]

    def _bindings(self, node: ast.AST) -> list[Binding]:
        match node:
            case ast.Name(id=name):
                return self.bindings_of(node, name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                owner = self._module.class_of(node)
                return [] if owner is None else self._attribute(owner, attr)
            case _:
                return []

    def _attribute(self, owner: ast.ClassDef, attr: str, steps: int = 0) -> list[Binding]:
        found = list(self.scope(owner).get(attr, ())) + list(self._own_attributes(owner).get(attr, ()))
        if not found and steps < MOST_STEPS:
            for base in owner.bases:
                if isinstance(base, ast.Name) and base.id in self.own_classes and base.id != owner.name:
                    found += self._attribute(self.own_classes[base.id], attr, steps + 1)
        return found

    def _own_attributes(self, owner: ast.ClassDef) -> dict[str, list[Binding]]:
        attributes: dict[ast.ClassDef, dict[str, list[Binding]]] = self._attributes_by_class
        return attributes.get(owner, {})

    @cached_property
    def _attributes_by_class(self) -> dict[ast.ClassDef, dict[str, list[Binding]]]:
        found: dict[ast.ClassDef, dict[str, list[Binding]]] = defaultdict(lambda: defaultdict(list))
        module = self._module

        def add(target: ast.AST, binding: Binding) -> None:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                owner = module.class_of(target)
                if owner is not None and target.value.id in ("self", "cls"):
                    found[owner][target.attr].append(binding)

        for node in module.all(ast.Assign):
            for target in node.targets:
                for one, value in _pairs(target, node.value):
                    add(one, ("=", value))
        for annotated in module.all(ast.AnnAssign):
            add(annotated.target, (":", annotated.annotation))
            if annotated.value is not None:
                add(annotated.target, ("=", annotated.value))
        for item in module.all(ast.withitem):
            if item.optional_vars is not None:
                add(item.optional_vars, ("with", item.context_expr))
        return found

    # Kinds

    def kind(self, node: ast.AST | None, steps: int = 0) -> Kind | None:
        """What kind of thing an expression is, where that is known."""
        if node is None or steps > MOST_STEPS:
            return None
        if node in self._kinds:
            return self._kinds[node]
        self._kinds[node] = None  # a name that is defined by itself has no kind
        found = self._kind(node, steps)
        self._kinds[node] = found
        return found

    def _kind(self, node: ast.AST, steps: int) -> Kind | None:  # noqa: PLR0911 -- a table
        match node:
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                return self.kind(value, steps + 1)
            case ast.Call():
                return self._kind_of_call(node, steps)
            case ast.Name() | ast.Attribute():
                return self._kind_of_name(node, steps)
            case ast.Subscript(value=value) if self.dotted(value) == "django.core.cache.caches":
                return CACHE
            case ast.IfExp(body=body, orelse=orelse):
                return self.kind(body, steps + 1) or self.kind(orelse, steps + 1)
            case ast.BoolOp(values=values):
                return next((kind for value in values if (kind := self.kind(value, steps + 1))), None)
            case _:
                return None

    def _kind_of_call(self, call: ast.Call, steps: int) -> Kind | None:  # noqa: PLR0911 -- one by one
        name = self.dotted(call.func) or ""
        made = MADE_BY.get(name) or MADE_BY.get(name.removesuffix(".from_url"))
        if made is not None and made is not CACHE:
            return made
        if name == "contextlib.closing" and call.args:
            return self.kind(call.args[0], steps + 1)
        if isinstance(call.func, ast.Attribute):
            receiver = self.kind(call.func.value, steps + 1)
            if receiver is not None:
                return GIVES.get((receiver, call.func.attr))
            return self._kind_of_own(call.func, steps) or self._guessed(call.func)
        if isinstance(call.func, ast.Name):
            own = self._kind_of_own(call.func, steps)
            if own is not None:
                return own
        receiver = self.kind(call.func, steps + 1)
        if receiver is not None and not receiver.guessed:
            return GIVES.get((receiver, "()"))
        return self._guessed(call.func)

    def _kind_of_own(self, function: ast.expr, steps: int) -> Kind | None:
        """What a function, method or class of this file makes."""
        match function:
            case ast.Name(id=name) if name in self.own_functions:
                return self._kind_of_result(self.own_functions[name], steps)
            case ast.Name(id=name) if name in self.own_classes:
                return self._kind_of_class(self.own_classes[name])
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                owner = self._module.class_of(function)
                method = next((one for one in owner.body if _is_method(one, attr)), None) if owner else None
                return self._kind_of_result(method, steps) if isinstance(method, _FUNCTIONS) else None
            case _:
                return None

    def _kind_of_class(self, owner: ast.ClassDef) -> Kind | None:
        bases = [self.dotted(base) for base in owner.bases]
        return next((MADE_BY[base] for base in bases if base is not None and base in MADE_BY), None)

    def _kind_of_result(self, function: Function, steps: int) -> Kind | None:
        annotated = self.kind_of_annotation(function.returns)
        if annotated is not None:
            return annotated
        results = [node.value for node in _returns_of(function) if node.value is not None]
        return _agreed([self.kind(result, steps + 1) for result in results])

    def _kind_of_name(self, node: ast.Name | ast.Attribute, steps: int) -> Kind | None:
        name = self.dotted(node)
        if name is not None and MADE_BY.get(name) in (CACHE, MADE_BY["django.db.connection"]):
            return MADE_BY[name] if name.startswith("django.") else None
        if name is not None and name.endswith("db.session"):
            return SESSION  # Flask-SQLAlchemy
        annotations = [self.kind_of_annotation(value) for how, value in self._bindings(node) if how == ":"]
        known = [kind for kind in annotations if kind is not None]
        if known:
            return _agreed(known)
        if isinstance(node, ast.Attribute):
            found = self._kind_of_property(node, steps)
            if found is not None:
                return found
        kinds = [self._kind_of_binding(how, value, steps) for how, value in self._bindings(node)]
        certain = [kind for kind in kinds if kind is not None]
        return _agreed(certain) if certain else self._guessed(node)

    def _guessed(self, node: ast.expr) -> Kind | None:
        """A Redis client by its name; what is imported from the library itself is a module or a class."""
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if not _REDIS_NAME.fullmatch(name) or name[:1].isupper():
            return None
        origin = (self.dotted(node) or "").split(".")[0]
        return None if origin in _REDIS_MODULES and name in self.imports else GUESSED_REDIS

    def _kind_of_property(self, node: ast.Attribute, steps: int) -> Kind | None:
        owner = self._module.class_of(node) if isinstance(node.value, ast.Name) and node.value.id == "self" else None
        for one in owner.body if owner else ():
            if isinstance(one, _FUNCTIONS) and one.name == node.attr and one.decorator_list:
                return self._kind_of_result(one, steps)
        return None

    def _kind_of_binding(self, how: str, value: ast.AST, steps: int) -> Kind | None:
        if how == "=":
            return self.kind(value, steps + 1)
        if how == "with":
            kind = self.kind(value, steps + 1)
            if kind is None:
                return None
            return GIVES.get((kind, "with"), kind if kind.role in SAME_IN_WITH else None)
        return None

    def kind_of_annotation(self, node: ast.AST | None) -> Kind | None:
        """What an annotation promises: ``Redis``, ``"Redis"``, ``Redis | None``, ``Optional[Redis]``."""
        match node:
            case ast.Constant(value=str(text)):
                return self.kind_of_annotation(_parsed(text))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.kind_of_annotation(left) or self.kind_of_annotation(right)
            case ast.Subscript(value=value, slice=of):
                name = self.dotted(value)
                if name in _WRAPPERS:
                    return self.kind_of_annotation(of.elts[0] if isinstance(of, ast.Tuple) and of.elts else of)
                return self.kind_of_annotation(value)
            case ast.Name() | ast.Attribute():
                name = self.imports_of(node)
                kind = MADE_BY.get(name) if name else None
                return None if kind is CACHE else kind
            case _:
                return None

    def imports_of(self, node: ast.AST) -> str | None:
        """Like `dotted`, for annotations: those are not looked up in the scope that they stand in."""
        match node:
            case ast.Name(id=name):
                return self.imports.get(name)
            case ast.Attribute(value=value, attr=attr):
                before = self.imports_of(value)
                return None if before is None else f"{before}.{attr}"
            case _:
                return None

    # Where a value comes from

    def sources(self, node: ast.AST | None) -> Iterator[ast.AST]:
        """Everything that a value is made from, each once: the expression, and what its names are assigned."""
        todo: list[tuple[ast.AST, int]] = [] if node is None else [(node, 0)]
        seen: set[ast.AST] = set()
        while todo and len(seen) < MOST_SOURCES:
            current, steps = todo.pop()
            if current in seen:
                continue
            seen.add(current)
            yield current
            todo += [(one, steps) for one in _parts_of(current)]
            if steps < MOST_STEPS:
                todo += [(one, steps + 1) for one in self._origins_of(current)]

    def _origins_of(self, node: ast.AST) -> list[ast.AST]:
        """What a name is assigned, or what a function of this file returns."""
        if isinstance(node, ast.Name | ast.Attribute):
            return self.values_of(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.own_functions:
            return [one.value for one in _returns_of(self.own_functions[node.func.id]) if one.value is not None]
        return []

    def looks_like_redis(self, node: ast.AST) -> bool:
        """Whether a receiver is a Redis client by what is known of it, or else by its name."""
        kind = self.kind(node)
        return kind is not None and kind.role in ("client", "pipeline") and kind.library == REDIS.library


def _parts_of(node: ast.AST) -> list[ast.AST]:
    """What an expression is put together from; the name of a method is no part, what it is called on is."""
    if isinstance(node, ast.Call):
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        return [*node.args, *(keyword.value for keyword in node.keywords), receiver]
    if isinstance(node, ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.DictComp | ast.SetComp):
        return []
    return list(ast.iter_child_nodes(node))


def _bound_in(owner: ast.AST) -> Iterator[tuple[str, Binding]]:
    """The names that a scope binds, without those of scopes in it."""
    if isinstance(owner, (*_FUNCTIONS, ast.Lambda)):
        yield from _parameters(owner.args)
    todo: list[ast.AST] = list(ast.iter_child_nodes(owner))
    if isinstance(owner, (*_FUNCTIONS, ast.ClassDef, ast.Module)):
        todo = list(owner.body)
    while todo:
        node = todo.pop()
        yield from _bound_by(node)
        if not isinstance(node, _SCOPES):
            todo += list(ast.iter_child_nodes(node))


def _bound_by(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _targets(target, "=", value)
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
            yield name, (":", annotation)
            if value is not None:
                yield name, ("=", value)
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            yield name, ("=", value)
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            yield name, ("?", value)
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            yield from _targets(target, "?", value)
        case ast.comprehension(target=target, iter=value):
            yield from _targets(target, "?", value)
        case ast.withitem(context_expr=value, optional_vars=ast.AST() as target):
            yield from _targets(target, "with", value)
        case ast.ExceptHandler(name=str(name)):
            yield name, ("?", node)
        case _:
            return


def _targets(target: ast.AST, how: str, value: ast.AST) -> Iterator[tuple[str, Binding]]:
    match target:
        case ast.Name(id=name):
            yield name, (how, value)
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            pairs = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(elts) else None
            for number, one in enumerate(elts):
                yield from _targets(one, how if pairs else "?", pairs[number] if pairs else value)
        case _:
            return  # an attribute or an item binds no name


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """``self.a, self.b = x, y`` one by one."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _parameters(arguments: ast.arguments) -> Iterator[tuple[str, Binding]]:
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if one is not None:
            yield one.arg, (":", one.annotation) if one.annotation is not None else ("?", one)


def _returns_of(function: Function) -> Iterator[ast.Return]:
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, _SCOPES):
            todo += list(ast.iter_child_nodes(node))


def _is_method(node: ast.stmt, name: str) -> bool:
    return isinstance(node, _FUNCTIONS) and node.name == name


def _agreed(kinds: Sequence[Kind | None]) -> Kind | None:
    known = set(kinds)
    return known.pop() if len(known) == 1 else None


def _parsed(text: str) -> ast.AST | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
