"""One parsed file, and what a rule may ask about it: what stands where, what a name is bound to, what kind it is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

from leasehold.lint.finding import Edit, Finding
from leasehold.lint.kinds import Kind
from leasehold.lint.values import Values

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
WITHS = (ast.With, ast.AsyncWith)
NodeT = TypeVar("NodeT", bound=ast.AST)
_SCOPES = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module})
_NOT_INDEXED = frozenset({ast.Load, ast.Store, ast.Del})
"""Python has one object of each for the whole program: they stand nowhere."""
LINE_END = re.compile("\r\n|\r|\n")
"""Where Python ends a line; `str.splitlines` would end it at form feeds as well."""


class Module:
    """A file that was parsed. Nothing of it is ever run."""

    def __init__(self, path: str, source: str, tree: ast.Module) -> None:
        """`path` is only for messages."""
        self.path, self.source, self.tree = path, source, tree
        self.lines = LINE_END.split(source)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.owners: dict[ast.AST, ast.AST] = {}
        """Each node's nearest function, class or module."""
        self._by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._texts: dict[ast.AST, str] = {}
        self._index()

    def _index(self) -> None:
        """One walk: every node's parent and scope, and all nodes by their type, in the order of the source."""
        parents, owners, by_type = self.parents, self.owners, self._by_type
        todo: list[tuple[ast.AST, ast.AST]] = [(self.tree, self.tree)]
        while todo:
            node, owner = todo.pop()
            kind = node.__class__
            by_type[kind].append(node)
            if kind in _SCOPES:
                owner = node
            children: list[tuple[ast.AST, ast.AST]] = []
            for name in node._fields:
                value = getattr(node, name, None)
                if value.__class__ is list:
                    for child in value:
                        if isinstance(child, ast.AST) and child.__class__ not in _NOT_INDEXED:
                            parents[child], owners[child] = node, owner
                            children.append((child, owner))
                elif isinstance(value, ast.AST) and value.__class__ not in _NOT_INDEXED:
                    parents[value], owners[value] = node, owner
                    children.append((value, owner))
            children.reverse()
            todo += children

    def all(self, *kinds: type[NodeT]) -> Iterator[NodeT]:
        """Every node of these types, in the order of the source within each type."""
        for kind in kinds:
            yield from self._by_type.get(kind, ())  # type: ignore[misc]

    @cached_property
    def folded(self) -> str:
        """The source in lower case."""
        return self.source.lower()

    @property
    def calls(self) -> list[ast.Call]:
        """Every call."""
        return list(self.all(ast.Call))

    @property
    def functions(self) -> list[Function]:
        """Every function and method."""
        return list(self.all(*FUNCTIONS))

    @cached_property
    def values(self) -> Values:
        """What names and attributes are bound to."""
        return Values(self)

    # Around a node

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def enclosing(self, node: ast.AST, *kinds: type[NodeT]) -> NodeT | None:
        """The innermost node of these types around a node, within its function."""
        for parent in self.above(node):
            if isinstance(parent, kinds):
                return parent
            if isinstance(parent, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
                return None
        return None

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a node stands in."""
        owner = self.owners.get(node)
        while owner is not None and not isinstance(owner, FUNCTIONS):
            owner = self.owners.get(owner)
        return owner

    def scope_of(self, node: ast.AST) -> Function | ast.Module:
        """The function that a node stands in, or the module."""
        return self.function_of(node) or self.tree

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose body, or whose method's body, a node stands in."""
        owner = self.owners.get(node)
        while owner is not None and not isinstance(owner, ast.ClassDef):
            owner = self.owners.get(owner)
        return owner

    def unit_of(self, node: ast.AST) -> ast.AST:
        """What belongs together: the class that a node stands in, else the outermost function, else the module."""
        outermost: ast.AST = self.tree
        owner = self.owners.get(node)
        while owner is not None:
            if isinstance(owner, ast.ClassDef):
                return owner
            if isinstance(owner, FUNCTIONS):
                outermost = owner
            owner = self.owners.get(owner)
        return outermost

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is part of."""
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self.parents.get(current)
        assert isinstance(current, ast.stmt)
        return current

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that a statement is in."""
        parent = self.parents[statement]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]

    def in_finally(self, node: ast.AST) -> ast.Try | None:
        """The try statement in whose ``finally`` a node stands, within its function."""
        child = node
        for parent in self.above(node):
            if isinstance(parent, FUNCTIONS):
                return None
            if isinstance(parent, ast.Try) and child in parent.finalbody:
                return parent
            child = parent
        return None

    def within(self, node: ast.AST, *blocks: list[ast.stmt]) -> bool:
        """Whether a node stands in one of these lists of statements."""
        chain = {node, *self.above(node)}
        return any(statement in chain for block in blocks for statement in block)

    def is_statement(self, call: ast.Call) -> bool:
        """Whether the result of a call is dropped: it is a statement by itself, awaited or not."""
        parent = self.parents.get(call)
        if isinstance(parent, ast.Await):
            parent = self.parents.get(parent)
        return isinstance(parent, ast.Expr)

    def is_awaited(self, call: ast.AST) -> bool:
        """Whether a call is awaited where it stands."""
        return isinstance(self.parents.get(call), ast.Await)

    @cached_property
    def is_test(self) -> bool:
        """Whether the file is a test: those break rules on purpose."""
        parts = self.path.replace("\\", "/").lower().split("/")
        name = parts[-1]
        return (
            name.startswith(("test_", "conftest.")) or name.endswith(("_test.py", "_tests.py")) or name == "tests.py"
        ) or any(part in ("test", "tests", "testing") for part in parts[:-1])

    # Values

    def text(self, node: ast.AST | None) -> str:
        """The source of an expression in one normal form: equal text means the same expression."""
        if node is None:
            return ""
        text = self._texts.get(node)
        if text is None:
            text = self._texts[node] = _unparsed(node)
        return text

    def dotted(self, node: ast.AST | None) -> str | None:
        """What a name or attribute stands for, followed through imports: ``redis.Redis``."""
        return self.values.dotted(node)

    def called(self, call: ast.Call) -> str | None:
        """The dotted name of what is called."""
        return self.values.dotted(call.func)

    def kind(self, node: ast.AST | None) -> Kind | None:
        """What kind of thing an expression is, where that is known."""
        return self.values.kind(node)

    # Reporting

    def finding(self, code: str, node: ast.AST, message: str, edits: tuple[Edit, ...] = ()) -> Finding:
        """Report a node; of a block only its first line is marked."""
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None) or column
        last_line = end_line if isinstance(node, ast.expr) else line
        source_line = self.lines[line - 1] if line <= len(self.lines) else ""
        if end_line != line:
            end_line, end_column = line, len(source_line.encode())
        return Finding(
            path=self.path,
            line=line,
            column=_characters(source_line, column) + 1,
            code=code,
            message=message,
            end_line=end_line,
            end_column=_characters(source_line, end_column) + 1,
            source_line=source_line,
            last_line=last_line,
            edits=edits,
        )

    def segment(self, node: ast.expr | ast.stmt) -> str | None:
        """The source of a node as written, where it stands on one line."""
        if node.end_lineno != node.lineno or node.end_col_offset is None:
            return None
        return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()


