"""A worker process that does what a test tells it to: take leases, hold them, write, and report.

    python -m leasehold.testing.worker '{"url": "…", "namespace": "…", "world": "blocking", "resource": "…"}'

It reads one command a line as JSON and answers each with one line, in whatever order they finish; the answer to a
command that raised names the error's class. Times are on the clock of `leasehold.worlds.boot_clock`, which all
processes of a host share. Tests start it through `leasehold.testing.processes`, and may stop, thaw and kill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from leasehold import AsyncLease, AsyncLeasehold, AsyncLock, Leasehold, LeaseLost
from leasehold.fences import SqliteFence
from leasehold.testing.facade import as_async
from leasehold.worlds import boot_clock

Answer = dict[str, Any]
RESOURCE = "the resource"


@dataclass
class Holding:
    """A lease that this worker has, and what it was told about it."""

    lease: AsyncLease
    told: asyncio.Event = field(default_factory=asyncio.Event)
    told_at: float | None = None

    def listen(self) -> None:
        """Note when the loss is told, by the callback."""
        loop = asyncio.get_running_loop()

        def note(_loss: LeaseLost) -> None:
            self.told_at = boot_clock()
            loop.call_soon_threadsafe(self.told.set)

        self.lease.on_lost(note)


class Resource:
    """What the lock protects: a fenced register and a plain one, in a database that all workers share."""

    def __init__(self, path: str) -> None:
        """Nothing is opened before it is used."""
        self._path = path

    def create(self) -> None:
        """Make the tables."""
        with contextlib.closing(self._open()) as database:
            database.execute("CREATE TABLE register (kind TEXT, value TEXT)")
            SqliteFence(database).create()

    def write(self, token: int, value: str) -> None:
        """Write if the token is not stale, else raise `StaleToken`."""
        with contextlib.closing(self._open()) as database, SqliteFence(database).writing(RESOURCE, token):
            database.execute("INSERT INTO register VALUES ('fenced', ?)", (value,))

    def write_unchecked(self, value: str) -> None:
        """Write as a resource without a fence would."""
        with contextlib.closing(self._open()) as database:
            database.execute("INSERT INTO register VALUES ('plain', ?)", (value,))

    def values(self, kind: str) -> list[str]:
        """All that was written, in order."""
        with contextlib.closing(self._open()) as database:
            return [value for (value,) in database.execute("SELECT value FROM register WHERE kind = ?", (kind,))]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10, isolation_level=None)


class Worker:
    """Carries out commands; each `do_…` method is one."""

    def __init__(self, locks: AsyncLeasehold, resource: Resource) -> None:
        """Hold nothing yet."""
        self._locks, self._resource = locks, resource
        self._holdings: dict[str, Holding] = {}
        self._leave: dict[str, asyncio.Event] = {}

    def _lock(self, name: str, kind: str = "lock", of: int = 1, **terms: Any) -> AsyncLock:
        if kind == "permits":
            return self._locks.permits(name, of, **terms)
        return self._locks.shared(name, **terms) if kind == "shared" else self._locks.lock(name, **terms)

    def _hold(self, lease: AsyncLease) -> Answer:
        holding = self._holdings[lease.name] = Holding(lease)
        holding.listen()
        return {"token": lease.token, "at": boot_clock(), "valid_until": lease.valid_until, "holder": lease.holder}

    async def do_acquire(self, **terms: Any) -> Answer:
        """Take a lease and keep it."""
        return self._hold(await self._lock(**terms).acquire())

    async def do_release(self, name: str) -> Answer:
        """Give the lease back."""
        await self._holdings.pop(name).lease.release()
        return {"at": boot_clock()}

    async def do_block(self, report: Callable[[Answer], None], write: str | None = None, **terms: Any) -> Answer:
        """Hold a lease in a ``with`` block until told to leave; then write, fenced, as the block's last act."""
        leave = self._leave[terms["name"]] = asyncio.Event()
        async with self._lock(**terms) as lease:
            report(self._hold(lease))
            await leave.wait()
            if write is not None:
                self._resource.write(lease.token, write)
        return {"at": boot_clock()}

    async def do_leave(self, name: str) -> Answer:
        """End the block that holds this name."""
        self._leave[name].set()
        return {}

    async def do_write(self, name: str, value: str) -> Answer:
        """Write to the fenced register with the lease's token, believed or not."""
        self._resource.write(self._holdings[name].lease.token, value)
        return {"at": boot_clock()}

    async def do_write_unchecked(self, value: str) -> Answer:
        """Write to the plain register."""
        self._resource.write_unchecked(value)
        return {"at": boot_clock()}

    async def do_look(self, name: str) -> Answer:
        """What the lease says of itself, without waiting."""
        lease = self._holdings[name].lease
        return {"lost": lease.lost, "remaining": lease.remaining, "token": lease.token, "at": boot_clock()}

    async def do_check(self, name: str) -> Answer:
        """Raise `LeaseLost` unless the lease may be believed."""
        self._holdings[name].lease.check()
        return {"at": boot_clock()}

    async def do_await_loss(self, name: str) -> Answer:
        """Wait until the loss was told by the callback, and by the event."""
        holding = self._holdings[name]
        by_event = await holding.lease.wait_lost()
        event_at = boot_clock()
        await holding.told.wait()
        return {"by_event": by_event, "event_at": event_at, "callback_at": holding.told_at}


async def obey(worker: Worker, answers: Callable[[Answer], None]) -> None:
    """Carry out commands from standard input until it ends, each in a task of its own."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with asyncio.TaskGroup() as group:
        while line := await commands.readline():
            group.create_task(_carry_out(worker, json.loads(line), answers))


async def _carry_out(worker: Worker, command: Answer, answers: Callable[[Answer], None]) -> None:
    number, what = command.pop("number"), command.pop("do")
    if what == "block":
        command["report"] = lambda answer: answers({"number": number, "entered": answer})
    method: Callable[..., Awaitable[Answer]] = getattr(worker, f"do_{what}")
    try:
        answers({"number": number, "answer": await method(**command)})
    except Exception as error:  # noqa: BLE001 -- the test judges it
        notes: list[str] = getattr(error, "__notes__", [])
        answers({"number": number, "error": type(error).__name__, "text": str(error), "notes": notes})


def _say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main(url: str, namespace: str, world: str, resource: str) -> None:
    """Open a client of the given world, and obey."""
    kind: Callable[..., Leasehold | AsyncLeasehold] = Leasehold if world == "blocking" else AsyncLeasehold
    locks = as_async(kind(url, namespace=namespace, label="worker"))
    _say({"ready": True})
    try:
        await obey(Worker(locks, Resource(resource)), _say)
    finally:
        await locks.close()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
