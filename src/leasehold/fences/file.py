"""A fence for files on one host: atomic replacement under a lock, with the floor in a file beside each.

    fence = FileFence("/srv/state")
    fence.write("prices.json", lease, b"...")

What a reader finds is always one whole version. The floor reaches the disk before the file does, so a crash at any
point leaves the old version or the new one, and never a new version that an earlier holder may replace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from leasehold.errors import InvalidName, Misuse, StaleToken, quoted
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule
from leasehold.mounts import Mount, mount_of, read_mounts
from leasehold.names import check_name, check_wait

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

_LONGEST_NAME = 200
"""In bytes: the names of the floor, the lock and a version in the making are longer, and 255 is a common limit."""
_LOOK_AGAIN = 0.005
_NOTHING, _ABSENT = 0, -1


class _Marks(NamedTuple):
    """What the floor's file says."""

    seen: int = NEVER
    written: int = NEVER
    pending: int = _NOTHING
    """The inode that was about to become the file when this was written, or `_ABSENT` when the file was to go."""

    def to_bytes(self) -> bytes:
        return f"leasehold-fence 1 {self.seen} {self.written} {self.pending}\n".encode()

    @classmethod
    def from_bytes(cls, text: bytes, path: Path) -> _Marks:
        match text.split(b" "):
            case [b"leasehold-fence", b"1", seen, written, pending] if text.endswith(b"\n"):
                return cls(int(seen), int(written), int(pending))
            case _:
                raise Misuse(f"{quoted(str(path))} is no floor of a fence; restore it from a backup")


