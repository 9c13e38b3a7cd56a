"""URLs of Consul: what is understood, what is refused, and that nothing of a URL is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import GuaranteeWarning, InvalidTTL, InvalidURL, Leasehold
from leasehold.engines.consul_keys import keys_of, name_in
from leasehold.wires.consul_address import address_from_url
from leasehold.wires.urls import Endpoint

CANARY = "can4ry"


def test_hosts_ports_and_their_defaults() -> None:
    address = address_from_url("consul://one,two:8600,[::1]:7,10.0.0.1/")
    assert address.endpoints == (
        Endpoint("one", 8500),
        Endpoint("two", 8600),
        Endpoint("::1", 7),
        Endpoint("10.0.0.1", 8500),
    )
    assert str(address) == "consul://one:8500,two:8600,[::1]:7,10.0.0.1:8500"
    assert address_from_url("consuls://one").endpoints == (Endpoint("one", 8501),)


def test_the_token_is_decoded_and_never_shown() -> None:
    address = address_from_url(f"consul://one/?token={CANARY}%2F%3A")
    assert address.token == f"{CANARY}/:"
    assert CANARY not in f"{address} {address!r}"
    locks = Leasehold(f"consul://127.0.0.1/?token={CANARY}")
    assert CANARY not in f"{locks!r} {locks.facts!r}"


def test_the_shortest_ttl_is_consuls_own_unless_it_is_said() -> None:
    with pytest.raises(InvalidTTL, match="at least 10"):
        Leasehold("consul://127.0.0.1").lock("a", ttl=9.9)
    assert Leasehold("consul://127.0.0.1/?least_ttl=2.5").facts.least_ttl == 2.5


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("consul://", "host is missing"),
        ("consul://one,", "host is missing"),
        ("consul://one,one", "twice"),
        ("consul://one:0", "port"),
        ("consul://one:99999", "port"),
        ("consul://one:1:2", "not written as one"),
        ("consul://[::x]", "IPv6"),
        ("consul://one/path", "nothing to name"),
        ("consul://one?ca=x", "belong to consuls"),
        ("consul://one?dc=x", "known are token, least_ttl"),
        ("consuls://one?verify=no", "known are token, least_ttl, ca, cert, key"),
        ("consuls://one?ca=/nowhere/at/all", "cannot be read"),
        ("consuls://one?cert=x", "belong together"),
        ("consul://one?token=x&token=y", "twice"),
        ("consul://one?token", "name=value"),
        ("consul://one?least_ttl=0", "session_ttl_min"),
        ("consul://one?least_ttl=1e3", "session_ttl_min"),
        (f"consul://{CANARY}@one", "no users"),
        (f"consul://one?token={CANARY}%zz", "hexadecimal"),
        (f"consul://one?token={CANARY}%ff", "UTF-8"),
        (f"consul://one?token={CANARY}%0d%0aHost:%20x", "printable"),
        (f"consul://one?token={CANARY}#", "'#'"),
        (f"consul://one?token={CANARY} x", "space"),
        ("consul:one", "must start"),
        ("consul://" + "a" * 300, "host name"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_shown(url: str, says: str) -> None:
    with pytest.raises(InvalidURL, match=says) as caught:
        Leasehold(url)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.text(max_size=60))
def test_anything_else_is_refused_or_understood(rest: str) -> None:
    try:
        address_from_url(f"consul://{rest}")
    except InvalidURL as error:
        assert rest not in str(error) or len(rest) < 4  # noqa: PT017 -- there need not be an error


def test_plain_http_to_another_machine_is_warned_of_once() -> None:
    with pytest.warns(GuaranteeWarning, match="plain HTTP"):
        Leasehold(f"consul://elsewhere.example/?token={CANARY}")
    Leasehold("consul://elsewhere.example")
    Leasehold("consul://127.0.0.1,localhost,[::1]")


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")), min_size=1)


@given(NAMES | st.sampled_from([".", "..", "%", "%2E", "a/b", "/"]), NAMES | st.just(""))
def test_a_name_is_one_folder_that_no_path_can_leave(name: str, namespace: str) -> None:
    folder = keys_of(namespace, name).all[0]
    prefix, space, encoded, end = folder.split(b"/")
    assert (prefix, end) == (b"leasehold", b"")
    assert space not in {b"", b".", b".."}
    assert encoded not in {b"", b".", b".."}
    assert name_in(folder, namespace) == name
    assert name_in(folder, namespace + "x") is None
