"""How a bug is planted: a piece of a function's source is replaced by another, and the function compiled anew.

The text to be replaced must be there exactly once, so a mutation that no longer fits the code fails loudly instead of
planting nothing.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from types import FunctionType
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """Replace pieces of one function."""

    target: Any
    """A function, a method or a property, as it is found in its module or class."""
    pieces: tuple[tuple[str, str], ...]


def edit(target: Any, *pieces: tuple[str, str]) -> Edit:
    """Replace each first text by its second."""
    return Edit(target, pieces)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug that can be planted."""

    name: str
    bug: str
    caught_by: tuple[str, ...]
    """The judges that may condemn it."""
    edits: Callable[[], list[Edit]]


def registrar(
    into: dict[str, Mutation],
) -> Callable[..., Callable[[Callable[[], list[Edit]]], Callable[[], list[Edit]]]]:
    """A decorator for functions that are one bug each: named by the function, told by its docstring."""

    def caught_by(*judges: str) -> Callable[[Callable[[], list[Edit]]], Callable[[], list[Edit]]]:
        def register(edits: Callable[[], list[Edit]]) -> Callable[[], list[Edit]]:
            name = edits.__name__.replace("_", "-")
            into[name] = Mutation(name, " ".join((edits.__doc__ or "").split()), judges, edits)
            return edits

        return register

    return caught_by


@contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """Run the body with the bug in place."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for one in mutation.edits():
            undo += _replace(one.target, _rewritten(one, mutation.name))
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


def _function(target: Any) -> FunctionType:
    function = target.fget if isinstance(target, property) else target
    assert isinstance(function, FunctionType)
    return function


def _rewritten(one: Edit, mutation: str) -> Any:
    function = _function(one.target)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in one.pieces:
        if source.count(old) != 1:
            raise LookupError(
                f"mutation {mutation!r} does not fit {function.__qualname__} any more: {old!r} is there "
                f"{source.count(old)} times; change the mutation along with the code"
            )
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{source}", f"<mutation {mutation}>", "exec")
    exec(code, function.__globals__, made)  # noqa: S102  our own source, changed by ourselves
    return made[function.__name__]


def _replace(original: Any, mutant: Any) -> list[tuple[Any, str, Any]]:
    """Put the mutant wherever the original is known by name; returns how to undo it."""
    function = _function(original)
    owner: Any = reduce(getattr, function.__qualname__.split(".")[:-1], sys.modules[function.__module__])
    places: list[tuple[Any, str]]
    if inspect.isclass(owner):
        places = [(owner, function.__name__)]
    else:
        modules = [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] == "leasehold"]
        places = [(module, name) for module in modules for name, value in vars(module).items() if value is original]
    for place, name in places:
        setattr(place, name, mutant)
    return [(place, name, original) for place, name in places]
