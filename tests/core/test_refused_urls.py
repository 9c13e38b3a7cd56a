"""A URL that is refused shows nothing of itself, and a slip of the pen is put right, at whichever engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engines.test_redis_target import CANARY, assert_hidden

from leasehold import InvalidURL, Leasehold
from leasehold.wires import consul_address, etcd_address, mysql_target, postgres_target, redis_target, zookeeper_address
from leasehold.wires.quorum_target import servers_from
from leasehold.wires.redis_cluster_target import cluster_from

READERS: dict[str, Callable[[str], object]] = {
    "redis": redis_target.target_from_url,
    "redlock": servers_from,
    "redis+cluster": cluster_from,
    "postgresql": postgres_target.target_from_url,
    "mysql": mysql_target.target_from_url,
    "etcd": etcd_address.address_from_url,
    "zookeeper": zookeeper_address.address_from_url,
    "consul": consul_address.address_from_url,
}


@pytest.mark.parametrize("scheme", READERS)
@pytest.mark.parametrize(
    "rest",
    [
        f"u:{CANARY}@one,two,three:0/db",
        f"u:{CANARY}/@one,two,three/db",
        f"u:{CANARY}#@one,two,three/db",
        f"u:%{CANARY}@one,two,three/db",
        f"u:{CANARY}@one,two,three/db?{CANARY}={CANARY}",
        f"u:{CANARY}@one,two,three/db?one=1&one={CANARY}",
    ],
)
def test_a_refused_url_is_in_no_message_and_in_no_frame(scheme: str, rest: str) -> None:
    with pytest.raises(InvalidURL, match=r"this is not the URL of an? ") as refused:
        READERS[scheme](f"{scheme}://{rest}")
    assert_hidden(refused.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("rediss://one?cert_file=x", "did you mean cert"),
        ("redis://one?ca=x", "this scheme takes none; ca, cert and key belong to TLS, such as rediss://"),
        ("redlocks://one,two,three?certs=x", "did you mean cert"),
        ("redlock://one,two,three?longest_ttl=9&longest_ttl=9", "twice"),
        ("mysql://u@one/db?sslmode=REQUIRED", "did you mean ssl-mode"),
        ("zookeeper://one?ticks=2", "did you mean tick"),
        ("consuls://one?keys=x", "did you mean key"),
        ("etcds://one?cacert=x", "did you mean"),
    ],
)
def test_an_option_that_is_nearly_one_is_told(url: str, says: str) -> None:
    with pytest.raises(InvalidURL) as refused:
        Leasehold(url)
    assert says in str(refused.value)
