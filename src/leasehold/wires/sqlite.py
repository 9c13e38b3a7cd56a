"""A lease file as one engine uses it: a pool of connections, and the loop that carries out a step.

Nothing here waits inside SQLite: a step that finds somebody else writing has done nothing, and is tried again after a
pause that belongs to the caller's world.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, TypeVarTuple

from leasehold.core.worlds import World
from leasehold.errors import EngineError, EngineUnavailable, LeaseholdError, quoted
from leasehold.mounts import Mount
from leasehold.wires.boot_clock import Clock, system_clock
from leasehold.wires.sqlite_connection import Connection, busy_too_long, connect, explained, is_busy
from leasehold.wires.sqlite_file import LeaseFile, ReadMounts
from leasehold.wires.sqlite_rows import Record
from leasehold.wires.sqlite_upkeep import checkpoint, raise_ceiling

TRIES_AT_ONCE = 6
"""So often a step is tried again without a pause: others write for some tens of microseconds, no pause is as short."""
FIRST_PAUSE, LONGEST_PAUSE = 0.000_05, 0.005
SHORTEST_OPENING = 0.1
"""Even a caller in a hurry lets the file be opened, in seconds."""
LONGEST_FORK_DELAY = 1.0
MOST_IDLE = 16
CHECKPOINT_EVERY = 500
"""Steps, each of which writes a few pages."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_NEVER = float("inf")
_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
log = logging.getLogger("leasehold")


class OtherThreads(Protocol):
    """Where an event loop has work done that waits for the disk."""

    async def run(self, work: Callable[[], None]) -> None:
        """Run it, and wait for it without blocking the loop."""
        ...

    def start(self, work: Callable[[], None]) -> None:
        """Run it without waiting for it."""
        ...


class CeilingReached(Exception):
    """A token may not be handed out before a higher ceiling is safe on the disk. Nothing was done."""

    def __init__(self, token: int) -> None:
        super().__init__(token)
        self.token = token


def check_ceiling(connection: Connection, record: Record) -> None:
    """Within a transaction: raise `CeilingReached` when a token was minted that is not safe to hand out yet."""
    token = record.entry.token
    if record.minted and token >= connection.ceiling:
        [connection.ceiling] = connection.execute("SELECT ceiling FROM meta").fetchone()
        if token >= connection.ceiling:
            raise CeilingReached(token)


