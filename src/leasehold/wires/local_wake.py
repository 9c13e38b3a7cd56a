"""Waking a waiter in another process of this host, by a datagram to its mailbox.

A mailbox is a socket in a private folder beside the lease file; its name stands in the queue. A wake-up that finds
nobody there proves that the waiter's process is gone, which no clock could.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import stat
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Literal, Protocol

from leasehold.core.worlds import World
from leasehold.errors import EngineUnavailable, InvalidURL, quoted

Sent = Literal["sent", "full", "nobody"]

LONGEST_ADDRESS = 100
"""What every system lets the path of a socket be, in bytes."""
STALE_AFTER = 60.0
MOST_SWEPT = 100
MOST_EARLY = 4096
_NAME_LENGTH = 16
_NAME = re.compile(rf"[0-9a-f]{{{_NAME_LENGTH}}}", re.ASCII)
_LOST = ".lost"


class Waiting(Protocol):
    """How callers of one engine wait to be woken."""

    def address(self) -> str:
        """Where a wake-up for the caller goes from now on; empty when it can only ask again."""
        ...

    async def wait(self, holder: str, seconds: float) -> None:
        """Return when this holder is woken, or after so long. A wake-up that came before counts."""
        ...

    def close(self) -> None:
        """Remove the mailboxes."""
        ...

    def forked(self) -> None:
        """In a forked child: leave the parent's mailboxes alone."""
        ...


def can_push(file: Path) -> bool:
    """Whether waiters for this lease file can be woken, as far as can be told without looking at the disk."""
    if not hasattr(socket, "AF_UNIX") or os.name != "posix":
        return False
    return sys.platform == "linux" or len(os.fsencode(file)) + len("-wake/") + _NAME_LENGTH <= LONGEST_ADDRESS


class Mailbox:
    """Where wake-ups for one thread, or for one event loop, arrive."""

    def __init__(self, sock: socket.socket, path: Path, most_queued: int) -> None:
        self.sock, self.address, self.descriptor = sock, path.name, sock.fileno()
        self.closed = False
        self.early: dict[str, None] = {}
        """Who was woken but did not wait at that moment, oldest first."""
        self._lost_mark, self._most_queued = path.with_name(path.name + _LOST), most_queued
        self._remove = weakref.finalize(self, _remove, sock, path, os.getpid())

    def read(self, until: str = "") -> tuple[list[str], bool]:
        """Who was woken, but no further than a certain one; and whether others were for whom there was no room."""
        woken: list[str] = []
        while not self.closed and (not woken or woken[-1] != until):
            try:
                woken.append(self.sock.recv(256, socket.MSG_DONTWAIT).decode("ascii", "replace"))
            except BlockingIOError:
                break
            except OSError:
                if not self.closed:  # by another thread, just now
                    raise
        return woken, len(woken) >= self._most_queued and self._clear_mark()

    def _clear_mark(self) -> bool:
        try:
            self._lost_mark.unlink()
        except FileNotFoundError:
            return False
        return True

    def keep(self, woken: list[str]) -> None:
        """Remember wake-ups for those who are about to wait."""
        self.early.update(dict.fromkeys(woken))
        while len(self.early) > MOST_EARLY:
            del self.early[next(iter(self.early))]

    def close(self) -> None:
        """Remove it. Whoever waits on it in another thread is woken."""
        self.closed = True
        if self._remove.alive:
            with contextlib.suppress(OSError):  # not every system wakes a reader like this; then it wakes in time
                self.sock.shutdown(socket.SHUT_RD)
            self._remove()


def _remove(sock: socket.socket, path: Path, pid: int) -> None:
    sock.close()
    if os.getpid() == pid:
        _remove_files(path)


def _remove_files(mailbox: Path) -> None:
    mailbox.unlink(missing_ok=True)
    mailbox.with_name(mailbox.name + _LOST).unlink(missing_ok=True)


