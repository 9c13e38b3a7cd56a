"""Where the embedded engine keeps its file, and where it refuses to.

A lease file is only as good as its place: whoever can replace it can hand out everybody's leases, and on a file system
that several machines share, one kernel does not see the locks of another.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from leasehold.errors import InvalidURL, quoted
from leasehold.mounts import Mount, mount_of

FORMS = "sqlite:///relative.db, sqlite:////absolute/path.db, or sqlite:// for the default file"

ReadMounts = Callable[[], list[Mount]]


@dataclass(frozen=True, slots=True)
class LeaseFile:
    """A lease file by its address; nothing was looked at yet."""

    path: Path
    """Absolute, so that it stays the same file when the process changes its directory."""
    synchronous: str = "normal"
    is_default: bool = False

    @property
    def address(self) -> str:
        """As a URL."""
        return "sqlite:///" + quote(os.fsencode(self.path))


def lease_file(on: object) -> LeaseFile:
    """Understand an address (a URL or a path), without looking at the disk."""
    if isinstance(on, Path):
        return _at(str(on))
    if not isinstance(on, str):
        raise InvalidURL(f"the embedded engine takes a URL or a pathlib.Path, not {type(on).__name__}")
    try:
        parts = urlsplit(on)
    except ValueError:
        raise InvalidURL(f"this is no URL of a lease file; write {FORMS}") from None
    if parts.scheme != "sqlite":
        raise InvalidURL(f"the embedded engine's URLs start with sqlite://, not {quoted(parts.scheme)}; write {FORMS}")
    if parts.netloc:
        raise InvalidURL(f"an embedded lease file has no host or user, but the URL names one; write {FORMS}")
    if parts.fragment or "#" in on:
        raise InvalidURL(f"{quoted(on)} contains '#'; in a file name it is written %23")
    options = _options(parts.query)
    if parts.path in ("", "/"):
        return LeaseFile(default_path(), is_default=True, **options)
    return _at(unquote(parts.path[1:], errors="surrogateescape"), **options)


def _at(path: str, *, synchronous: str = "normal") -> LeaseFile:
    if "\0" in path or not path.strip() or path.endswith("/"):
        raise InvalidURL(f"{quoted(path)} cannot be the name of a file; write {FORMS}")
    if path.startswith((":memory:", "file:")):
        raise InvalidURL(f"{quoted(path)} is not a file that processes can share; write {FORMS}")
    return LeaseFile(Path(path).absolute(), synchronous=synchronous)


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key != "synchronous" or key in options:
            raise InvalidURL(f"unknown or repeated option {quoted(key)}; the only one is synchronous=normal or =full")
        if value not in ("normal", "full"):
            raise InvalidURL(f"synchronous is 'normal' or 'full', not {quoted(value)}")
        options[key] = value
    return options


def default_path(platform: str = sys.platform, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the file is when nobody says: in the user's own folder for state that outlives a reboot."""
    try:
        home = Path.home()
    except RuntimeError:
        raise InvalidURL("this user has no home folder for the default lease file; give a path or a URL") from None
    if platform == "darwin":
        folder = home / "Library/Application Support"
    elif platform == "win32":
        folder = Path(environment.get("LOCALAPPDATA") or home / "AppData/Local")
    else:
        folder = Path(environment.get("XDG_STATE_HOME") or "")
        if not folder.is_absolute():  # as the standard asks: a relative one is ignored
            folder = home / ".local/state"
    return folder / "leasehold" / "leases.db"


def find_place(file: LeaseFile, read_mounts: ReadMounts) -> tuple[Path, Mount | None]:
    """The file's true path and its file system, after refusing places where leases would not be safe."""
    try:
        if file.is_default:
            _make_private(file.path.parent)
        folder = file.path.parent.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "its links go round in circles"
        raise InvalidURL(f"the folder of lease file {quoted(str(file.path))} cannot be used: {reason}") from None
    mount = mount_of(folder, read_mounts())
    if mount is not None and mount.shared:
        raise InvalidURL(
            f"lease file {quoted(str(file.path))} is on {mount.kind} (mounted at {quoted(str(mount.point))}), which "
            "several machines can share, and their leases would not exclude each other; use a local disk, or an engine "
            "with a server, such as redis://"
        )
    _check_folders(folder)
    return folder / file.path.name, mount


def _make_private(folder: Path) -> None:
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _check_folders(folder: Path) -> None:
    for place in (folder, *folder.parents):
        mode = place.stat().st_mode
        guarded_by_owner = place != folder and mode & stat.S_ISVTX
        if mode & stat.S_IWOTH and not guarded_by_owner and os.name == "posix":
            raise InvalidURL(
                f"anybody may write to the folder {quoted(str(place))}, and so could replace the lease file in it; "
                "put the file into a folder of its own (chmod 700)"
            )


def check_file(path: Path) -> tuple[int, int] | None:
    """Which file is at the path now (its device and inode); None when there is none. Refuses what is not ours."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise InvalidURL(f"{quoted(str(path))} is a symbolic link; give the path that it leads to")
    if not stat.S_ISREG(found.st_mode):
        raise InvalidURL(f"{quoted(str(path))} is not a regular file; give the path of a file")
    if sys.platform != "win32":
        if found.st_uid != os.geteuid():
            raise InvalidURL(
                f"lease file {quoted(str(path))} belongs to user {found.st_uid}, and this process runs as user "
                f"{os.geteuid()}; a lease file is private to one user: use another one, or the same user"
            )
        if found.st_mode & stat.S_IWOTH:
            raise InvalidURL(f"anybody may write to lease file {quoted(str(path))}; make it private (chmod 600)")
    return found.st_dev, found.st_ino
