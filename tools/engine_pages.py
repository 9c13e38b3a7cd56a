"""Writes what an engine says of itself into its page: `python tools/engine_pages.py` (add `--check` to only compare).

A page marks the place with ``<!-- facts of URL -->`` and ``<!-- end of facts -->``. So all pages have the same
headings, and none can say anything else than the engine's own data does. After ``<!-- comparison -->``, up to its own
end, all engines stand beside each other, with the figures that `make bench` and `tools/handoff.py` have measured last;
after ``<!-- costs of ENGINE -->`` stand the figures of one engine and of its peers.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasehold import Capability, Facts, GuaranteeWarning, Leasehold

PAGES = Path(__file__).parents[1] / "docs" / "engines"
BENCHMARK = PAGES.parent / "data" / "benchmark.json"
REGION = re.compile(r"(<!-- facts of (?P<url>\S+) -->\n).*?(<!-- end of facts -->)", re.DOTALL)
COMPARISON = re.compile(r"(<!-- comparison -->\n).*?(<!-- end of comparison -->)", re.DOTALL)
COSTS = re.compile(r"(<!-- costs of (?P<engine>\S+) -->\n).*?(<!-- end of costs -->)", re.DOTALL)
COMPARED = {
    "[SQLite](sqlite.md)": "sqlite://",
    "[Redis](redis.md)": "redis://127.0.0.1",
    "[Redis Cluster](redis-cluster.md)": "redis+cluster://127.0.0.1",
    "[Redlock](redlock.md)": "redlock://127.0.0.1:6001,127.0.0.1:6002,127.0.0.1:6003",
    "[PostgreSQL](postgresql.md)": "postgresql://user@127.0.0.1/database",
    "[PostgreSQL sessions](postgresql-session.md)": "postgresql+session://user@127.0.0.1/database",
    "[MySQL](mysql.md)": "mysql://user@127.0.0.1/database",
    "[MySQL sessions](mysql-session.md)": "mysql+session://user@127.0.0.1/database",
    "[etcd](etcd.md)": "etcd://127.0.0.1",
    "[ZooKeeper](zookeeper.md)": "zookeeper://127.0.0.1",
    "[Consul](consul.md)": "consul://127.0.0.1",
}
NEEDS = {
    "sqlite": ("nothing: a file on the host", "SQLite"),
    "redis": ("one Redis or Valkey server, no replicas", "Redis"),
    "redis+cluster": ("a Redis Cluster", None),
    "redlock": ("3 or 5 independent Redis servers", "Redlock, 3 servers"),
    "postgresql": ("a PostgreSQL server; up to 16 connections, for a moment each", "PostgreSQL"),
    "postgresql+session": ("a PostgreSQL server; a connection for each lease", "PostgreSQL, session locks"),
    "mysql": ("a MySQL or MariaDB server; up to 16 connections, for a moment each", "MariaDB"),
    "mysql+session": ("a MySQL or MariaDB server; a connection for each lease", "MariaDB, session locks"),
    "etcd": ("an etcd cluster; 3 members survive the loss of one", "etcd, one member"),
    "zookeeper": ("an ensemble; 3 servers survive the loss of one", "ZooKeeper, one server"),
    "consul": ("a Consul cluster; 3 servers survive the loss of one", "Consul, one server"),
}
"""What each needs, and what it is called in the table of hand-offs."""
COMPARED_HEADINGS = ("not_guaranteed", "tokens", "timekeeper", "takeover", "failover")
HEADINGS = {
    "not_guaranteed": "What it does not guarantee",
    "tokens": "Where tokens come from, and when they could go back",
    "timekeeper": "Who keeps time",
    "ends": "What ends a lease",
    "loss_told": "When a holder knows of a loss, at the latest",
    "takeover": "When a dead holder is replaced, at the latest",
    "failover": "Failover",
    "proxies": "Poolers and proxies",
    "enforce_with": "Enforce it with",
}


def facts_of(url: str) -> Facts:
    """What the engine behind the URL says of itself; nothing is sent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        return Leasehold(url).facts


def rendered(facts: Facts) -> str:
    """The facts as Markdown."""
    fit = "yes" if facts.guarantee.fit_for_correctness else "no"
    lines = [f'Fit for `purpose="correctness"`: **{fit}**. Shortest TTL: {facts.least_ttl:g} s.', ""]
    for field, heading in HEADINGS.items():
        lines += [f"## {heading}", "", getattr(facts.guarantee, field), ""]
    lines += ["## What it can do", "", "| | |", "|---|---|"]
    lines += [f"| {'✓' if one in facts.capabilities else ' '} | {one.value} |" for one in Capability]
    return "\n".join(lines) + "\n"


