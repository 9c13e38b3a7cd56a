"""The embedded file: its file system, its settings, and who may open it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from leasehold.core.worlds import run_blocking
from leasehold.doctor.findings import Finding, Look
from leasehold.mounts import GONE_AT_REBOOT, Mount

if TYPE_CHECKING:
    from leasehold.engines.sqlite import SqliteEngine, SqliteFamily
    from leasehold.wires.sqlite_connection import Connection

LITTLE_ROOM = 50 * 1024 * 1024


def look(_family: SqliteFamily, engine: SqliteEngine, within: float) -> Look:
    """Look at the file and at where it is."""
    until = engine.world.now() + within

    def ask(connection: Connection) -> tuple[str, str, Mount | None]:
        version = connection.execute("SELECT sqlite_version()").fetchone()[0]
        journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
        return version, journal, connection.mount

    version, journal, mount = run_blocking(engine._database.carry_out(until, ask))
    path = engine._database.file.path
    findings = [file_system(mount), room(path), Finding("journal", "ok", f"journal mode {journal}")]
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        seen = f"others may write to the file (mode {mode:03o}): whoever can, can take every lock"
        findings.append(Finding("access", "warning", seen, "chmod 600"))
    else:
        findings.append(Finding("access", "ok", f"mode {mode:03o}"))
    return Look(f"SQLite {version}", findings)


def file_system(mount: Mount | None) -> Finding:
    """Whether it is one kernel's own, and survives a reboot."""
    if mount is None:
        return Finding("file system", "note", "the system does not tell which file system the file is on")
    if mount.shared:
        return Finding(
            "file system",
            "problem",
            f"the file is on {mount.kind}, which other machines may have mounted: locks there are not reliable",
            "put it on a disk of this machine, or use an engine that has a server",
        )
    if mount.kind in GONE_AT_REBOOT:
        return Finding(
            "file system",
            "warning",
            f"the file is on {mount.kind} and gone after a reboot: tokens then go on from the wall clock",
            "put it on a disk",
        )
    return Finding("file system", "ok", f"{mount.kind}, of this machine")


def room(path: os.PathLike[str]) -> Finding:
    """Whether there is room to write."""
    system = os.statvfs(path)
    free = system.f_bavail * system.f_frsize
    seen = f"{free // (1024 * 1024)} MiB are free"
    if free < LITTLE_ROOM:
        return Finding("disk", "warning", seen, "make room: without it no lease is granted")
    return Finding("disk", "ok", seen)
