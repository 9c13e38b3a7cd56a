"""Every fence refuses a token that cannot be right, until somebody confirms it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
from tests.fences import file_guard, guards, http_guard, sql_guards, store_guards, table_guards
from tests.fences.guards import Guard
from tests.fences.registry import ASYNC_ADAPTERS, FENCES

from leasehold.errors import TokenJump
from leasehold.fences.rule import DAY

HELD = [kind for kind in [*FENCES, *ASYNC_ADAPTERS] if not kind.startswith("trigger")]
"""The trigger has its own tests: there the database judges."""


@pytest.fixture(autouse=True)
def careful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards' fences allow any jump; here they are made as people make theirs."""
    for module in (file_guard, guards, http_guard, sql_guards, store_guards, table_guards):
        monkeypatch.setattr(module, "HIGHEST_TOKEN", DAY)


def confirm(guard: Any, token: int) -> None:
    """Announce it in the fence's own words."""
    fence = guard.things.fence if hasattr(guard, "things") else guard.fence
    if hasattr(guard, "column"):
        announced = guard.column.announce(guard.key, token, allow_jump=True)
    else:
        announced = fence.announce(guard.resource, token, allow_jump=True)
    if inspect.isawaitable(announced):
        guard.run(announced)


@pytest.mark.parametrize("kind", HELD)
def test_an_absurd_jump_is_refused_until_it_is_confirmed(
    kind: str, fresh_of: Callable[..., Callable[[], Guard]]
) -> None:
    with closing(fresh_of(kind, patience=30)()) as guard:
        now = time.time_ns() // 1000
        absurd = now + 2 * DAY
        guard.write(5, "right")
        deeds: list[Callable[[], object]] = [
            lambda: guard.write(absurd, "wrong"),
            lambda: guard.announce(absurd),
            lambda: guard.read(absurd),
        ]
        for deed in deeds:
            with pytest.raises((TokenJump, httpx.HTTPStatusError)) as refused:
                deed()
            if isinstance(refused.value, httpx.HTTPStatusError):
                assert refused.value.response.status_code == 400
        assert (guard.peek(), guard.floor()) == ("right", 5)
        guard.write(now, "a token of the clock")  # far above the floor, and right
        confirm(guard, absurd)
        assert (guard.peek(), guard.floor()) == ("a token of the clock", absurd)
