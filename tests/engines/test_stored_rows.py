"""Whatever is stored where leases are, reading it gives a status or one clear, typed error.

Others may write there, files break, and later versions may store what this one does not know. The inputs come from a
seeded generator: right ones with some of their bytes changed, or with values that nobody would store.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.liar import changed

from leasehold import Leasehold, LeaseholdError
from leasehold.core.engine import NameStatus, Want
from leasehold.engines import consul_keys, key_queue, redis_status, zookeeper_queue
from leasehold.engines.about import about_in, value_of
from leasehold.wires import consul, etcd_messages, zookeeper_messages
from leasehold.wires.http import Answer

BY_DAY, BY_NIGHT = 2_000, 100_000
ON_FILE_BY_DAY, ON_FILE_BY_NIGHT = 500, 10_000
PARTS = 4
"""A night is run in so many parts, each with a seed of its own."""
ABOUT: Final = value_of(Want("name", "0" * 32, 30.0, about="worker@host:1"), 1_800_000_000.0, 5.0, with_mode=True)
SNIPPETS = (b"\0", b"\xff", b"9" * 30, b"-", b"e", b"NaN", b"null", b"{}", b"[", b'"', b"\\ud800", b" ", b"/", b"%2F")
STRANGE = (etcd_messages.Malformed, zookeeper_messages.Malformed, redis_status.Unreadable, ValueError, *consul._STRANGE)
"""What each engine makes an `EngineError` of."""


def _blob(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + etcd_messages._varint(len(content)) + content


def _etcd_row() -> bytes:
    return _blob(1, b"leasehold//name/e/7f.0") + b"\x10\x07\x18\x07\x20\x01" + _blob(5, ABOUT) + b"\x30\x05"


def _of_etcd(row: bytes, chance: random.Random) -> NameStatus:
    rows = [row, *([_etcd_row()] if chance.random() < 0.5 else [])]
    found = etcd_messages.keys_in(_blob(1, b"\x18\x07") + b"".join(_blob(2, one) for one in rows))
    for one in found:
        key_queue.name_in(one.key, "")
    return key_queue.status_of("name", *key_queue.standing(found), {}, 1.0)


def _consul_row() -> bytes:
    row = {"Key": "leasehold//name/e/7f.0", "CreateIndex": 7, "ModifyIndex": 8, "Session": "5-a", "LockIndex": 1}
    return json.dumps({**row, "Value": base64.b64encode(ABOUT).decode()}).encode()


def _of_consul(row: bytes, chance: random.Random) -> NameStatus:
    rows = [row, *([_consul_row()] if chance.random() < 0.5 else [])]
    news = consul._news_in(Answer(200, {"x-consul-index": "9"}, b"[" + b",".join(rows) + b"]"))
    for one in news.entries:
        consul_keys.name_in(one.key, "")
    return key_queue.status_of("name", *key_queue.standing(news.entries), {}, 1.0)


def _zookeeper_row() -> bytes:
    name, stat = b"e-0123456789abcdef-0000000007", struct.pack(">qqqqiiiqiiq", 7, 7, 1, 1, 0, 0, 0, 5, 0, 0, 7)
    children = struct.pack(">i", 1) + struct.pack(">i", len(name)) + name + stat
    return struct.pack(">i", len(children)) + children + struct.pack(">i", len(ABOUT)) + ABOUT + stat


def _of_zookeeper(row: bytes, chance: random.Random) -> NameStatus | None:
    length = max(int.from_bytes(row[:4]), 0)
    names, _ = zookeeper_messages.children_in(row[4 : 4 + length])
    data, stat = zookeeper_messages.data_in(row[4 + length :])
    queue = zookeeper_queue.queue_in(names)
    shown = [zookeeper_queue.Shown(node, node.token or stat.created, about_in(data)) for node in queue]
    return zookeeper_queue.status_of("name", shown, 1.0)


REDIS_ROW = (b"1000000", b"7;1,0,0,none holder 5 5 0 99999999 0 worker@host:1", b"exclusive 1 5 5 - 1 1 other", b"9e9")


def _redis_row() -> bytes:
    return b"\n".join(REDIS_ROW)


def _of_redis(row: bytes, chance: random.Random) -> NameStatus | None:
    now, head, place, until = (*row.split(b"\n"), b"", b"", b"")[:4]
    redis_status.is_idle(head)
    held = chance.choice([[], [b"a", b"5 5 5 0 99999999 0 worker@host:1"], [b"a", head]])
    reply = [now, head if chance.random() < 0.9 else None, held, [b"w"], [b"w", until], [b"w", place]]
    return redis_status.status_from("name", reply)


Status = Callable[[bytes, random.Random], NameStatus | None]
ROWS: dict[str, tuple[Callable[[], bytes], Status]] = {
    "etcd": (_etcd_row, _of_etcd),
    "consul": (_consul_row, _of_consul),
    "zookeeper": (_zookeeper_row, _of_zookeeper),
    "redis": (_redis_row, _of_redis),
}


def read_many(engine: str, seed: int, rows: int) -> None:
    """Change rows, and read them."""
    chance, (row, status) = random.Random(f"{engine} {seed}"), ROWS[engine]
    right = row()
    assert status(right, random.Random(0)) is not None, "the row that all others are made of can be read"
    outcomes: Counter[str] = Counter()
    for _ in range(rows):
        stored = changed(right, chance, SNIPPETS) if chance.random() < 0.9 else chance.randbytes(chance.randrange(99))
        try:
            found = status(stored, chance)
        except STRANGE:
            outcomes["refused"] += 1
        else:
            repr(found)
            outcomes["read"] += 1
    assert min(outcomes["refused"], outcomes["read"]) > rows // 50, outcomes


@pytest.mark.parametrize("engine", ROWS)
def test_any_row_is_read_or_refused(engine: str) -> None:
    read_many(engine, 20_261, BY_DAY)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("engine", ROWS)
def test_hundreds_of_thousands_of_rows_are_read_or_refused(engine: str, part: int) -> None:
    read_many(engine, part, BY_NIGHT)


# A file can be written to by anybody who may write to it

NUMBERS = (0, 1, -1, 7, 10**6, 10**15, 2**62, 2**63 - 1, -(2**63), 2**53)
TEXTS = ("", "a", "0" * 32, "\x00", "\u202e", "x" * 5000, "shared", "permit", "worker@host:1", b"\xff\xfe")
COLUMNS = {
    "lease": ("token turn_since closed_until crowd since expires lasts beat delay", "holder about"),
    "seat": ("token since expires lasts beat delay", "holder about"),
    "waiter": ("seq most since until", "holder address about"),
}


def write_anything(file: sqlite3.Connection, chance: random.Random) -> None:
    """Have a row for the name in some of the tables, with values that the columns can hold."""
    for table, (numbers, texts) in COLUMNS.items():
        file.execute(f"DELETE FROM {table}")
        for _ in range(chance.choice([1, 1, 2]) if table == "lease" or chance.random() < 0.5 else 0):
            row: dict[str, Any] = {"namespace": "", "name": "name"}
            row |= {column: chance.choice(NUMBERS) for column in numbers.split()}
            row |= {column: chance.choice(TEXTS) for column in texts.split()}
            if table != "lease":
                row["mode"] = chance.choice(["shared", "permit"])
            values = [f"CAST(:{column} AS TEXT)" if isinstance(row[column], bytes) else f":{column}" for column in row]
            file.execute(f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({', '.join(values)})", row)
    file.commit()


def use(locks: Leasehold, chance: random.Random) -> str:
    """Do something with the name; what came of it."""
    lock = locks.lock("name", ttl=30, wait=0) if chance.random() < 0.5 else locks.permits("name", 2, ttl=30, wait=0)
    wishes: list[Callable[[], object]] = [
        lambda: lock.acquire().release(),
        lambda: locks.status("name"),
        lambda: list(locks.names()),
        lambda: locks.force_release("name", because="a test"),
    ]
    try:
        chance.choice(wishes)()
    except LeaseholdError as error:
        return type(error).__name__
    return "done"


def use_many(folder: Path, seed: int, rows: int) -> None:
    """Write rows into a file, and use the name that they are about."""
    chance, outcomes = random.Random(seed), Counter[str]()
    with Leasehold(f"sqlite:///{folder}/leases.db") as locks:
        locks.lock("name").acquire().release()
        with contextlib.closing(sqlite3.connect(folder / "leases.db", timeout=30)) as file:
            for _ in range(rows):
                write_anything(file, chance)
                outcomes[use(locks, chance)] += 1
    assert outcomes["done"] > rows // 10, outcomes
    assert outcomes["NotAcquired"], outcomes


def test_a_file_with_any_rows_is_used_or_refused(tmp_path: Path) -> None:
    use_many(tmp_path, 20_261, ON_FILE_BY_DAY)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_tens_of_thousands_of_files_are_used_or_refused(tmp_path: Path, part: int) -> None:
    use_many(tmp_path, part, ON_FILE_BY_NIGHT)
