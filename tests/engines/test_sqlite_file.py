"""Where the lease file may be, what is refused, and what is said when the file or its disk fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
from tests.engines.sqlite_help import MovableClock, family, opened, soon, want, workers

from leasehold.core.engine import Capability, Grant, Purpose, Renewal
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine, SqliteFamily, open_engine
from leasehold.errors import EngineError, EngineUnavailable, GuaranteeWarning, InvalidURL, LeaseholdError
from leasehold.mounts import Mount, bsd_mounts, linux_mounts, mount_of, read_mounts
from leasehold.wires.sqlite_file import default_path, lease_file

IS_ROOT = os.geteuid() == 0


def take(engine: SqliteEngine, name: str = "n", holder: str = "h") -> Grant:
    answer = run_blocking(engine.take(want(name, holder), until=soon(engine)))
    assert isinstance(answer, Grant)
    return answer


# Addresses


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///relative.db", Path.cwd() / "relative.db"),
        ("sqlite:///folder/relative.db", Path.cwd() / "folder/relative.db"),
        ("sqlite:////abs/path.db", Path("/abs/path.db")),
        ("sqlite:////abs/with%20blank%23.db", Path("/abs/with blank#.db")),
        ("sqlite:////abs/p.db?synchronous=full", Path("/abs/p.db")),
    ],
)
def test_addresses(url: str, path: Path) -> None:
    assert lease_file(url).path == path


def test_a_path_is_an_address_and_stays_the_same_file_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = lease_file(Path("here.db"))
    monkeypatch.chdir("/")
    assert file.path == tmp_path / "here.db"
    assert lease_file(file.address).path == file.path


def test_odd_file_names_survive_the_way_through_a_url() -> None:
    for name in ("a b", "a%20b", "a#b", "a?b", "ä", "a\udcffb"):
        path = Path("/x") / name
        assert lease_file(lease_file(path).address).path == path


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://host/leases.db",
        "sqlite://user:secret@host/leases.db",
        "sqlite:///leases.db?sync=full",
        "sqlite:///leases.db?synchronous=off",
        "sqlite:///leases.db?synchronous=full&synchronous=full",
        "sqlite:///leases.db?synchronous=",
        "sqlite:///leases.db#part",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared",
        "sqlite:///folder/",
        "sqlite:///%00",
        "sqlite:///%20",
        "sqlite://[::1",
        "redis://host",
        "leases.db",
    ],
)
def test_wrong_addresses_are_refused_before_anything_is_touched(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidURL) as refused:
        open_engine(url, namespace="", client_label="")
    assert "secret" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_something_else_is_no_address() -> None:
    with pytest.raises(InvalidURL, match="int"):
        open_engine(5, namespace="", client_label="")


def test_the_default_file_is_in_the_users_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path("linux", {}) == tmp_path / ".local/state/leasehold/leases.db"
    assert default_path("linux", {"XDG_STATE_HOME": "/state"}) == Path("/state/leasehold/leases.db")
    assert default_path("linux", {"XDG_STATE_HOME": "relative"}) == tmp_path / ".local/state/leasehold/leases.db"
    assert default_path("darwin", {}) == tmp_path / "Library/Application Support/leasehold/leases.db"
    assert default_path("win32", {"LOCALAPPDATA": "/local"}) == Path("/local/leasehold/leases.db")


def test_the_default_file_is_made_and_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    previous = os.umask(0)
    try:
        engine = open_engine("sqlite://", namespace="", client_label="").blocking()
        assert isinstance(engine, SqliteEngine)
        take(engine)
        run_blocking(engine.take(want("n", "waiter"), until=soon(engine), patience=1.0))
        folder = tmp_path / "state/leasehold"
        modes = {p.name: stat.S_IMODE(p.lstat().st_mode) for p in folder.iterdir()}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert modes == {
            "leases.db": 0o600,
            "leases.db-wal": 0o600,
            "leases.db-shm": 0o600,
            "leases.db-wake": 0o700,
        }
        run_blocking(engine.close())
    finally:
        os.umask(previous)


# Refused places


def refused(path: Path, match: str) -> None:
    engine = family(path).blocking()
    with pytest.raises(InvalidURL, match=match):
        run_blocking(engine.take(want("n", "h"), until=soon_of(engine)))


def soon_of(engine: object) -> float:
    assert isinstance(engine, SqliteEngine)
    return soon(engine)


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "true.db") as engine:
        take(engine)
    (tmp_path / "link.db").symlink_to(tmp_path / "true.db")
    refused(tmp_path / "link.db", "symbolic link")


def test_a_folder_behind_a_link_is_one_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with opened(tmp_path / "folder/l.db") as one, opened(tmp_path / "link/l.db") as other:
        take(one)
        assert not isinstance(run_blocking(other.take(want("n", "other"), until=soon(other))), Grant)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_that_anybody_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    refused(folder / "l.db", "anybody may write")
    assert not list(folder.iterdir())
    private = folder / "private"
    private.mkdir(mode=0o700)
    if mode & stat.S_ISVTX:  # nobody else can move our folder away
        with opened(private / "l.db") as engine:
            take(engine)
    else:
        refused(private / "l.db", "anybody may write")


def test_a_file_that_anybody_may_write_to_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        take(engine)
    (tmp_path / "l.db").chmod(0o666)
    refused(tmp_path / "l.db", "chmod 600")


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a file away")
def test_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        take(engine)
    os.chown(tmp_path / "l.db", 12345, 12345)
    refused(tmp_path / "l.db", "belongs to user 12345")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "not a regular file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")
    refused(tmp_path / "missing/l.db", "No such file")


def test_a_file_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello, this is not a database at all\n" * 100)
    refused(tmp_path / "text", "not a lease file")
    (tmp_path / "empty").touch()
    refused(tmp_path / "empty", "not a lease file")
    theirs = sqlite3.connect(tmp_path / "app.db")
    theirs.execute("CREATE TABLE lease (mine)")
    theirs.close()
    before = (tmp_path / "app.db").read_bytes()
    refused(tmp_path / "app.db", "not a lease file")
    assert (tmp_path / "app.db").read_bytes() == before


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        take(engine)
    newer = sqlite3.connect(tmp_path / "l.db")
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    with opened(tmp_path / "l.db") as engine, pytest.raises(EngineError, match="format is 2, this one knows 1"):
        take(engine)


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with opened(tmp_path / "l.db") as engine, pytest.raises(LeaseholdError, match=r"SQLite 3\.37\.0 or later"):
        take(engine)


# File systems

MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:44 / /mnt/with\040blank rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
41 27 0:45 / /srv rw - fuse.sshfs me@there: rw
42 41 0:46 / /srv/local rw master:3 - xfs /dev/vdb rw
43 27 0:47 / /over rw - ext4 /dev/vdc rw
44 27 0:48 / /over rw - cifs //server/share rw
45 27 0:49 / /ov rw - fuse.fuse-overlayfs overlay rw
"""
BSD = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//me@nas/share on /Volumes/my share (1) (smbfs, nodev, nosuid, mounted by me)
"""


@pytest.mark.parametrize(
    ("folder", "kind", "shared"),
    [
        ("/home", "ext4", False),
        ("/mnt/with blank/deep/folder", "nfs4", True),
        ("/mnt", "ext4", False),
        ("/srv/x", "fuse.sshfs", True),
        ("/srv/local/x", "xfs", False),
        ("/over", "cifs", True),
        ("/ov/x", "fuse.fuse-overlayfs", False),
    ],
)
def test_the_file_system_of_a_folder(folder: str, kind: str, shared: bool) -> None:
    mount = mount_of(Path(folder), linux_mounts(MOUNTINFO))
    assert mount is not None
    assert (mount.kind, mount.shared) == (kind, shared)


def test_what_mount_prints_on_macos() -> None:
    assert bsd_mounts(BSD) == [Mount(Path("/"), "apfs"), Mount(Path("/Volumes/my share (1)"), "smbfs")]


def test_this_machines_own_file_systems_can_be_read(tmp_path: Path) -> None:
    mount = mount_of(tmp_path.resolve(), read_mounts())
    assert mount is not None
    assert not mount.shared, f"the tests need a temporary folder on a local file system, not {mount.kind}"


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "virtiofs", "afs", "lustre"]
)
def test_network_file_systems_are_refused(tmp_path: Path, kind: str) -> None:
    there = SqliteFamily(lease_file(tmp_path / "l.db"), "", read_mounts=lambda: [Mount(Path("/"), kind)])
    engine = there.blocking()
    with pytest.raises(InvalidURL, match=f"is on {kind} .*local disk"):
        run_blocking(engine.take(want("n", "h"), until=soon_of(engine)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "purpose", "warns"),
    [("tmpfs", "correctness", True), ("tmpfs", "efficiency", False), ("ext4", "correctness", False)],
)
def test_correctness_on_a_file_system_that_a_reboot_empties(
    tmp_path: Path, kind: str, purpose: Purpose, warns: bool
) -> None:
    there = SqliteFamily(lease_file(tmp_path / "l.db"), "", read_mounts=lambda: [Mount(Path("/"), kind)])
    engine = there.blocking()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_blocking(engine.check_purpose(purpose, until=soon_of(engine)))
    assert [one.category for one in caught] == ([GuaranteeWarning] if warns else [])
    run_blocking(engine.close())


# Failing disks and files


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", *arguments, str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to mount a small disk")
def test_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    with mounted(small, "-t", "tmpfs", "-o", "size=400k,mode=700", "tmpfs"), opened(small / "l.db") as engine:
        take(engine)
        with (small / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        with pytest.raises(EngineUnavailable, match="disk is full"):
            for number in range(200):
                take(engine, f"name-{number}")
        (small / "filler").unlink()
        take(engine, "again")


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    if not IS_ROOT:
        folder.chmod(0o500)
        for file in folder.iterdir():
            file.chmod(0o400)
        yield
        folder.chmod(0o700)
        return
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield


def test_a_read_only_file(tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir()
    with opened(folder / "l.db") as engine:
        take(engine)
    with read_only(folder), opened(folder / "l.db") as engine:
        with pytest.raises(EngineUnavailable, match=r"read-only|cannot be opened"):
            take(engine, "other")
        with pytest.raises(EngineUnavailable):
            take(engine, "other")


def test_a_read_only_folder_without_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir()
    with read_only(folder), opened(folder / "l.db") as engine, pytest.raises(EngineUnavailable, match="cannot be used"):
        take(engine)


@pytest.mark.parametrize("where", [100, 2048, 2 * 2048 + 8])
def test_a_damaged_file(tmp_path: Path, where: int) -> None:
    with opened(tmp_path / "l.db") as engine:
        for number in range(200):
            take(engine, f"name-{number}")
    with (tmp_path / "l.db").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(where)
        file.write(b"\xff" * (size - where))
    with opened(tmp_path / "l.db") as engine, pytest.raises(EngineError, match=r"damaged|SQLite answered"):
        for number in range(200):
            take(engine, f"name-{number}", "other")


def test_a_file_that_is_deleted_while_in_use(tmp_path: Path) -> None:
    path, clock = tmp_path / "l.db", MovableClock()
    with opened(path, clock) as engine:
        first = take(engine)
        for file in tmp_path.glob("l.db*"):
            file.unlink() if file.is_file() else shutil.rmtree(file)
        clock.micros += 200_000
        with pytest.raises(EngineUnavailable, match="deleted or replaced"):
            take(engine, "n", "other")
        # What was held in the old file is unknown in the new one; and everybody is in the new one.
        clock.wall += 1
        again = take(engine, "n", "other")
        assert again.token > first.token
        with opened(path, clock) as newcomer:
            assert not isinstance(run_blocking(newcomer.take(want("n", "third"), until=soon(newcomer))), Grant)


@pytest.mark.parametrize("operation", ["take", "release", "renew", "status", "names", "force_release"])
def test_every_operation_notices_that_the_file_was_replaced(tmp_path: Path, operation: str) -> None:
    path, clock = tmp_path / "l.db", MovableClock()
    with opened(path, clock) as engine:
        token = take(engine).token
        path.rename(tmp_path / "moved.db")
        with opened(path, clock) as other:
            take(other)
        clock.micros += 200_000
        until = soon(engine)
        asked: dict[str, Callable[[], Coroutine[object, object, object]]] = {
            "take": lambda: engine.take(want("n", "other"), until=until),
            "release": lambda: engine.release("n", "h", until=until),
            "renew": lambda: engine.renew([Renewal("n", "h", token, 30.0)], until=until),
            "status": lambda: engine.status("n", until=until),
            "names": lambda: engine.names(after=None, limit=5, until=until),
            "force_release": lambda: engine.force_release("n", until=until),
        }
        with pytest.raises(EngineUnavailable, match="deleted or replaced"):
            run_blocking(asked[operation]())


def test_two_processes_that_make_the_file_at_the_same_time_share_one(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    code = """
        say("ready")
        sys.stdin.readline()
        held = hold("n", wait=10.0)
        say(held.token)
        give_back(held)
    """
    with workers(path, code, 4) as everybody:
        for worker in everybody:
            worker.line()
        for worker in everybody:
            worker.tell()
        tokens = [int(worker.lines()[0][0]) for worker in everybody]
    assert len(set(tokens)) == 4
    assert not list(tmp_path.glob(".*.new*"))


def test_facts_are_data_before_anything_is_opened(tmp_path: Path) -> None:
    there = family(tmp_path / "l.db")
    assert there.facts.address == f"sqlite:///{tmp_path}/l.db"
    assert there.facts.guarantee.fit_for_correctness
    assert Capability.PUSH_WAIT in there.facts.capabilities
    assert Capability.TOKEN_SURVIVES_FAILOVER not in there.facts.capabilities
    assert not list(tmp_path.iterdir())
