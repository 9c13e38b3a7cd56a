"""What attempts tell people of themselves: how it is stored, and what is made of what others stored."""

from __future__ import annotations

import json

import pytest

from leasehold.core.engine import Want
from leasehold.engines.about import About, about_in, value_of

WANT = Want("a", "h", 30.0, "permit", 3, 0.0, "worker@host:1")
IN_NODES = b'{"about":"worker@host:1","since":1000.0,"until":1005.0,"ttl":30.0,"limit":3}'
IN_KEYS = IN_NODES.replace(b'"since"', b'"mode":"permit","since"')


def test_what_is_stored_stays_as_it_was() -> None:
    """Clients of other versions read it."""
    assert value_of(WANT, 1000.0, 5.0, with_mode=False) == IN_NODES
    assert value_of(WANT, 1000.0, 5.0, with_mode=True) == IN_KEYS
    delaying = WANT._replace(delay=7.5)
    assert value_of(delaying, 1000.0, 5.0, with_mode=True) == IN_KEYS.replace(b"}", b',"delay":7.5}')
    assert value_of(WANT, 1000.0, None, with_mode=False) == IN_NODES.replace(b"1005.0", b"1000.0")


def test_what_people_see_is_read_back() -> None:
    told = About("worker@host:1", 1000.0, 1005.0, 30.0, 3)
    assert about_in(IN_NODES) == about_in(IN_KEYS) == told
    assert about_in(value_of(WANT._replace(delay=7.5), 1000.0, 5.0, with_mode=True)) == told._replace(delay=7.5)


@pytest.mark.parametrize("value", [b"", b"x", b"[]", b"1", b'{"about":1}', b'{"since":{}}', b"[" * 100_000, b"\xff"])
def test_foreign_values_do_no_harm(value: bytes) -> None:
    assert about_in(value) == About()


def test_whatever_is_told_is_json() -> None:
    nasty = WANT._replace(about='a "b" \\ \n \x00 é 日', limit=7)
    told = json.loads(value_of(nasty, 1000.0, 5.0, with_mode=True))
    assert told == {
        "about": nasty.about,
        "mode": "permit",
        "since": 1000.0,
        "until": 1005.0,
        "ttl": nasty.ttl,
        "limit": 7,
    }
