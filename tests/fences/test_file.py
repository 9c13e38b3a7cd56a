"""Files on one host: whole versions only, floors first, and no trust in shared file systems."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.fences.file_guard import FileGuard
from tests.fences.scenarios import failing
from tests.fences.test_scenarios import lost_updates

from leasehold.errors import InvalidName, Misuse, StaleToken, TokenJump, TokenUsed
from leasehold.fences import FileFence
from leasehold.mounts import Mount

ROOT = Path(__file__).parents[2]


def test_without_its_lock_updates_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race above is a real one."""
    monkeypatch.setattr(FileFence, "_wait_for", lambda *_: None)
    monkeypatch.setattr(FileFence, "_clear", lambda *_: None)
    lost = 0
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        lost += lost_updates(lambda folder=folder: FileGuard(folder), lambda guard, token: guard.read(token))[1]  # type: ignore[misc]
        if lost:
            break
    assert lost > 0


# Crashes


@pytest.mark.parametrize("deed", ["write", "delete"])
def test_killed_at_any_step_it_was_done_or_not(deed: str, tmp_path: Path) -> None:
    """And what is said of it afterwards is true: one write a token, no more and no less."""
    outcomes = set()
    for step in range(2, 40):
        folder = tmp_path / str(step)
        folder.mkdir()
        fence = FileFence(folder)
        fence.write("thing", 32, b"old")
        command = [sys.executable, "-m", "tests.fences.file_crash", str(folder), deed, "33", str(step)]
        killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        found = fence.floor("thing")
        content = (folder / "thing").read_bytes() if (folder / "thing").exists() else None
        done = content != b"old"
        assert content in (b"old", b"by 33" if deed == "write" else None)
        assert found == 33 or not done, "never a new version under an old floor"
        outcomes.add((found, done))
        if done:
            with pytest.raises(TokenUsed):
                fence.write("thing", 33, b"twice", once=True)
            with pytest.raises(StaleToken):
                fence.write("thing", 32, b"stale")
        else:
            fence.write("thing", 33, b"by 33", once=True)
        assert not list(folder.glob("*.new")) + list(folder.glob(".*.new")), "nothing is left lying about"
        if killed.stdout:
            break
        assert killed.returncode == -9, killed.stderr
    else:
        pytest.fail("it never came to its end")
    assert outcomes == {(32, False), (33, False), (33, True)}


def test_the_floor_is_on_the_disk_before_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def told_replace(path: Path, target: Path) -> Path:
        told.append(f"replace {target.name}")
        return replace(path, target)

    def told_fsync(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(tmp_path):  # what watches the tests syncs as well
            told.append("sync folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "sync file")
        fsync(file)

    monkeypatch.setattr(Path, "replace", told_replace)
    monkeypatch.setattr(os, "fsync", told_fsync)
    FileFence(tmp_path).write("thing", 5, b"new")
    assert told == [
        "sync file",
        "sync file",
        "replace .thing.fence",
        "sync folder",
        "replace thing",
        "sync folder",
    ]


# Places


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p", "ceph"])
def test_a_file_system_that_others_share_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=f"is on {kind}"):
        FileFence(tmp_path, mounts=lambda: [Mount(Path("/"), "ext4"), Mount(tmp_path.resolve(), kind)])
    FileFence(tmp_path, mounts=lambda: [Mount(Path("/"), "ext4")])


def test_an_unknown_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="unknown file system"):
        FileFence(tmp_path, mounts=list)


def test_the_folder_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="no folder"):
        FileFence(tmp_path / "missing")