class FileFence:
    """Checks tokens for the files of one folder, which must be on a file system of this host's own.

    A resource is the name of a file in that folder. Every method takes the resource and then the token, or what
    carries it. Only writers that use the fence are held to it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        wait: float = 10.0,
        jump_limit: int = DAY,
        mounts: Callable[[], list[Mount]] = read_mounts,
    ) -> None:
        """`wait`: for how many seconds to wait for another process that is between its check and its write."""
        if sys.platform == "win32":
            raise Misuse("files cannot be fenced on Windows: it has no lock that ends with its process on a folder")
        self._folder = Path(folder).resolve()
        if not self._folder.is_dir():
            raise Misuse(f"{quoted(str(folder))} is no folder; make it first")
        mount = mount_of(self._folder, mounts())
        if mount is None or mount.shared:
            kind = "an unknown file system" if mount is None else mount.kind
            raise Misuse(
                f"the folder {quoted(str(self._folder))} is on {kind}, where a lock of this host may mean nothing to "
                "others; keep the files on a local disk, or in a database with a fence of its own"
            )
        self._wait, self._rule = check_wait(wait), Rule(jump_limit)

    def write(
        self, resource: str, token: int | HasToken, data: bytes, *, once: bool = False, allow_jump: bool = False
    ) -> None:
        """Replace the file, or make it, as one step with the check. It is on the disk when this returns."""
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        with self._locked(claim):
            marks = self._judge(claim)
            path = self._folder / resource
            version = self._made(path, data)
            try:
                inode = version.lstat().st_ino
                self._put_marks(claim, _Marks(claim.token, marks.written, inode))
                version.replace(path)
            except BaseException:
                version.unlink(missing_ok=True)
                raise
            self._sync()

    def read(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return what is in the file, or None; no earlier holder can write any more when it returns."""
        claim = self._claim(resource, token, allow_jump=allow_jump)
        with self._locked(claim):
            self._raise(claim)
            return _content(self._folder / resource)

    def delete(self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete the file, and return whether it was there. The floor stays."""
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        with self._locked(claim):
            marks = self._judge(claim)
            self._put_marks(claim, _Marks(claim.token, marks.written, _ABSENT))
            try:
                (self._folder / resource).unlink()
            except FileNotFoundError:
                return False
            self._sync()
            return True

    def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        claim = self._claim(resource, token, allow_jump=allow_jump)
        with self._locked(claim):
            self._raise(claim)

    def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            self.announce(resource, token, allow_jump=allow_jump)

    def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        seen = self._marks(self._claim(resource, 0, allow_jump=False)).seen
        return None if seen == NEVER else seen

    # The judgement, under the lock

    def _claim(
        self, resource: str, token: int | HasToken, *, writes: bool = False, once: bool = False, allow_jump: bool
    ) -> Claim:
        check_name(resource, what="resource")
        if "/" in resource or resource.startswith(".") or len(resource.encode()) > _LONGEST_NAME:
            raise InvalidName(
                f"resource {quoted(resource)} must be the name of a file in the folder: without '/', not starting with "
                f"'.', and at most {_LONGEST_NAME} bytes long"
            )
        return self._rule.claim(resource, token, writes=writes, once=once, allow_jump=allow_jump)

    def _judge(self, claim: Claim) -> _Marks:
        """Return the marks of a resource that accepts the claim, with what a crash left open settled."""
        marks = self._settled(claim, self._marks(claim))
        refusal = claim.refusal(marks.seen, marks.written)
        if refusal is not None:
            raise refusal
        return marks

    def _raise(self, claim: Claim) -> None:
        marks = self._judge(claim)
        if marks.seen != claim.token:
            self._put_marks(claim, _Marks(claim.token, marks.written))

    def _settled(self, claim: Claim, marks: _Marks) -> _Marks:
        """Whether the write that was under way when the marks were made was carried out, the file itself tells."""
        if marks.pending == _NOTHING:
            return marks
        try:
            found = (self._folder / claim.resource).lstat().st_ino
        except FileNotFoundError:
            found = _ABSENT
        return _Marks(marks.seen, marks.seen if found == marks.pending else marks.written)

    def _marks(self, claim: Claim) -> _Marks:
        path = self._beside(claim, "fence")
        text = _content(path)
        return _Marks() if text is None else _Marks.from_bytes(text, path)

    def _put_marks(self, claim: Claim, marks: _Marks) -> None:
        path = self._beside(claim, "fence")
        version = self._made(path, marks.to_bytes())
        version.replace(path)
        self._sync()

    # Files

    def _beside(self, claim: Claim, kind: str) -> Path:
        return self._folder / f".{claim.resource}.{kind}"

    def _made(self, path: Path, data: bytes) -> Path:
        """Write a version that is not the file yet, down to the disk, with the file's permissions if there is one."""
        mode = 0o600
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat().st_mode
            if not stat.S_ISREG(found):
                raise Misuse(f"{quoted(str(path))} is no regular file; only regular files can be replaced")
            mode = stat.S_IMODE(found)
        version = _version_of(path)
        file = os.open(version, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "wb", closefd=False) as stream:
                stream.write(data)
            os.fchmod(file, mode)
            os.fsync(file)
        except BaseException:
            version.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        return version

    def _sync(self) -> None:
        """Names reach the disk with the folder that they are in."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locked(self, claim: Claim) -> Iterator[None]:
        """Hold the resource's lock, which the kernel takes back when the process ends, however it ends."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._beside(claim, "lock"), flags, 0o600)
        try:
            self._wait_for(file, claim)
            self._clear(claim)
            yield
        finally:
            os.close(file)

    def _wait_for(self, file: int, claim: Claim) -> None:
        give_up_at = time.monotonic() + self._wait
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    raise TimeoutError(
                        f"another process was between its check and its write of {quoted(claim.resource)} for more "
                        f"than {self._wait:g} s; nothing was written"
                    ) from None
                time.sleep(_LOOK_AGAIN)
            else:
                return

    def _clear(self, claim: Claim) -> None:
        """Remove versions that a crash left unfinished: under the lock, nobody is making one."""
        unfinished = _versions_of(claim.resource)
        for left in self._folder.iterdir():
            if unfinished.fullmatch(left.name):
                left.unlink(missing_ok=True)


def _version_of(path: Path) -> Path:
    """A path for what is to become this file, or this floor."""
    unique = secrets.token_hex(4)
    if path.name.startswith("."):
        return path.with_name(f"{path.name.removesuffix('.fence')}.{unique}.fence.new")
    return path.with_name(f".{path.name}.{unique}.new")


def _versions_of(resource: str) -> re.Pattern[str]:
    """The names of what is to become this file or its floor.

    The part that is unique comes after the whole resource, and what kind of version it is comes last. So no other
    resource has such a name, not even the one that is called like this one's floor.
    """
    return re.compile(rf"\.{re.escape(resource)}\.[0-9a-f]{{8}}(\.fence)?\.new")


def _content(path: Path) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as stream:
        return stream.read()


class AsyncFileFence:
    """The same as `FileFence`, for async code: each call waits for the disk, and for others, in a thread.

    A call that is cancelled may still be carried out, like any write whose answer was lost.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        wait: float = 10.0,
        jump_limit: int = DAY,
        mounts: Callable[[], list[Mount]] = read_mounts,
    ) -> None:
        """See `FileFence`."""
        self._fence = FileFence(folder, wait=wait, jump_limit=jump_limit, mounts=mounts)

    async def write(
        self, resource: str, token: int | HasToken, data: bytes, *, once: bool = False, allow_jump: bool = False
    ) -> None:
        """Replace the file, or make it, as one step with the check. It is on the disk when this returns."""
        await asyncio.to_thread(self._fence.write, resource, token, data, once=once, allow_jump=allow_jump)

    async def read(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return what is in the file, or None; no earlier holder can write any more when it returns."""
        return await asyncio.to_thread(self._fence.read, resource, token, allow_jump=allow_jump)

    async def delete(
        self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> bool:
        """Delete the file, and return whether it was there. The floor stays."""
        return await asyncio.to_thread(self._fence.delete, resource, token, once=once, allow_jump=allow_jump)

    async def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        await asyncio.to_thread(self._fence.announce, resource, token, allow_jump=allow_jump)

    async def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        await asyncio.to_thread(self._fence.raise_floor, resource, token, allow_jump=allow_jump)

    async def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        return await asyncio.to_thread(self._fence.floor, resource)