def _unparsed(node: ast.AST) -> str:
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):  # absurdly deep or not writable; such an expression equals nothing else
        return f"<{id(node)}>"


def _characters(line: str, column: int) -> int:
    return len(line.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))


def inside(node: ast.AST, *, nested: bool = False) -> Iterator[ast.AST]:
    """Everything within a node, itself included; bodies of functions defined there only if `nested`."""
    todo = [node]
    while todo:
        current = todo.pop()
        yield current
        if nested or current is node or not isinstance(current, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            todo += reversed(list(ast.iter_child_nodes(current)))


def calls_in(node: ast.AST, *, nested: bool = False) -> Iterator[ast.Call]:
    """Every call within a node."""
    return (one for one in inside(node, nested=nested) if isinstance(one, ast.Call))


def calls_in_block(block: list[ast.stmt]) -> Iterator[ast.Call]:
    """Every call within a list of statements."""
    for statement in block:
        yield from calls_in(statement)


def method_of(call: ast.Call) -> str:
    """The name of the method that is called, or of the function."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def receiver_of(call: ast.Call) -> ast.expr | None:
    """What a method is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument of a call, by its keyword or its position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and len(call.args) > position:
        before = call.args[: position + 1]
        if not any(isinstance(one, ast.Starred) for one in before):
            return call.args[position]
    return None


def has_unknown_arguments(call: ast.Call) -> bool:
    """Whether arguments come from ``*args`` or ``**kwargs``, so that none can be said to be missing."""
    return any(keyword.arg is None for keyword in call.keywords) or any(
        isinstance(one, ast.Starred) for one in call.args
    )


def is_none(node: ast.AST | None) -> bool:
    """Whether an expression is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_false(node: ast.AST | None) -> bool:
    """Whether an expression is the constant False."""
    return isinstance(node, ast.Constant) and node.value is False


def number(node: ast.AST | None) -> float | None:
    """The value of a number that is written out, also as a product: ``60 * 5``."""
    match node:
        case ast.Constant(value=int(value) | float(value)) if not isinstance(value, bool):
            return _as_float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value_of = number(operand)
            return None if value_of is None else -value_of
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = number(left), number(right)
            return None if one is None or other is None else one * other
        case _:
            return None


def _as_float(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None