@pytest.mark.parametrize("resource", ["a/b", "../a", "..", ".a", "", "a\0b", "x" * 201, "é" * 101, None, 5])
def test_a_resource_is_the_name_of_a_file(resource: Any, tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    for call in (fence.announce, fence.delete, fence.read):
        with pytest.raises(InvalidName, match="resource"):
            call(resource, 5)
    with pytest.raises(InvalidName, match="resource"):
        fence.write(resource, 5, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resource", ["*", "[a]", "a b", "x" * 200, "ü.json", "a.????????.new"])
def test_any_other_name_will_do(resource: str, tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    (tmp_path / ".other.12345678.new").write_bytes(b"of another resource")
    fence.write(resource, 5, b"new")
    assert fence.read(resource, 5) == b"new"
    assert (tmp_path / ".other.12345678.new").exists()


@pytest.mark.parametrize(
    ("resource", "beside"),
    [
        ("prices.json", "price"),
        ("prices.json", "*"),
        ("x", "x.fence"),
        ("x.fence", "x"),
        ("x.new", "x"),
        ("x.12345678.new", "x"),
        ("x.12345678.fence", "x"),
    ],
)
def test_a_version_in_the_making_is_left_alone_by_writers_of_other_files(
    resource: str, beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, replace, asked = FileFence(tmp_path), Path.replace, []

    def replaced(version: Path, target: Path) -> Path:
        if target.name in (resource, f".{resource}.fence"):
            asked.append(target.name)
            with monkeypatch.context() as inner:
                inner.setattr(Path, "replace", replace)
                fence.write(beside, 5, b"theirs")
        return replace(version, target)

    monkeypatch.setattr(Path, "replace", replaced)
    fence.write(resource, 5, b"ours")
    assert asked == [f".{resource}.fence", resource], "another file was written at each step of this one"
    assert (fence.read(resource, 5), fence.read(beside, 5)) == (b"ours", b"theirs")


@pytest.mark.parametrize("resource", ["thing", "thing.fence", "*", "[a]", "a?b", "a.b+c", "ü.json"])
def test_what_a_crash_left_of_a_file_is_cleared_by_its_next_writer(resource: str, tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    fence.write(resource, 5, b"old")
    whole = set(tmp_path.iterdir())
    left = {fence._made(path, b"never finished") for path in (tmp_path / resource, tmp_path / f".{resource}.fence")}
    assert len(left - whole) == 2
    fence.announce(f"{resource}s", 5)
    assert all(one.exists() for one in left)
    fence.write(resource, 6, b"new")
    assert not any(one.exists() for one in left)
    assert whole <= set(tmp_path.iterdir())


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"untouched")
    (tmp_path / "thing").symlink_to(target)
    fence = FileFence(tmp_path)
    with pytest.raises(Misuse, match="no regular file"):
        fence.write("thing", 5, b"new")
    with pytest.raises(OSError, match="symbolic links"):
        fence.read("thing", 5)
    (tmp_path / ".other.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        fence.announce("other", 5)
    assert target.read_bytes() == b"untouched"


def test_permissions_are_private_at_first_and_kept_later(tmp_path: Path) -> None:
    fence, path = FileFence(tmp_path), tmp_path / "thing"
    fence.write("thing", 5, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    fence.write("thing", 6, b"newer")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_damaged_floor_lets_nobody_in(tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    fence.write("thing", 5, b"new")
    (tmp_path / ".thing.fence").write_bytes(b"leasehold-fence 1 5")
    with pytest.raises(Misuse, match="no floor"):
        fence.write("thing", 6, b"newer")


def test_whoever_is_kept_waiting_is_told(tmp_path: Path) -> None:
    patient, hasty = FileFence(tmp_path), FileFence(tmp_path, wait=0.05)
    with patient._locked(patient._claim("thing", 5, allow_jump=False)), pytest.raises(TimeoutError, match="'thing'"):
        hasty.write("thing", 6, b"new")
    hasty.write("thing", 6, b"new")


def test_threads_exclude_each_other_as_processes_do(tmp_path: Path) -> None:
    fence, inside, most = FileFence(tmp_path), [0], [0]

    def enter() -> None:
        for _ in range(20):
            with fence._locked(fence._claim("thing", 5, allow_jump=False)):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_jump_is_refused(tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    with pytest.raises(TokenJump):
        fence.write("thing", 2**63 - 1, b"")
    assert fence.floor("thing") is None
    fence.announce("thing", 2**62, allow_jump=True)


# Mutants


def marks_before_settling(fence: FileFence, claim: Any, marks: Any) -> Any:
    return marks


def test_a_fence_that_forgets_who_wrote_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fences import scenarios

    monkeypatch.setattr(FileFence, "_settled", marks_before_settling)
    numbers = itertools.count()
    assert scenarios.once_means_one_write_per_token in failing(lambda: FileGuard(tmp_path, f"thing{next(numbers)}"))
