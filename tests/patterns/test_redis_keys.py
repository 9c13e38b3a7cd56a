"""What is given to stores in Redis by mistake is refused in plain words, which show no password."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold import Misuse
from leasehold.patterns.idempotency import AsyncRedisKeys, RedisKeys


@pytest.mark.parametrize("store", [RedisKeys, AsyncRedisKeys])
@pytest.mark.parametrize(
    ("given", "told"), [("redis://:canary-22@host/0", "not a URL"), (None, "not NoneType"), (b"redis://", "not bytes")]
)
def test_only_a_client_will_do(store: Any, given: object, told: str) -> None:
    with pytest.raises(Misuse, match="give an open redis-py client, such as ") as refused:
        store(given)
    assert told in str(refused.value)
    assert "canary" not in str(refused.value)
