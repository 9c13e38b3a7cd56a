"""The embedded engine: leases in a SQLite file, for all processes of one host. No server, no configuration.

An exclusive lease on a free name costs one statement to take and one to give back. Everything else is the lease table
of `leasehold.core.table`, run inside a transaction. Waiters sleep until a datagram wakes them; nobody polls.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Coroutine, Sequence
from typing import Any

from leasehold.core import table
from leasehold.core.engine import (
    Busy,
    Capability,
    Engine,
    EngineFamily,
    Facts,
    Grant,
    Guarantee,
    Incumbent,
    NameStatus,
    Purpose,
    Renewal,
    Suspect,
    Want,
)
from leasehold.core.table import Ask, Place, Refused, Released, Taken
from leasehold.core.worlds import World
from leasehold.errors import GuaranteeWarning, LeaseholdError, quoted
from leasehold.mounts import GONE_AT_REBOOT, read_mounts
from leasehold.wires.boot_clock import Clock
from leasehold.wires.local_wake import Asking, BlockingWaiting, Post, Waiting, can_push
from leasehold.wires.sqlite import Database, check_ceiling
from leasehold.wires.sqlite_connection import Connection
from leasehold.wires.sqlite_file import LeaseFile, ReadMounts, lease_file
from leasehold.wires.sqlite_rows import (
    ALL,
    NAMES,
    Record,
    release_alone,
    release_to_queue,
    renew,
    take_free,
    take_in_turn,
)
from leasehold.wires.sqlite_upkeep import START, Position, sweep
from leasehold.worlds import BlockingWorld

log = logging.getLogger("leasehold")

LEAST_TTL = 0.05
RENEWED_AT_ONCE = 100
"""Leases renewed in one transaction; others wait for no longer than that takes."""
SWEEP_EVERY = 256
"""Takes after which some names are swept: at least as many names as can have been added meanwhile, twice over."""
MOST_REMEMBERED = 1024
"""Names, or holders, of which an engine remembers something that saves work."""
TRIES_TO_WAKE = 5

GUARANTEE = Guarantee(
    not_guaranteed=(
        "Nothing beyond this host: other machines do not see these leases, so the file is refused on file systems that "
        "machines share. Nothing when the file is deleted, replaced or restored from a copy while leases are held: "
        "processes notice within a second of use, but leases granted before no longer exclude new ones. A holder that "
        "stalls past its TTL still believes in its lease until it looks; only a fence stops its writes."
    ),
    tokens=(
        "Microseconds of the wall clock, or one more than the name's last token where that is higher. They never fall, "
        "whatever the clock does, over crashes, power cuts and reboots: no token is handed out above a ceiling that is "
        "not yet synced to the disk. If the file itself is lost or an older copy is put back, they go on from the wall "
        "clock, which must then not be more than a minute behind."
    ),
    fit_for_correctness=True,
    timekeeper="This host's clock since boot, which nobody can set and which counts suspended time.",
    ends=(
        "Release, the end of its TTL, release by force, or a reboot of the host: whoever held a lease died with the "
        "boot, so the next one need not wait."
    ),
    loss_told=(
        "At once, by the holder's own clock, when the TTL has run out (less a margin of 1 % and 5 ms). After a release "
        "by force: at the next renewal, which is a third of the TTL at most."
    ),
    takeover=(
        "The rest of the TTL after a holder died. A waiter whose process is gone is skipped at once; one that hangs "
        "costs those behind it 2 s each."
    ),
    failover="There is none: the file is on one host, and so are all who use it.",
    proxies=(
        "None are involved. Containers of one host may share the file if they share its folder, its user and the boot "
        "id of the host. One with a boot id of its own must not: it would take the leases of the others for those of "
        "an earlier boot, and end them."
    ),
    enforce_with="A fence at the resource: leasehold.fences.",
)


class SqliteEngine:
    """The operations on a lease file, in either world."""

    def __init__(
        self, facts: Facts, namespace: str, *, world: World, database: Database, post: Post, waiting: Waiting
    ) -> None:
        self.facts, self.world = facts, world
        self._namespace = namespace
        self._database, self._post, self._waiting = database, post, waiting
        # Names that were last seen with a queue or with several holders: there a single statement will not do.
        self._crowded: set[str] = set()
        # Names that surely have a row, unless somebody has swept it away. Holders of our own that stand in a queue.
        self._known: set[str] = set()
        self._queued: set[str] = set()
        self._takes_until_sweep = 1 + int(world.chance() * SWEEP_EVERY)
        self._swept_to: Position = START

    async def take(
        self, want: Want, *, until: float, patience: float | None = None, suspect: Suspect | None = None
    ) -> Grant | Busy:
        """Take the name and mint its token in one atomic step, or say why not."""
        self._takes_until_sweep -= 1
        if self._takes_until_sweep <= 0:
            self._takes_until_sweep = SWEEP_EVERY
            self._swept_to = await self._database.carry_out(until, sweep, self._swept_to)
        name = want.name
        if suspect is None and want.mode == "exclusive" and name not in self._crowded:
            known = name in self._known
            token = self._database.try_once(take_free, self._namespace, want, known)
            if token:
                if not known:
                    remember(self._known, name)
                return Grant(token)
            self._known.discard(name)
        answer = await self._database.carry_out(until, self._take, want, patience, suspect)
        if isinstance(answer, Taken):
            if answer.wake is not None:
                await self._wake(name, answer.wake, until)
            return Grant(answer.token)
        seat = answer.incumbent
        incumbent = Incumbent(seat.token, seat.beat, seat.lasts / 1e6, seat.about) if seat is not None else None
        return Busy(answer.ask_again / 1e6, incumbent)

    def _take(
        self, connection: Connection, want: Want, patience: float | None, suspect: Suspect | None
    ) -> Taken | Refused:
        address = "" if patience is None else self._waiting.address()
        connection.execute("BEGIN IMMEDIATE")
        now, stamp = connection.now(), connection.stamp()
        comes_back = want.holder in self._queued
        simply = comes_back and suspect is None and want.mode == "exclusive"
        if simply and take_in_turn(connection, self._namespace, want, now, stamp):
            connection.execute("COMMIT")
            self._queued.discard(want.holder)
            return Taken(stamp)
        ask = Ask.of(want, patience, address, suspect)
        record = Record(connection, self._namespace, want.name)
        record.load_queue_for(ask, now, comes_back=comes_back)
        answer = table.take(record.entry, ask, now, stamp)
        self._commit(connection, record, want.name)
        if isinstance(answer, Refused) and patience is not None:
            remember(self._queued, want.holder)
        else:
            self._queued.discard(want.holder)
        return answer

    def _commit(self, connection: Connection, record: Record, name: str) -> None:
        check_ceiling(connection, record)
        record.save()
        connection.execute("COMMIT")
        if record.crowd:
            remember(self._crowded, name)
        else:
            self._crowded.discard(name)

    async def _wake(self, name: str, place: Place | None, until: float) -> None:
        """Wake a waiter. One whose process is gone leaves the queue, and the next is woken.

        What led to this is done and cannot fail any more. A waiter that is not woken asks again by itself, later.
        """
        try:
            while place is not None and not await self._told(place):
                place = await self._database.carry_out(until, self._pass_by, name, place)
        except LeaseholdError as error:
            log.warning("a waiter for %s could not be woken and will ask again later: %s", ascii(name), error)

    def _pass_by(self, connection: Connection, name: str, unheard: Place) -> Place | None:
        connection.execute("BEGIN IMMEDIATE")
        now = connection.now()
        record = Record(connection, self._namespace, name)
        record.load_queue(2, now, unheard.holder)
        wake = table.pass_by(record.entry, unheard, now)
        self._commit(connection, record, name)
        return wake

    async def _told(self, place: Place) -> bool:
        """Whether somebody is there to be woken."""
        for _ in range(TRIES_TO_WAKE):
            sent = self._post.send(place.address, place.holder)
            if sent != "full":
                return sent == "sent"
            await self.world.sleep(0.001)
        self._post.mark_lost(place.address, place.holder)
        return True

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, None]:
        """Return when the queued asker is woken, or at `until`."""
        # No coroutine of its own: each of thousands of waiting tasks would keep one.
        return self._waiting.wait(want.holder, max(until - self.world.now(), 0.0))

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Prolong each lease that is still held; False for those that are not."""
        kept: list[bool] = []
        for start in range(0, len(leases), RENEWED_AT_ONCE):
            batch = leases[start : start + RENEWED_AT_ONCE]
            kept += await self._database.carry_out(until, self._renew, batch)
        return kept

    def _renew(self, connection: Connection, leases: Sequence[Renewal]) -> list[bool]:
        connection.execute("BEGIN IMMEDIATE")
        now = connection.now()
        kept = [renew(connection, self._namespace, lease, now) for lease in leases]
        connection.execute("COMMIT")
        return kept

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue. False when it was not held by this holder any more."""
        if name not in self._crowded and self._database.try_once(release_alone, self._namespace, name, holder):
            return True
        answer = await self._database.carry_out(until, self._release, name, holder)
        self._queued.discard(holder)
        if answer.wake is not None:
            await self._wake(name, answer.wake, until)
        return answer.held

    def _release(self, connection: Connection, name: str, holder: str) -> Released:
        passed_on = release_to_queue(connection, self._namespace, name, holder)
        if passed_on is not None:
            remember(self._crowded, name)
            return passed_on
        connection.execute("BEGIN IMMEDIATE")
        now = connection.now()
        record = Record(connection, self._namespace, name)
        record.load_queue(2, now, holder)  # the head, and who follows if the head itself leaves
        answer = table.release(record.entry, holder, now)
        self._commit(connection, record, name)
        return answer

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits; None when the file knows nothing of this name."""
        return await self._database.carry_out(until, self._status, name)

    def _status(self, connection: Connection, name: str) -> NameStatus | None:
        connection.execute("BEGIN")
        now = connection.now()
        record = Record(connection, self._namespace, name)
        record.load_queue(ALL, now)
        connection.execute("COMMIT")
        if not record.known:
            return None
        entry = record.entry
        table.renew(entry, "", 0, 0, now)  # of nobody's lease: drops what has run out, and no more
        return table.status_of(name, entry, now)

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their code points, following `after`."""
        return await self._database.carry_out(until, self._names, after or "", limit)

    def _names(self, connection: Connection, after: str, limit: int) -> list[str]:
        found = connection.execute(NAMES, (self._namespace, after, connection.now(), limit))
        return [name for [name] in found.fetchall()]

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name and mint a token above theirs; returns that token."""
        token, wake = await self._database.carry_out(until, self._force_release, name)
        await self._wake(name, wake, until)
        return token

    def _force_release(self, connection: Connection, name: str) -> tuple[int, Place | None]:
        connection.execute("BEGIN IMMEDIATE")
        now, stamp = connection.now(), connection.stamp()
        record = Record(connection, self._namespace, name)
        record.load_queue(1, now)
        answer = table.force_release(record.entry, now, stamp)
        self._commit(connection, record, name)
        return answer

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Warn when the file does not outlive a reboot, and a correctness lock is asked for."""
        mount = await self._database.mount(until)
        if purpose == "correctness" and mount is not None and mount.kind in GONE_AT_REBOOT:
            warnings.warn(
                f"lease file {quoted(str(self._database.file.path))} is on {mount.kind} and will be gone after a "
                "reboot: tokens then go on from the wall clock, and fall if it was set back; put the file on a disk",
                GuaranteeWarning,
                stacklevel=2,
            )

    async def close(self) -> None:
        """Give back connections and mailboxes. The engine may be used again and then reconnects."""
        self._waiting.close()
        await self._database.close()

    def forked(self) -> None:
        """In a forked child: let go of what was inherited, without touching it."""
        self._waiting.forked()
        self._database.forked()


def remember(names: set[str], name: str) -> None:
    """Add it, after forgetting all when they have become too many."""
    if len(names) >= MOST_REMEMBERED:
        names.clear()
    names.add(name)


class SqliteFamily:
    """One lease file, and how to reach it in each world."""

    def __init__(
        self,
        file: LeaseFile,
        namespace: str,
        *,
        clock: Clock | None = None,
        read_mounts: ReadMounts = read_mounts,
        push: bool = True,
    ) -> None:
        """`clock` and `read_mounts` are the system's own, and `push` is possible, except in tests."""
        self._file, self._namespace, self._clock, self._read_mounts = file, namespace, clock, read_mounts
        self._push = push and can_push(file.path)
        missing = {Capability.TOKEN_SURVIVES_FAILOVER} | (set() if self._push else {Capability.PUSH_WAIT})
        self.facts = Facts(
            "sqlite",
            file.address,
            frozenset(Capability) - missing,
            GUARANTEE,
            LEAST_TTL,
            place_stays=table.PLACE_STAYS,
        )

    def blocking(self) -> Engine:
        """An engine whose operations block. Threads may share it."""
        world, post = BlockingWorld(), Post(self._file.path)
        database = Database(self._file, world, None, self._clock, self._read_mounts)
        waiting = BlockingWaiting(post) if self._push else Asking(world)
        return SqliteEngine(self.facts, self._namespace, world=world, database=database, post=post, waiting=waiting)

    def asyncio(self) -> Engine:
        """An engine for the running event loop. Tasks may share it."""
        from leasehold.wires.local_wake_asyncio import AsyncWaiting, LoopThreads
        from leasehold.worlds import AsyncWorld

        world, post = AsyncWorld(), Post(self._file.path)
        database = Database(self._file, world, LoopThreads(), self._clock, self._read_mounts)
        waiting = AsyncWaiting(post) if self._push else Asking(world)
        return SqliteEngine(self.facts, self._namespace, world=world, database=database, post=post, waiting=waiting)


def open_engine(on: str | object, *, namespace: str, client_label: str) -> EngineFamily:  # noqa: ARG001
    """The embedded engine of a URL or a path. Nothing is opened yet; `client_label` names connections of servers."""
    return SqliteFamily(lease_file(on), namespace)
