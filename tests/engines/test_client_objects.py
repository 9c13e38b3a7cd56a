"""Client objects of other libraries in place of a URL: their settings are read, and sessions of our own are opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import consul  # type: ignore[import-untyped]
import etcd3gw
import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]

from leasehold import Leasehold, Misuse
from leasehold.chaos.servers import started

CANARY = "canary-7Qx"


def kazoo(host: str, port: int) -> KazooClient:
    return KazooClient(f"{host}:{port}/", auth_data=[("digest", f"app:{CANARY}")])


def py_consul(host: str, port: int) -> Any:
    return consul.Consul(host=host, port=port)


def gateway(host: str, port: int) -> Any:
    return etcd3gw.Etcd3Client(host, port)


@pytest.mark.parametrize(
    ("engine", "client"),
    [("zookeeper", kazoo), ("consul", py_consul), ("etcd", gateway)],
    ids=["kazoo", "py-consul", "etcd3gw"],
)
def test_a_client_object_says_where_the_engine_is(
    engine: str, client: Callable[[str, int], Any], tmp_path: Path
) -> None:
    with started(engine, tmp_path) as (url, _):
        host, _, port = url.partition("://")[2].partition("/")[0].partition("?")[0].rpartition(":")
        with Leasehold(client(host, int(port))) as locks, locks.lock("n", ttl=20) as lease:
            assert CANARY not in repr(locks)
            # What one user of ZooKeeper makes, no other may read.
            same = url.replace("://", f"://app:{CANARY}@") if engine == "zookeeper" else url
            with Leasehold(same) as others:
                status = others.status("n")
                assert status is not None
                assert [one.token for one in status.holders] == [lease.token]


WEAK = {
    "not check who answers": [
        KazooClient("127.0.0.1:2181", use_ssl=True, verify_certs=False),
        consul.Consul(scheme="https", verify=False),
        etcd3gw.Etcd3Client("127.0.0.1", protocol="https"),
    ],
    "identifies itself in another way": [
        KazooClient("127.0.0.1:2181", auth_data=[("ip", CANARY)]),
        KazooClient("127.0.0.1:2181", sasl_options={"mechanism": "GSSAPI", "principal": CANARY}),
    ],
    "belongs to ZooKeeper itself": [KazooClient("127.0.0.1:2181/zookeeper")],
    "a word of printable ASCII": [consul.Consul(token=f"{CANARY}\r\n")],
}
WEAK["not check who answers"][-1].session.verify = False


@pytest.mark.parametrize(("why", "client"), [(why, one) for why, clients in WEAK.items() for one in clients])
def test_what_cannot_be_taken_over_is_refused_and_not_shown(why: str, client: object) -> None:
    with pytest.raises(Misuse, match=why) as refusal:
        Leasehold(client)
    assert "accepted are" in str(refusal.value)
    assert CANARY not in str(refusal.value)
