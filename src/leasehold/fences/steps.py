"""Steps that are written once and driven by blocking and by async code.

They are generators: they yield what to ask of the resource, and are sent the answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
T = TypeVar("T")


def drive(steps: Generator[Ask, Answer, T], ask: Callable[[Ask], Answer]) -> T:
    """Go through the steps in blocking code."""
    with contextlib.closing(steps):
        try:
            question = next(steps)
            while True:
                question = steps.send(ask(question))
        except StopIteration as end:
            result: T = end.value
            return result


async def drive_async(steps: Generator[Ask, Answer, T], ask: Callable[[Ask], Awaitable[Answer]]) -> T:
    """Go through the steps in async code."""
    with contextlib.closing(steps):
        try:
            question = next(steps)
            while True:
                question = steps.send(await ask(question))
        except StopIteration as end:
            result: T = end.value
            return result
