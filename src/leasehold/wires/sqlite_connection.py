"""One connection to a lease file: how a file is made, opened and checked, and what SQLite's errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from leasehold.errors import (
    EngineError,
    EngineUnavailable,
    InvalidURL,
    LeaseholdError,
    NotSupported,
    OutcomeUnknown,
    quoted,
)
from leasehold.mounts import Mount
from leasehold.wires.boot_clock import Clock
from leasehold.wires.sqlite_file import LeaseFile, ReadMounts, check_file, find_place
from leasehold.wires.sqlite_rows import SCHEMA
from leasehold.wires.sqlite_upkeep import CEILING_STEP, adopt_boot

APPLICATION_ID = 0x4C454153
SCHEMA_VERSION = 1
OLDEST_SQLITE = (3, 37, 0)
LOOK_EVERY = 100_000
"""Microseconds after which a connection looks whether its file is still the one at the path."""
PAGE_SIZE = 1024
"""Each step writes whole pages, and syncs them later: small ones cost less. Names so long that a row does not fit into
a quarter of one (some 150 bytes with who holds it) need a second page, and cost more."""

NUMBERS_WARN = (3, 12) <= sys.version_info < (3, 12, 4)
"""Whether this Python takes the ``?1`` of a statement for a name, and warns when its values come in their order."""

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})


Execute = Callable[..., sqlite3.Cursor]


def _quietly(execute: Execute) -> Execute:
    """Give the values of numbered places by their numbers, as such a Python wants them."""

    def execute_quietly(statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        numbered = {str(number): value for number, value in enumerate(values, 1)} if "?1" in statement else values
        return execute(statement, numbered)

    return execute_quietly


class Connection:
    """A connection and what it knows of its file. Used by one thread at a time."""

    __slots__ = (
        "__weakref__", "_disowned", "_identity", "_look_at", "_pid", "_raw", "_read_clock", "ceiling", "clock",
        "execute", "mount", "path", "stamp",
    )  # fmt: skip

    def __init__(self, raw: sqlite3.Connection, path: Path, identity: tuple[int, int], clock: Clock) -> None:
        self._raw, self._identity, self._pid = raw, identity, os.getpid()
        self.path, self.clock, self._read_clock, self.stamp = path, clock, clock.now, clock.stamp
        # One cursor for all: whoever asks a question takes all of its answer before asking the next one.
        self.execute: Execute = _quietly(raw.cursor().execute) if NUMBERS_WARN else raw.cursor().execute
        self.mount: Mount | None = None
        self.ceiling = 0
        """As last read. Tokens below it may be handed out; a higher one may have been made safe since."""
        self._disowned = False
        self._look_at = clock.now() + LOOK_EVERY

    def now(self) -> int:
        """The clock. Every now and then, raises when the file was deleted or replaced.

        Otherwise a process could go on alone, with locks that nobody else sees.
        """
        now = self._read_clock()
        if now >= self._look_at:
            self._look(now)
        return now

    def _look(self, now: int) -> None:
        self._look_at = now + LOOK_EVERY
        try:
            found = os.stat(self.path)  # noqa: PTH116 -- on the path of every lease: twice as fast
            there = (found.st_dev, found.st_ino)
        except OSError:
            there = None
        if there != self._identity:
            raise EngineUnavailable(
                f"lease file {quoted(str(self.path))} was deleted or replaced while in use: leases granted in the old "
                "one protect nothing any more; the next request opens the file that is there by then"
            )

    def abort(self) -> None:
        """Undo the transaction that a step has left open, if any."""
        if self._raw.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        """Close it; in a forked child, let go of it without touching it."""
        if not self.disown():
            # An interrupted step may have left a question half-asked: SQLite would put off the end of the transaction
            # until its cursor is gone, and nobody else could write.
            with contextlib.suppress(sqlite3.Error):
                self._raw.rollback()
            self._raw.close()

    def disown(self) -> bool:
        """Whether this is a forked child of the process that opened it; then it is never closed or freed.

        SQLite forbids a child to touch what its parent has opened; even closing it could break the parent's locks.
        """
        if os.getpid() == self._pid:
            return False
        if not self._disowned:
            import ctypes

            self._disowned = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._raw))
        return True

    def __del__(self) -> None:
        if hasattr(self, "_pid"):  # or it was interrupted while it was being made
            self.close()


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else was writing, so that nothing was done."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _BUSY


def explained(error: sqlite3.Error, path: Path) -> LeaseholdError:
    """Say in our words what SQLite's error means for the request, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    file, said = f"lease file {quoted(str(path))}", getattr(error, "sqlite_errorname", type(error).__name__)
    if code == sqlite3.SQLITE_FULL:
        return EngineUnavailable(
            f"{file} cannot be written, the disk is full ({said}); make room, nothing else is needed"
        )
    if code == sqlite3.SQLITE_READONLY:
        return EngineUnavailable(f"{file} is read-only ({said}); this user must be able to write to it and its folder")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return EngineUnavailable(f"{file} cannot be opened ({said}); check who may read and write it and its folder")
    if code == sqlite3.SQLITE_IOERR:
        return OutcomeUnknown(f"the disk failed under {file} ({said}); see the system's log")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return EngineError(
            f"{file} is damaged ({said}); stop its users, move it away with its -wal and -shm files, and start again: "
            "tokens then go on from the clock"
        )
    return EngineError(f"{file}: SQLite answered {said}: {error}")


