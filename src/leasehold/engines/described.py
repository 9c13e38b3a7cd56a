"""The facts of every built-in engine without its client library: what people read before they install anything."""

from __future__ import annotations

from leasehold.core.engine import Facts
from leasehold.engines import (
    consul_facts,
    etcd_facts,
    mysql_facts,
    postgres_facts,
    redis_facts,
    redlock_facts,
    sqlite,
    zookeeper_facts,
)
from leasehold.errors import InvalidURL
from leasehold.wires import consul_address, etcd_address, redis_target, zookeeper_address


def described() -> list[Facts]:
    """Of an engine at its usual address each. Nothing is opened, and nothing is sent.

    >>> [facts.engine for facts in described()][:3]
    ['sqlite', 'redis', 'redis+cluster']
    """
    return [
        _sqlite_facts(),
        redis_facts.facts_of(redis_target.target_from_url("redis://localhost")),
        redis_facts.cluster_facts("redis+cluster://localhost"),
        redlock_facts.facts_of("redlock://localhost:6379,localhost:6380,localhost:6381"),
        consul_facts.facts_of(consul_address.address_from_url("consul://localhost")),
        etcd_facts.facts_of(etcd_address.address_from_url("etcd://localhost")),
        zookeeper_facts.facts_of(zookeeper_address.address_from_url("zookeeper://localhost")),
        postgres_facts.lease_facts("postgresql://localhost"),
        mysql_facts.lease_facts("mysql://localhost"),
        postgres_facts.session_facts("postgresql+session://localhost"),
        mysql_facts.session_facts("mysql+session://localhost"),
    ]


def _sqlite_facts() -> Facts:
    try:
        return sqlite.open_engine("sqlite://", namespace="", client_label="").facts
    except InvalidURL:  # this user has no home folder, which nothing here needs
        return sqlite.open_engine("sqlite:////leases.db", namespace="", client_label="").facts
