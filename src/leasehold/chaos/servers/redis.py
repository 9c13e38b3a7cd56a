"""Redis and Valkey, one server: each write is on the disk before it is answered, unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from leasehold.chaos.servers.process import OwnServer, heard


class RedisServer(OwnServer):
    """One server with an append-only file."""

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Sync each write, or else once a second."""
        super().__init__(engine, folder, name, durable=durable)
        self._synced = self.folder / "synced"
        self.drops_unsynced = self.clock is not None
        if self.drops_unsynced:
            self.environment["LEASEHOLD_SYNCED"] = str(self._synced)

    def url_at(self, hosts: str) -> str:
        """The URL for this address."""
        return f"redis://{hosts}"

    def command(self) -> list[str]:
        """What starts it."""
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always" if self.durable else "everysec",
        }
        return [str(self.program), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def answers(self) -> bool:
        """Whether it has loaded its data."""
        return heard(self.port, b"PING\r\n").startswith(b"+PONG")

    def drop_unsynced(self) -> int:
        """Cut its append-only files down to what was synced; how many bytes went.

        Files that it writes once and renames into place (the base and the manifest) are left as they are: it syncs
        them before it goes on.
        """
        if self.pids:
            raise RuntimeError("a server that runs still knows what it has not synced; stop it first")
        lengths: dict[tuple[int, int], int] = {}
        for line in self._synced.read_text().splitlines() if self._synced.exists() else ():
            device, inode, length = map(int, line.split())
            lengths[device, inode] = length
        dropped = 0
        for path in self.folder.rglob("*.aof"):
            stat = path.stat()
            keep = lengths.get((stat.st_dev, stat.st_ino), 0)
            if keep < stat.st_size:
                dropped += stat.st_size - keep
                with path.open("r+b") as file:
                    file.truncate(keep)
        return dropped