def connect(file: LeaseFile, clock: Clock, read_mounts: ReadMounts, *, patience: float) -> Connection:
    """Open the lease file, after making it if there is none."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise NotSupported(
            f"the embedded engine needs SQLite {'.'.join(map(str, OLDEST_SQLITE))} or later, and this Python has "
            f"{sqlite3.sqlite_version}; use a newer Python, or an engine with a server, such as redis://"
        )
    path, mount = find_place(file, read_mounts)
    try:
        identity = check_file(path) or _create(path, clock)
        raw = _open(path, patience)
        connection = Connection(raw, path, identity, clock)
        connection.mount = mount
        _check_contents(connection, raw)
        raw.execute(f"PRAGMA synchronous = {file.synchronous}")
        for pragma in ("fullfsync", "checkpoint_fullfsync"):  # what a sync of the disk means on macOS
            raw.execute(f"PRAGMA {pragma} = on")
        connection.ceiling = adopt_boot(connection)
        raw.execute("PRAGMA busy_timeout = 0")
    except sqlite3.Error as error:
        if is_busy(error):
            raise EngineUnavailable(busy_too_long(path)) from error
        raise explained(error, path) from error
    except OSError as error:
        raise EngineUnavailable(f"lease file {quoted(str(path))} cannot be used: {error.strerror}") from error
    if check_file(path) != identity:
        raise EngineUnavailable(f"lease file {quoted(str(path))} was replaced while it was being opened; try again")
    return connection


def busy_too_long(path: Path) -> str:
    """For an error message: who could be in the way."""
    return (
        f"lease file {quoted(str(path))} was being written by somebody else all the time; look for a process that is "
        "stopped, or for a program that keeps a transaction open in this file"
    )


def _open(path: Path, patience: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode=rw",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,  # one thread at a time; the pool sees to it
    )


def _check_contents(connection: Connection, raw: sqlite3.Connection) -> None:
    path = quoted(str(connection.path))
    try:
        [owner], [version] = (raw.execute(f"PRAGMA {what}").fetchone() for what in ("application_id", "user_version"))
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB:
            raise
        owner = version = 0
    if owner != APPLICATION_ID:
        raise InvalidURL(
            f"{path} is not a lease file but something else; give the path of a file that does not exist yet"
        )
    if version != SCHEMA_VERSION:
        raise EngineError(
            f"lease file {path} was made by another version of Leasehold (its format is {version}, this one knows "
            f"{SCHEMA_VERSION}); let all programs that share the file use the same version"
        )
    [mode] = raw.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        raise EngineUnavailable(f"lease file {path} cannot be shared here: its journal is {quoted(mode)}, not 'wal'")


def _create(path: Path, clock: Clock) -> tuple[int, int]:
    """Make a lease file under another name and give it its name when it is complete: nobody sees half of one."""
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}.new")
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
    try:
        _fill(draft, clock)
        with contextlib.suppress(FileExistsError):  # somebody else was faster; theirs is as good
            os.link(draft, path)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    _sync_folder(path.parent)
    identity = check_file(path)
    if identity is None:
        raise FileNotFoundError(2, "it disappeared as soon as it was made")
    return identity


def _fill(draft: Path, clock: Clock) -> None:
    raw = _open(draft, patience=0.0)
    try:
        raw.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        raw.execute("PRAGMA journal_mode = wal")
        raw.execute("PRAGMA synchronous = full")
        raw.executescript(SCHEMA)
        raw.execute("INSERT INTO meta VALUES (1, ?, 0, ?)", (clock.boot, clock.stamp() + CEILING_STEP))
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    finally:
        raw.close()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
