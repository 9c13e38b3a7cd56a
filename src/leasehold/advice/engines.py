"""Which engine: of the systems that somebody runs already, the one that fits, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from leasehold.errors import Misuse, quoted


class Choice(NamedTuple):
    """An engine for somebody."""

    engine: str
    url: str
    why: str


class System(NamedTuple):
    """Something that people run, and what it is as an engine of leases."""

    name: str
    title: str
    url: str
    rank: int
    """The lower, the better for correctness; the order says nothing about speed."""
    fit: bool
    """Whether a lock that protects state may rely on it, with a fence behind it."""
    why: str


SYSTEMS: Final = {
    one.name: one
    for one in (
        System(
            "etcd", "etcd", "etcd://host:2379", 1, True, "every token comes from one majority, which survives its nodes"
        ),
        System(
            "zookeeper", "ZooKeeper", "zookeeper://host:2181", 2, True, "tokens come from one majority, in total order"
        ),
        System("consul", "Consul", "consul://host:8500", 3, True, "tokens come from one majority; its TTLs are long"),
        System(
            "postgresql",
            "PostgreSQL",
            "postgresql://user@host/database",
            4,
            True,
            "tokens are as durable as your data, and lock, fence and write can be one transaction",
        ),
        System(
            "mysql", "MySQL or MariaDB", "mysql://user@host/database", 5, True, "tokens are as durable as your data"
        ),
        System(
            "redlock",
            "three or five independent Redis servers",
            "redlock://one,two,three",
            6,
            True,
            "a majority grants, tokens increase whatever clocks and servers do",
        ),
        System(
            "redis",
            "one Redis or Valkey",
            "redis://host:6379/0",
            7,
            False,
            "the fastest; but what it has not written to disk it forgets, and a promoted replica knows less",
        ),
        System("none", "nothing of these, on one host", "", 8, True, "an embedded SQLite file needs no server at all"),
    )
}


def choose(run: Iterable[str], *, protects_state: bool, several_hosts: bool) -> Choice:
    """The engine to take, of what runs already."""
    names = list(run) or ["none"]
    for name in names:
        if name not in SYSTEMS:
            raise Misuse(f"{quoted(name)} is no system that is known here; these are: {', '.join(SYSTEMS)}")
    if not several_hosts:
        names.append("none")
    # For saving work the quickest that is there; for protecting state the one that forgets least.
    order = (lambda one: (not one.fit, one.rank)) if protects_state else (lambda one: -one.rank)
    candidates = sorted((SYSTEMS[name] for name in names if name != "none" or not several_hosts), key=order)
    if not candidates:
        return Choice(
            "PostgreSQL",
            "postgresql://user@host/database",
            "an embedded file serves one host, and yours are several: take whichever server you would rather run",
        )
    best = candidates[0]
    if protects_state and not best.fit:
        return Choice(
            best.title, best.url, f"it is what you have, but for correctness add a fence or another engine: {best.why}"
        )
    return Choice("SQLite" if best.name == "none" else best.title, best.url or "(the default: Leasehold())", best.why)
