"""URLs of ensembles: what is understood, what is refused, and that nothing of a password is ever shown."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from leasehold import GuaranteeWarning, InvalidURL, Leasehold
from leasehold.wires.urls import Endpoint
from leasehold.wires.zookeeper_address import Address, address_from_url, warn_of_transport


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("zookeeper://a", Address((Endpoint("a", 2181),))),
        ("zookeeper://a:1,b:2,[::1]:3", Address((Endpoint("a", 1), Endpoint("b", 2), Endpoint("::1", 3)))),
        ("zookeeper://a/app/one%20two", Address((Endpoint("a", 2181),), "/app/one two")),
        ("zookeeper://a?tick=0.5", Address((Endpoint("a", 2181),), tick=0.5)),
    ],
)
def test_urls_are_understood(url: str, expected: Address) -> None:
    assert address_from_url(url) == expected


def test_a_login_is_understood_and_never_shown() -> None:
    address = address_from_url("zookeeper://a%20user:s%3Acret%40@127.0.0.1")
    assert str.__str__(address.login or "") == "a user:s:cret@"
    assert "cret" not in repr(address) + str(address)


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper://", "zookeeper:///app", "zk://a", "zookeeper://a:0", "zookeeper://a:65536", "zookeeper://a:x",
        "zookeeper://a,a", "zookeeper://a,,b", "zookeeper://a b", "zookeeper://-a", "zookeeper://[::x]",
        "zookeeper://a//b", "zookeeper://a/b/", "zookeeper://a/..", "zookeeper://a/./b", "zookeeper://a/%2F",
        "zookeeper://a/zookeeper", "zookeeper://a/b%00", "zookeeper://a/%zz", "zookeeper://a/%ff",
        "zookeeper://user@a", "zookeeper://user:@a", "zookeeper://:secret@a", "zookeeper://u%3Aser:secret@a",
        "zookeeper://user:sec@ret@a", "zookeeper://user:sec#ret@a", "zookeeper://user:sec/ret@a",
        "zookeeper://a?tick=0", "zookeeper://a?tick=61", "zookeeper://a?tick=-1", "zookeeper://a?tick=1&tick=2",
        "zookeeper://a?ca=x", "zookeeper://a?password=secret", "zookeepers://a?ca=/nowhere/secret.pem",
        "zookeepers://a?other=secret", "zookeeper://a?tick", "zookeeper://a?auth=sasl", "zookeeper://u:secret@a?auth=plain",
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        address_from_url(url)
    assert "ret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_plain_tcp_to_another_machine_warns_once() -> None:
    with pytest.warns(GuaranteeWarning, match="zookeepers://") as caught:
        Leasehold("zookeeper://user:secret@lock-server.example")
    assert "secret" not in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_transport(address_from_url("zookeeper://lock-server.example"), 1)
        warn_of_transport(address_from_url("zookeeper://127.0.0.1,localhost,[::1]"), 1)


def test_tls_wants_readable_files(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(InvalidURL, match="PEM"):
        address_from_url(f"zookeepers://a?ca={tmp_path}/ca.pem")
    assert address_from_url("zookeepers://a").tls is not None
