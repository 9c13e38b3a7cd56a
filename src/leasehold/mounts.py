"""Which file system a folder is on, and whether other machines may write to it too."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

# Not one kernel's own: some kernel elsewhere may write to the same file, with clocks and locks of its own.
SHARED_KINDS = frozenset(
    {
        "9p", "acfs", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "cvmfs", "davfs", "drvfs", "fakeowner", "fhgfs",
        "fuse", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "macfuse", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs",
        "osxfs", "osxfuse", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
        "webdav",
    }
)  # fmt: skip
LOCAL_FUSE = frozenset({"fuse.bindfs", "fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs"})
GONE_AT_REBOOT = frozenset({"tmpfs", "ramfs"})


class Mount(NamedTuple):
    """A file system in the tree."""

    point: Path
    kind: str

    @property
    def shared(self) -> bool:
        """Whether other machines may have it mounted too."""
        return self.kind in SHARED_KINDS or (self.kind.startswith("fuse.") and self.kind not in LOCAL_FUSE)


def mount_of(folder: Path, mounts: list[Mount]) -> Mount | None:
    """The file system that a folder (with all links resolved) is on."""
    around = [mount for mount in mounts if folder.is_relative_to(mount.point)]
    # Of several on one mount point, the last one hides the others.
    return max(enumerate(around), key=lambda one: (len(one[1].point.parts), one[0]), default=(0, None))[1]


def read_mounts() -> list[Mount]:
    """The file systems of this machine, as far as the system tells."""
    if sys.platform == "linux":
        listing = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        mounts = linux_mounts(listing)
    elif sys.platform == "win32":
        import ctypes

        remote = 4
        drives = (f"{letter}:\\" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        mounts = [Mount(Path(d), "smbfs") for d in drives if ctypes.windll.kernel32.GetDriveTypeW(d) == remote]
    else:
        import subprocess

        mounts = bsd_mounts(subprocess.check_output(["/sbin/mount"], text=True, errors="surrogateescape"))
    return mounts


def linux_mounts(mountinfo: str) -> list[Mount]:
    """Read ``/proc/self/mountinfo``."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after:
            mounts.append(Mount(Path(_unescaped(before.split(" ")[4])), after.split(" ")[0]))
    return mounts


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def bsd_mounts(listing: str) -> list[Mount]:
    """Read what ``mount`` prints on macOS and the BSDs: ``what on where (kind, options)``."""
    lines = (re.fullmatch(r".+? on (/.*) \((\w+)[^()]*\)", line) for line in listing.splitlines())
    return [Mount(Path(match[1]), match[2]) for match in lines if match]
