"""Whatever is given, it is accepted or refused with one clear, typed error, before anything is sent.

The inputs come from a seeded generator that is biased towards what breaks things: fifty thousand on every run.
"""

from __future__ import annotations

import math
import random
import socket
import string
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import pytest

from leasehold import AsyncLeasehold, Leasehold, LeaseholdError
from leasehold.engines.redis_keys import keys_of, name_in
from leasehold.names import check_name, check_namespace, check_token, check_ttl, check_wait

INPUTS = 50_000
NASTY = list("ab:/%{}*?[]\\ .-_~'\"`$;|&<>=+#@!^(),\0\n\r\t\x7f\u202e\u200b\ud800\u0301é\ufeff\U0001f512")


SCHEMES = [
    *("redis", "rediss", "redis+unix", "redis+sentinel", "valkey", "redlock", "sqlite", "postgresql", "mysql", "etcd"),
    *("postgresql+session", "mysql+session", "etcds", "zookeeper", "zookeepers", "consul", "consuls"),
    *("nosuch", "", "REDIS", "1"),
]


class TextOfItsOwn(str):
    """Looks like a name, and may change its mind."""

    __slots__ = ()


NOT_TEXT = [None, True, b"bytes", 7, 7.5, [], {}, object(), TextOfItsOwn("x"), ("a",), Ellipsis, print]
NUMBERS = [
    *(0, -1, 1, 30, 86_400, 86_401, 2**53, 2**63 - 1, 2**63, 10**400, -(2**63)),
    *(0.0, -0.0, 0.001, 0.05, 29.99, 1e-320, 1e308, math.nan, math.inf, -math.inf),
    *(True, False, None, "30", b"30", "", [], {}, 1j, Decimal(30), Fraction(30), object(), math.sqrt),
]


def some_text(chance: random.Random) -> Any:
    """A name, more or less."""
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(NOT_TEXT)
    if kind < 0.5:
        return "".join(chance.choice(NASTY) for _ in range(chance.randrange(6)))
    if kind < 0.6:
        return chance.choice("aé漢") * chance.choice([84, 85, 86, 127, 128, 254, 255, 256, 70_000])
    return "".join(chance.choice(string.printable) for _ in range(chance.randrange(30)))


def some_number(chance: random.Random) -> Any:
    """A duration or a token, more or less."""
    return chance.choice(NUMBERS) if chance.random() < 0.7 else chance.uniform(-1, 90_000)


def some_url(chance: random.Random) -> Any:
    """An engine's address, more or less."""
    if chance.random() < 0.1:
        return chance.choice(NOT_TEXT)
    scheme = chance.choice(SCHEMES)
    pieces = [
        chance.choice(["://", ":", "//", "", ":///"]),
        chance.choice(["", "user:pw@", "@", ":pw@", "a@b@", "%zz@"]),
    ]
    pieces += [
        chance.choice(["127.0.0.1", "[::1]", "[::", "host", "", "h,h", "é", "127.0.0.1:99999", "h:-1", "h:x", ":6379"])
    ]
    pieces += [chance.choice(["", "/", "/0", "/x", "/-1", "/name/0", "/a/b/c"])]
    pieces += [
        chance.choice(["", "?", "?db=1", "?x=1", "?db=1&db=2", "?password=pw", "?=", "?%", "#", "?ca=/nonexistent"])
    ]
    return scheme + "".join(pieces)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to connect is a failure of the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("something was sent for an input that had not been accepted yet")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def outcome(call: Callable[[], object]) -> bool:
    """Whether it was accepted. Anything but a typed error of one readable line fails."""
    try:
        call()
    except LeaseholdError as error:
        message = str(error)
        assert message, f"an empty message for {call}"
        assert len(message) < 700, f"a flood of {len(message)} characters"
        assert "\n" not in message, f"two lines: {message!r}"
        return False
    return True


def fuzz(seed: int, inputs: int) -> None:
    """Names, namespaces, labels, durations, tokens, permits, URLs: no untyped exception, and nothing is sent."""
    chance = random.Random(seed)
    blocking, tasks = Leasehold("redis://127.0.0.1:1"), AsyncLeasehold("redis://127.0.0.1:1")
    accepted = {True: 0, False: 0}
    for _ in range(inputs // 10):
        text, number, url = some_text(chance), some_number(chance), some_url(chance)
        calls: list[Callable[[], object]] = [
            partial(check_name, text),
            partial(check_namespace, text),
            partial(check_ttl, number),
            partial(check_wait, number),
            partial(check_token, number),
            partial(blocking.lock, text, ttl=number, wait=1),
            partial(tasks.lock, "name", wait=number, longest_hold=number),
            partial(blocking.permits, "name", number, purpose=text),
            partial(Leasehold, "sqlite://", namespace=text, label=text),
            partial(Leasehold, url),
        ]
        for call in calls:
            accepted[outcome(call)] += 1
    assert sum(accepted.values()) == inputs
    assert accepted[True] > inputs // 50, "the generator gives nothing that is right"
    assert accepted[False] > inputs // 4, "the generator gives nothing that is wrong"


@pytest.mark.filterwarnings("ignore::leasehold.GuaranteeWarning")
def test_fifty_thousand_inputs_are_accepted_or_refused_with_a_typed_error() -> None:
    fuzz(20_261, INPUTS)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::leasehold.GuaranteeWarning")
@pytest.mark.parametrize("part", range(8))
def test_two_million_inputs_are_accepted_or_refused_with_a_typed_error(part: int) -> None:
    fuzz(part, 2_000_000 // 8)


def test_the_checks_do_object() -> None:
    """A generator that is too tame, or a check that lets all pass, would be found here."""
    for name in ("", " ", "a\nb", "a\0b", "x" * 256, "é" * 128, "\u202eabc", "e\u0301", TextOfItsOwn("x"), b"x", None):
        assert not outcome(partial(check_name, name))
    for ttl in (0, -1, math.nan, math.inf, True, "30", Decimal(30), 86_401, 10**400, 10**5000):
        assert not outcome(partial(check_ttl, ttl))
    for token in (-1, 2**63, True, 1.0, "1", None, 10**5000):
        assert not outcome(partial(check_token, token))


def test_names_are_encoded_injectively() -> None:
    """No two (namespace, name) pairs share a key, and every key gives its name back: over two million pairs."""
    nasty = list("ab:/%{}*?[]\\ .-_~'\"`$;|&<>=+#@!^(),é漢")
    names = ["".join(pair) for pair in product(nasty, nasty)] + nasty
    owners: dict[str, tuple[str, str]] = {}
    for namespace in ("", "a", "a:", ":", "a:b", "%", "{a}"):
        for name in names:
            key = keys_of(namespace, name)[0]
            assert owners.setdefault(key, (namespace, name)) == (namespace, name)
            assert name_in(key.encode(), namespace) == name
    assert len(owners) ** 2 // 2 > 2_000_000
