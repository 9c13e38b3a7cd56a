"""Answers that do not have the shape that was asked for are the server's error, and not one of ours."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from leasehold.core.engine import Facts
from leasehold.errors import LeaseholdError
from leasehold.wires.postgres_errors import nonsense

SENSELESS: Final = (ValueError, TypeError, IndexError)
"""What comes of unpacking rows that have more columns than they should have, or fewer, or others."""


class Asking(Protocol):
    """An engine that reads rows."""

    facts: Facts

    def distrust(self) -> None:
        """An answer made no sense: who knows which request it belongs to. Close what is idle."""
        ...


AskingT = TypeVar("AskingT", bound=Asking)
Parameters = ParamSpec("Parameters")
T = TypeVar("T")
Operation = Callable[Concatenate[AskingT, Parameters], Coroutine[Any, Any, T]]


def sensible(operation: Operation[AskingT, Parameters, T]) -> Operation[AskingT, Parameters, T]:
    """An operation that raises nothing but errors of this library, whatever its server answers."""

    @wraps(operation)
    async def asking(engine: AskingT, /, *arguments: Parameters.args, **settings: Parameters.kwargs) -> T:
        try:
            return await operation(engine, *arguments, **settings)
        except LeaseholdError:
            raise
        except SENSELESS as problem:
            engine.distrust()
            raise nonsense(problem, engine.facts.address) from problem

    return asking
