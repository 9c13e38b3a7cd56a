"""Redis and Valkey, one server or a primary with a replica: writes are synced before they are answered, by default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from leasehold.chaos.servers.process import Member, heard
from leasehold.testing.proxy import Proxy

_REPLICATION: Final = b"INFO replication\r\n"


class RedisServer(Member):
    """One server with an append-only file."""

    front: Proxy | None = None
    """Leads clients to the primary, where there is a replica."""

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Sync each write, or else once a second."""
        super().__init__(engine, folder, name, durable=durable)
        self.peer = self.address
        self._follows: str | None = None
        self.data.mkdir()

    def url_at(self, hosts: str) -> str:
        """The URL for this address."""
        return f"redis://{hosts}"

    def command(self) -> list[str]:
        """What starts it."""
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.data),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always" if self.durable else "everysec",
            "repl-diskless-sync-delay": "0",
        }
        follows = ["--replicaof", *self._follows.split(":")] if self._follows else []
        return [
            str(self.program),
            *(part for name, value in settings.items() for part in (f"--{name}", value)),
            *follows,
        ]

    def answers(self) -> bool:
        """Whether it has loaded its data."""
        return heard(self.port, b"PING\r\n").startswith(b"+PONG")

    # A primary and its replica

    def meet(self, number: int, members: Mapping[str, str]) -> None:
        """Be the primary, as the first, or else follow it."""
        self._follows = None if number == 1 else next(iter(members.values()))

    def leads(self) -> bool:
        """Whether it is the primary of a replica."""
        return self.front is not None and b"role:master" in heard(self.port, _REPLICATION)

    def is_in_step(self) -> bool:
        """Whether nothing of its primary's data is still on its way for the first time."""
        return self._follows is None or b"master_link_status:up" in heard(self.port, _REPLICATION)

    def stop_following(self) -> None:
        """Become a primary: from now on it lags behind the one that it followed."""
        self._follows = None
        heard(self.port, b"REPLICAOF NO ONE\r\n")

    def take_over(self, from_: RedisServer) -> None:
        """Have clients come here instead, and the other one follow once it is started again."""
        if self.front is not None:
            self.front.turn_to("127.0.0.1", self.port)
        from_._follows = self.address
