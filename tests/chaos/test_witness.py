"""What a process writes is seen: what it never synced can be undone, and there may be no room for it."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from leasehold.chaos.running import Plan, run
from leasehold.chaos.servers import witness as module
from leasehold.chaos.servers.witness import NoWitness, Witness
from leasehold.chaos.site import Fullness
from leasehold.errors import Misuse

TTL = 1.0
SYNCED = b"synced" * 1000
# Each line is a way to write; what they leave behind is to be gone.
WAYS = {
    "write": "os.write(f, b'new' * 5000)",
    "write in place": "os.lseek(f, 100, 0); os.write(f, b'new')",
    "append": "os.close(f); f = os.open(path, os.O_WRONLY | os.O_APPEND); os.write(f, b'new')",
    "pwrite": "os.pwrite(f, b'new', 3); os.pwrite(f, b'newer', 1)",
    "pwrite far beyond the end": "os.pwrite(f, b'new', 100_000)",
    "writev": "os.lseek(f, 5990, 0); os.writev(f, [b'new' * 9, b'newer'])",
    "pwritev": "os.pwritev(f, [b'new', b'newer'], 17)",
    "shorter": "os.ftruncate(f, 10)",
    "shorter, then longer": "os.ftruncate(f, 10); os.pwrite(f, b'new' * 9, 50)",
    "longer": "os.ftruncate(f, 50_000)",
    "fallocate": "os.posix_fallocate(f, 0, 70_000)",
    "by another process": "os.fork() or (os.pwrite(f, b'new', 0), os._exit(0)); os.wait()",
    "another file's sync": "os.pwrite(f, b'new', 0); g = os.open(path + '.other', 65); os.write(g, b'x'); os.fsync(g)",
    "sync, then write": "os.pwrite(f, b'synced', 0); os.fdatasync(f); os.pwrite(f, b'new', 0)",
}
CHILD = """
import errno, mmap, os, sys
path = sys.argv[1]
f = os.open(path, os.O_RDWR)
try:
    exec(sys.argv[2])
    print("ok", flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the witness, which is compiled once."""
    return tmp_path_factory.mktemp("program")


@pytest.fixture
def seen(program: Path, tmp_path: Path) -> Iterator[Witness]:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(SYNCED)
    one = Witness(program, f"{tmp_path.resolve()}/data/")
    yield one
    one.close()


def done_and_killed(seen: Witness, tmp_path: Path, words: str) -> str:
    """Do it in a process that is killed then; what it said."""
    command = seen.seen(sys.executable, "-c", CHILD, str(tmp_path / "data" / "file"), words)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, pass_fds=seen.passed, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
    return said


@pytest.mark.parametrize("way", WAYS)
def test_what_was_not_synced_is_undone(way: str, seen: Witness, tmp_path: Path) -> None:
    assert done_and_killed(seen, tmp_path, WAYS[way]) == "ok"
    seen.drop_unsynced()
    assert (tmp_path / "data" / "file").read_bytes() == SYNCED
    assert seen.drop_unsynced() == 0


@pytest.mark.parametrize("sync", ["os.fsync(f)", "os.fdatasync(f)", "os.sync()"])
def test_what_was_synced_stays(sync: str, seen: Witness, tmp_path: Path) -> None:
    assert done_and_killed(seen, tmp_path, f"os.pwrite(f, b'new', 0); {sync}") == "ok"
    assert seen.drop_unsynced() == 0
    assert (tmp_path / "data" / "file").read_bytes() == b"new" + SYNCED[3:]


def test_what_a_file_that_syncs_each_write_was_told_stays(seen: Witness, tmp_path: Path) -> None:
    words = "os.close(f); f = os.open(path, os.O_WRONLY | os.O_DSYNC); os.write(f, b'new')"
    assert done_and_killed(seen, tmp_path, words) == "ok"
    assert seen.drop_unsynced() == 0


def test_files_elsewhere_are_left_alone_and_what_settled_stays(seen: Witness, tmp_path: Path) -> None:
    words = "g = os.open(path + '/../../elsewhere', 65, 0o600); os.write(g, b'new'); os.pwrite(f, b'new', 0)"
    words = words.replace("path + '/../../elsewhere'", "os.path.dirname(os.path.dirname(path)) + '/elsewhere'")
    assert done_and_killed(seen, tmp_path, words) == "ok"
    seen.take_for_synced()
    assert seen.drop_unsynced() == 0
    assert (tmp_path / "elsewhere").read_bytes() == b"new"
    assert (tmp_path / "data" / "file").read_bytes().startswith(b"new")


def test_there_is_no_way_around_it(seen: Witness, tmp_path: Path) -> None:
    assert done_and_killed(seen, tmp_path, "mmap.mmap(f, 4096)") == "ENODEV"  # which is shared, and writes the file
    copy = "g = os.open(path + '.copy', os.O_RDWR | os.O_CREAT); os.copy_file_range(f, g, 100)"
    assert done_and_killed(seen, tmp_path, copy) == "ENOSYS"


@pytest.mark.parametrize("how", get_args(Fullness))
def test_a_full_disk_lets_no_file_grow_and_perhaps_none_change(how: Fullness, seen: Witness, tmp_path: Path) -> None:
    in_place, growth = "os.pwrite(f, b'new', 0)", "os.pwrite(f, b'new', 5999)"
    more_room = "os.posix_fallocate(f, 0, 7000)"
    seen.fill(how)
    assert done_and_killed(seen, tmp_path, growth) == "ENOSPC"
    assert done_and_killed(seen, tmp_path, more_room) == "ENOSPC"
    assert done_and_killed(seen, tmp_path, in_place) == ("ok" if how == "no-growth" else "ENOSPC")
    assert done_and_killed(seen, tmp_path, "os.write(1, b'')") == "ok"  # a pipe is no file
    seen.fill(None)
    for words in (in_place, growth, more_room):
        assert done_and_killed(seen, tmp_path, words) == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="whoever is not root has shown it in each test above")
def test_a_plain_user_can_do_it() -> None:
    child = os.fork()
    if not child:
        try:
            account = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            folder = Path(tempfile.mkdtemp())
            seen = Witness(folder, f"{folder.resolve()}/file")
            write = f"echo synced > {folder}/file && sync && echo new >> {folder}/file"
            subprocess.run(seen.seen("sh", "-c", write), pass_fds=seen.passed, check=True)
            dropped = seen.drop_unsynced()
            seen.close()
            os._exit(0 if dropped == 4 and (folder / "file").read_text() == "synced\n" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_where_there_can_be_none_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoWitness, match="takes a C compiler"):
        Witness(tmp_path, "/")
    monkeypatch.setattr(module, "_ACTIONS", tmp_path / "none")
    with pytest.raises(NoWitness, match=r"Linux from version 5\.5"):
        Witness(tmp_path, "/")
    url = f"sqlite:///{tmp_path}/leases.db"
    plan = Plan(url, faults=("kill", "power-loss"), seconds=0.1, ttl=TTL, workers=2)
    outcome = run(plan, tmp_path, own_file=tmp_path / "leases.db")
    assert outcome.info.faults == ("kill",)
    assert "Linux from version 5.5" in outcome.info.left_out["power-loss"]


def test_a_host_loses_power_with_all_its_workers(tmp_path: Path) -> None:
    file = tmp_path / "leases.db"
    plan = Plan(f"sqlite:///{file}", faults=("power-loss",), seconds=4.0, ttl=TTL, wait=2 * TTL, workers=2)
    with pytest.raises(Misuse, match="the file is not this run's own"):
        run(plan, tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    outcome = run(plan, folder, own_file=file)
    assert outcome.struck["power-loss"]
    verdicts = {verdict.name: verdict for verdict in outcome.verdicts}
    for claim in ("token order", "stale writes", "lost updates", "linearizable"):
        assert verdicts[claim].status == "held", verdicts[claim].violations
    dropped = [event.detail["bytes dropped"] for event in outcome.history if "bytes dropped" in event.detail]
    assert sum(dropped) > 0  # by default not each commit is synced, and tokens increase all the same