class Database:
    """One engine's path to its lease file: a pool of connections, each lent for one step at a time."""

    def __init__(
        self, file: LeaseFile, world: World, desk: OtherThreads | None, clock: Clock | None, read_mounts: ReadMounts
    ) -> None:
        """Without `desk`, what waits for the disk is done on the spot."""
        self.file, self._world, self._desk = file, world, desk
        self._clock, self._read_mounts = clock, read_mounts
        self._idle: list[Connection] = []
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._steps_since_checkpoint = 0
        _forks.watch(self)

    def try_once(self, step: Callable[[Connection, *Ts], T], *args: *Ts) -> T | None:
        """Run a step of one statement; None when that is not possible at once, so that `carry_out` has to do it.

        This is the path of every lease that nobody else wants, hence as short as it can be.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        try:
            answer = step(connection, *args)
        except BaseException as error:  # noqa: BLE001 -- raised again, unless somebody else was writing
            self._undo(connection, error, until=_NEVER)
            answer = None
        idle = self._idle
        if len(idle) < MOST_IDLE:
            idle.append(connection)
        else:
            self._drop(connection)
        if self._desk is not None:
            self._count_steps(self._desk)
        return answer

    async def carry_out(self, until: float, step: Callable[[Connection, *Ts], T], *args: *Ts) -> T:
        """Run a step on a connection, again while somebody else is writing, but not past `until`.

        A step begins and commits its own transaction.
        """
        pause, at_once = FIRST_PAUSE, TRIES_AT_ONCE
        while True:
            connection = self._borrow()
            if connection is None:
                await self._open_another(until)
                continue
            try:
                answer = step(connection, *args)
            except BaseException as error:  # noqa: BLE001 -- raised again, unless it is to be tried again
                unsafe_token = self._undo(connection, error, until)
            else:
                self._give_back(connection)
                if self._desk is not None:
                    self._count_steps(self._desk)
                return answer
            if unsafe_token:
                await self._raise_ceiling(connection, unsafe_token, until)
                continue
            self._give_back(connection)
            if at_once:
                at_once -= 1
                _let_others_run()
            else:
                await self._world.sleep(pause * (0.5 + self._world.chance()))
                pause = min(pause * 2, LONGEST_PAUSE)

    def _undo(self, connection: Connection, error: BaseException, until: float) -> int:
        """After a failed step: raise what the caller should see, or return if it is to be tried again.

        Returns the token that is not safe to hand out yet, or 0 when somebody else was writing.
        """
        if isinstance(error, CeilingReached):
            connection.abort()
            return error.token
        if isinstance(error, sqlite3.Error) and is_busy(error):
            connection.abort()
            if self._world.now() < until:
                return 0
            self._give_back(connection)
            raise EngineUnavailable(busy_too_long(connection.path)) from None
        self._drop(connection)
        if isinstance(error, EngineUnavailable):  # it had the wrong file open, and so have the others
            self._drop_idle()
        if isinstance(error, sqlite3.Error):
            raise explained(error, connection.path) from error
        if isinstance(error, OverflowError):  # somebody else has written to the file: times of ours do not come near
            path = quoted(str(connection.path))
            raise EngineError(f"lease file {path} holds numbers so large that no more can be added to them") from error
        raise error

    def _borrow(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _give_back(self, connection: Connection) -> None:
        if len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()

    def _drop_idle(self) -> None:
        while self._idle:
            self._drop(self._idle.pop())

    async def _open_another(self, until: float) -> None:
        patience = max(until - self._world.now(), SHORTEST_OPENING)

        def open_one() -> None:
            with _forks.held_off():
                connection = connect(self.file, self._clock or system_clock(), self._read_mounts, patience=patience)
                if self._desk is not None:
                    connection.execute("PRAGMA wal_autocheckpoint = 0")
                self._open.add(connection)
            self._idle.append(connection)  # for the one who waits for it, however many are idle

        await self._wait_for_disk(open_one)

    async def _raise_ceiling(self, connection: Connection, token: int, until: float) -> None:
        patience = max(until - self._world.now(), 0.0)

        def raise_it() -> None:
            try:
                raise_ceiling(connection, token, patience)
            except BaseException as error:
                self._drop(connection)
                if not isinstance(error, sqlite3.Error):
                    raise
                if is_busy(error):
                    raise EngineUnavailable(busy_too_long(connection.path)) from None
                raise explained(error, connection.path) from error
            self._give_back(connection)

        await self._wait_for_disk(raise_it)

    async def _wait_for_disk(self, work: Callable[[], None]) -> None:
        if self._desk is None:
            work()
        else:
            await self._desk.run(work)

    def _count_steps(self, desk: OtherThreads) -> None:
        """An event loop leaves it to another thread to move commits from the log into the file, and to sync them."""
        self._steps_since_checkpoint += 1
        if self._steps_since_checkpoint == CHECKPOINT_EVERY:  # counted anew when the checkpoint is over
            desk.start(self._checkpoint)

    def _checkpoint(self) -> None:
        try:
            with _forks.held_off():
                connection = connect(self.file, self._clock or system_clock(), self._read_mounts, patience=1.0)
                try:
                    checkpoint(connection)
                finally:
                    connection.close()
        except (LeaseholdError, sqlite3.Error):
            # The next step meets the same trouble, and tells its caller.
            log.warning("lease file %s could not be checkpointed", ascii(str(self.file.path)), exc_info=True)
        finally:
            self._steps_since_checkpoint = 0

    async def mount(self, until: float) -> Mount | None:
        """The file system that the file is on, where the system tells."""
        return await self.carry_out(until, lambda connection: connection.mount)

    async def close(self) -> None:
        """Close every connection that is not in use just now."""
        if self._idle:
            await self._wait_for_disk(self._drop_idle)

    def hold_still(self, deadline: float) -> Callable[[], None]:
        """Lend nothing, and wait until all that was lent is given back; returns how to go on."""
        held: list[Connection] = []
        while len(held) < len(self._open) and time.monotonic() < deadline:
            try:
                held.append(self._idle.pop())
            except IndexError:
                time.sleep(0.000_2)
        return lambda: self._idle.extend(held)

    def forked(self) -> None:
        """In a forked child: never touch what the parent has opened."""
        for connection in list(self._open):
            if connection.disown():
                self._open.discard(connection)
                if connection in self._idle:
                    self._idle.remove(connection)


class _Forks:
    """Keeps forks and SQLite apart: a child of a fork amid a call would find SQLite's own locks held for ever."""

    def __init__(self) -> None:
        self._databases: weakref.WeakSet[Database] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._go_on: list[Callable[[], object]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    @contextlib.contextmanager
    def held_off(self) -> Iterator[None]:
        """Let nobody fork meanwhile.

        An interruption at the worst moment may leave a lock shut. Here it would only have kept forks away, so nobody
        waits for it for ever.
        """
        lock = self._lock
        if lock.acquire(timeout=LONGEST_FORK_DELAY):
            try:
                yield
            finally:
                lock.release()
        else:
            self._lock = threading.Lock()
            yield

    def watch(self, database: Database) -> None:
        """Take care of this database in forks."""
        with self.held_off():
            self._databases.add(database)

    def _before(self) -> None:
        deadline = time.monotonic() + LONGEST_FORK_DELAY
        if self._lock.acquire(timeout=LONGEST_FORK_DELAY):
            self._go_on.append(self._lock.release)
        self._go_on += [database.hold_still(deadline) for database in list(self._databases)]

    def _in_parent(self) -> None:
        while self._go_on:
            self._go_on.pop()()

    def _in_child(self) -> None:
        self._lock, self._go_on = threading.Lock(), []
        for database in list(self._databases):
            database.forked()


_forks = _Forks()