def measured() -> dict[str, tuple[str, str]]:
    """For each engine: what taking and giving back took, and what a hand-off took, as last written down."""
    tables = json.loads(BENCHMARK.read_text())["tables"]
    takes = {
        table["title"].rpartition(" on ")[2]: row["figures"]["p50 µs"]["value"]
        for table in tables
        for row in table["rows"]
        if table["section"] == "uncontended" and row["who"] == "Leasehold"
    }
    rows = (line.strip("| ").split(" | ") for line in (PAGES / "hand-off.md").read_text().splitlines())
    hand_offs = {row[0]: f"{row[1]} / {row[2]} ms" for row in rows if len(row) == 4}
    return {
        engine: (f"{takes[engine] / 1000:.2f} ms" if engine in takes else "", hand_offs.get(called or "", ""))
        for engine, (_, called) in NEEDS.items()
    }


def rows_of(section: str, engine: str) -> dict[str, dict[str, Any]]:
    """The figures of one engine in a section of the benchmark, by whose they are."""
    tables = json.loads(BENCHMARK.read_text())["tables"]
    [table] = [one for one in tables if one["section"] == section and one["title"].endswith(f" on {engine}")]
    return {row["who"]: row["figures"] for row in table["rows"]}


def costs(engine: str) -> str:
    """What an engine costs, beside its peers."""
    alone, crowd = rows_of("uncontended", engine), rows_of("contended", engine)
    lines = ["| | " + " | ".join(crowd) + " |", "|---" + "|---:" * len(crowd) + "|"]

    def line(what: str, shown: Callable[[str], str]) -> None:
        lines.append(f"| {what} | {' | '.join(shown(who) for who in crowd)} |")

    def floors(who: str) -> str:
        ratio = alone[who]["floors (p10-p90)"] if who in alone else None
        return f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""

    line("take + release of a free name, to the floor", floors)
    line("the same in asyncio", lambda who: floors(f"{who} (asyncio)"))
    line("take + release, p50", lambda who: f"{alone[who]['p50 µs']['value']:,.0f} µs")
    line("processor time of it", lambda who: f"{alone[who]['processor µs']['value']:,.0f} µs")
    hand_off = [f"hand-off {share} µs" for share in ("p50", "p99")]
    line(
        "hand-off between processes that work for 5 ms, p50 / p99",
        lambda who: " / ".join(f"{crowd[who][one]['value'] / 1000:.2f} ms" for one in hand_off if one in crowd[who]),
    )
    line(
        "fairness between them (Jain: 1 when all got the same)",
        lambda who: f"{crowd[who]['fairness (Jain)']['value']:.2f}",
    )
    line("holder changes a second, empty body", lambda who: f"{crowd[who]['changes/s (p10-p90)']['value']:,.0f}")
    return "\n".join(lines) + "\n"


def compared() -> str:
    """All engines beside each other: what they can do, and then one question after the other."""
    every = {title: facts_of(url) for title, url in COMPARED.items()}
    lines = ["| what it can do | which engines |", "|---|---|"]
    for one in Capability:
        have = [title for title, facts in every.items() if one in facts.capabilities]
        lines.append(f"| {one.value} | {'all of them' if len(have) == len(every) else ', '.join(have)} |")
    lines += ["", "| | needs | shortest TTL | take + release, p50 | hand-off, p50 / p99 |", "|---|---|---:|---:|---:|"]
    figures = measured()
    for title, facts in every.items():
        needs, (take, hand_off) = NEEDS[facts.engine][0], figures[facts.engine]
        lines.append(f"| {title} | {needs} | {facts.least_ttl:g} s | {take} | {hand_off} |")
    for field in COMPARED_HEADINGS:
        lines += ["", f"## {HEADINGS[field]}", "", "| | |", "|---|---|"]
        lines += [f"| {title} | {getattr(facts.guarantee, field)} |" for title, facts in every.items()]
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    """The page with its facts written anew."""
    page = COMPARISON.sub(lambda match: f"{match[1]}{compared()}{match[2]}", page)
    page = COSTS.sub(lambda match: f"{match[1]}{costs(match['engine'])}{match[3]}", page)
    return REGION.sub(lambda match: f"{match[1]}{rendered(facts_of(match['url']))}{match[3]}", page)


def main() -> int:
    """Rewrite the pages, or say which are out of date."""
    stale = [page for page in sorted(PAGES.glob("*.md")) if updated(page.read_text()) != page.read_text()]
    for page in stale:
        if "--check" in sys.argv:
            print(f"{page.name} is out of date; run python tools/engine_pages.py")
        else:
            page.write_text(updated(page.read_text()))
            print(f"wrote {page.name}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
