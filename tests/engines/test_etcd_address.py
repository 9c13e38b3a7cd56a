"""URLs of etcd: what is understood, what is refused, and that nothing of a URL is ever shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import GuaranteeWarning, InvalidURL, Leasehold, Misuse
from leasehold.wires.etcd_address import Tls, address_from_url
from leasehold.wires.urls import Endpoint

CANARY = "can4ry"


def test_hosts_ports_and_their_defaults() -> None:
    address = address_from_url("etcd://one,two:2380,[::1]:7,10.0.0.1")
    assert address.endpoints == (
        Endpoint("one", 2379),
        Endpoint("two", 2380),
        Endpoint("::1", 7),
        Endpoint("10.0.0.1", 2379),
    )
    assert str(address) == "etcd://one:2379,two:2380,[::1]:7,10.0.0.1:2379"
    assert address.tls is None


def test_credentials_are_decoded_and_never_shown() -> None:
    address = address_from_url(f"etcd://work%40er:{CANARY}%2F%3A@one")
    assert (address.user, address.password) == ("work@er", f"{CANARY}/:")
    assert CANARY not in f"{address} {address!r}"
    assert address_from_url("etcd://one").user is None


def test_tls_files_are_read(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----\n{CANARY}")
    address = address_from_url(f"etcds://one?ca={tmp_path}/ca&cert={tmp_path}/cert&key={tmp_path}/key")
    assert address.tls is not None
    assert address.tls.key == f"-----BEGIN key-----\n{CANARY}".encode()
    assert f"-----BEGIN key-----\n{CANARY}" not in repr(address)
    assert address_from_url("etcds://one").tls == Tls()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://", "host is missing"),
        ("etcd://one,", "host is missing"),
        ("etcd://one,one", "twice"),
        ("etcd://one:0", "port"),
        ("etcd://one:99999", "port"),
        ("etcd://one:1:2", "not written as one"),
        ("etcd://[::x]", "IPv6"),
        ("etcd://one/path", "nothing to name"),
        ("etcd://one?ca=x", "belong to etcds"),
        ("etcds://one?verify=no", "known are ca, cert, key"),
        ("etcds://one?ca=/nowhere/at/all", "cannot be read"),
        ("etcds://one?cert=x", "belong together"),
        ("etcds://one?ca=x&ca=y", "twice"),
        ("etcds://one?ca", "name=value"),
        (f"etcd://{CANARY}@one", "belong together"),
        (f"etcd://user:{CANARY}%zz@one", "hexadecimal"),
        (f"etcd://user:{CANARY}%ff@one", "UTF-8"),
        (f"etcd://user:a@{CANARY}@one", "strange place"),
        (f"etcd://user:{CANARY} x@one", "space"),
        ("etcd:one", "must start"),
        ("etcd://" + "a" * 300, "host name"),
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
        address_from_url(f"etcd://{rest}")
    except InvalidURL as error:
        assert rest not in str(error) or len(rest) < 4  # noqa: PT017 -- there need not be an error


def test_plain_tcp_to_another_machine_is_warned_of_once() -> None:
    with pytest.warns(GuaranteeWarning, match="plain TCP"):
        Leasehold(f"etcd://user:{CANARY}@elsewhere.example")
    Leasehold("etcd://elsewhere.example")
    Leasehold("etcd://127.0.0.1,localhost,[::1]")


def test_a_missing_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("leasehold.wires.etcd", "leasehold.wires.etcd_lines", "leasehold.wires.etcd_watch"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(Misuse, match=r'pip install "leasehold\[etcd\]"'):
        Leasehold("etcd://127.0.0.1")