class _Folder:
    """The folder of mailboxes, open."""

    def __init__(self, path: Path) -> None:
        self.path, self.descriptor = path, -1
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise EngineUnavailable(f"the folder {quoted(str(path))} cannot be used: {error.strerror}") from error
        found = os.fstat(self.descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidURL(f"the folder {quoted(str(path))} must be this user's alone; chmod 700 or remove it")
        # However deep the folder lies, a path to a mailbox must fit into a socket's address.
        short = len(os.fsencode(path)) + 1 + _NAME_LENGTH <= LONGEST_ADDRESS
        self.prefix = f"{path}/" if short else f"/proc/self/fd/{self.descriptor}/"

    @property
    def is_current(self) -> bool:
        """Whether it is still the folder at its path."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def sweep(self) -> None:
        """Remove some mailboxes of processes that died."""
        stale = time.time() - STALE_AFTER
        with os.scandir(self.path) as entries:
            for entry, _ in zip(entries, range(MOST_SWEPT), strict=False):
                address = entry.name.removesuffix(_LOST)
                if not _NAME.fullmatch(address):
                    continue
                try:
                    old = entry.stat(follow_symlinks=False).st_mtime < stale
                except FileNotFoundError:
                    continue
                if old and not _somebody_at(self.prefix + address):
                    Path(entry.path).unlink(missing_ok=True)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _Sender:
    """A socket to send from."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)

    def __del__(self) -> None:
        self.socket.close()


class Post:
    """The folder of mailboxes beside a lease file.

    Threads share it without a lock, which an interruption could leave shut. What two of them open at the same time is
    closed when the last of them has done with it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder: _Folder | None = None
        self._sender: _Sender | None = None

    def open_mailbox(self) -> Mailbox:
        """A new mailbox; wake-ups sent to it from now on are kept in it."""
        mailbox = self._bind()
        if mailbox is None:  # somebody removed the folder: make it again
            self._folder = None
            mailbox = self._bind()
        if mailbox is None:
            raise EngineUnavailable(f"the folder {quoted(str(self._folder_path()))} is being removed all the time")
        return mailbox

    def _bind(self) -> Mailbox | None:
        folder = self._open_folder()
        name = os.urandom(_NAME_LENGTH // 2).hex()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.bind(folder.prefix + name)
        except OSError as error:
            sock.close()
            if error.errno == errno.ENOENT:
                return None
            raise EngineUnavailable(
                f"no waiter can be woken in {quoted(str(folder.path))}: {error.strerror}; this user must be able to "
                "write there"
            ) from error
        folder.sweep()
        return Mailbox(sock, folder.path / name, _most_queued())

    def send(self, address: str, holder: str) -> Sent:
        """Wake a waiter. "nobody": its process is gone. "full": it has not read its mail for a while."""
        if not address:
            return "sent"  # it asks again by itself
        if not _NAME.fullmatch(address):
            return "nobody"
        outcome = self._send(address, holder)
        if outcome == "nobody" and not self._open_folder().is_current:
            self._folder = None
            outcome = self._send(address, holder)
        if outcome == "nobody":
            _remove_files(self._folder_path() / address)
        return outcome

    def _send(self, address: str, holder: str) -> Sent:
        folder = self._open_folder()
        sender = self._sender
        if sender is None:
            sender = self._sender = _Sender()
        try:
            sender.socket.sendto(holder.encode("ascii", "replace"), folder.prefix + address)
        except (BlockingIOError, InterruptedError):
            return "full"
        except (ConnectionRefusedError, FileNotFoundError):
            return "nobody"
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return "full"
            raise EngineUnavailable(
                f"a waiter in {quoted(str(folder.path))} cannot be woken: {error.strerror}"
            ) from error
        return "sent"

    def mark_lost(self, address: str, holder: str) -> None:
        """Leave word that a wake-up found no room: its reader then wakes everybody."""
        (self._folder_path() / (address + _LOST)).touch(mode=0o600)
        self.send(address, holder)  # after the mark: if there is still no room, the mark will be seen

    def _folder_path(self) -> Path:
        return self._file.parent.resolve() / f"{self._file.name}-wake"

    def _open_folder(self) -> _Folder:
        folder = self._folder
        if folder is None:
            folder = self._folder = _Folder(self._folder_path())
        return folder

    def close(self) -> None:
        """Close what is open, here or in a forked child; it is opened again when needed."""
        self._folder = self._sender = None


def _somebody_at(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # not known to be gone
    return True


def _most_queued() -> int:
    try:
        return int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 1  # elsewhere the limit is in bytes: always look for the mark


class BlockingWaiting:
    """Each thread that waits has a mailbox of its own and sleeps on it."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._local = threading.local()
        self._mailboxes: dict[str, weakref.ref[Mailbox]] = {}

    def address(self) -> str:
        """The calling thread's mailbox."""
        mailbox: Mailbox | None = getattr(self._local, "mailbox", None)
        if mailbox is None or mailbox.closed:
            mailbox = self._local.mailbox = self._post.open_mailbox()
            address, mailboxes = mailbox.address, self._mailboxes
            mailboxes[address] = weakref.ref(mailbox, lambda _: mailboxes.pop(address, None))
        return mailbox.address

    async def wait(self, holder: str, seconds: float) -> None:
        """Block the thread until there is mail for this holder."""
        mailbox: Mailbox | None = getattr(self._local, "mailbox", None)
        if mailbox is None or mailbox.closed:
            return
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(mailbox.descriptor, select.POLLIN)
        while holder not in mailbox.early and not mailbox.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            poll.poll(left * 1000)
            woken, more = mailbox.read(until=holder)
            mailbox.keep(woken)
            if more:
                return
        mailbox.early.pop(holder, None)

    def close(self) -> None:
        """Remove the mailboxes of all threads."""
        for reference in list(self._mailboxes.values()):
            mailbox = reference()
            if mailbox is not None:
                mailbox.close()
        self._post.close()

    def forked(self) -> None:
        """In a forked child: leave the parent's mailboxes alone."""
        self._local, self._mailboxes = threading.local(), {}
        self._post.close()


class Asking:
    """Where nobody can be woken: ask again after a short, random pause."""

    def __init__(self, world: World) -> None:
        self._world = world

    def address(self) -> str:
        """Nowhere."""
        return ""

    async def wait(self, holder: str, seconds: float) -> None:  # noqa: ARG002 -- nobody is told about this holder
        """Pause for a moment."""
        await self._world.sleep(min(seconds, 0.05 + 0.2 * self._world.chance()))

    def close(self) -> None:
        """Nothing is open."""

    def forked(self) -> None:
        """Nothing was inherited."""
