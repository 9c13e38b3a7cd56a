"""Etcd, Consul and ZooKeeper: one server, or several that agree."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from leasehold.chaos.servers.process import Member, heard
from leasehold.testing.ports import free_port

LEAST_TTL: Final = 0.5
"""Consul's servers of a run allow sessions this short; its own limit is 10 s."""
TRIES_AGAIN_AFTER: Final = (10.0, 20.0, 40.0, 80.0, 160.0)
"""Seconds that a server of Consul lets go by after each failure to end an overdue session, before it tries again. It
does not look then whether the session was renewed meanwhile, at another leader."""
TRY_LASTS: Final = 2.0
"""Seconds that such a try may take on a busy machine."""
_FAILED_TO_END: Final = re.compile(r"^\s*(\S+) \[ERROR\] agent\.server: Invalidation failed\b", re.MULTILINE)
TICK: Final = 0.1
"""In seconds; ZooKeeper looks at its sessions once a tick."""


def asked(address: str, body: Any = None) -> Any:
    """Ask over HTTP for JSON; OSError or ValueError where there is none."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://{address}", data=data, timeout=2.0) as answer:
        return json.load(answer)


class EtcdServer(Member):
    """One member."""

    asks_libc: ClassVar[bool] = False  # a Go program asks the kernel itself

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Take a second port for the other members."""
        super().__init__(engine, folder, name, durable=durable)
        peer_port = free_port()
        self.peer = f"http://127.0.0.1:{peer_port}"
        self._cluster = f"{name}={self.peer}"

    def url_at(self, hosts: str) -> str:
        """The URL for these addresses."""
        return f"etcd://{hosts}"

    def meet(self, _number: int, members: Mapping[str, str]) -> None:
        """Learn who the others are."""
        self._cluster = ",".join(f"{name}={peer}" for name, peer in members.items())

    def command(self) -> list[str]:
        """What starts it."""
        client = f"http://127.0.0.1:{self.port}"
        return [
            str(self.program), f"--name={self.name}", f"--data-dir={self.data}",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={self.peer}", f"--initial-advertise-peer-urls={self.peer}",
            f"--initial-cluster={self._cluster}", "--logger=zap", "--log-level=error",
        ]  # fmt: skip

    def answers(self) -> bool:
        """Whether it has a leader: others do not answer this read."""
        try:
            asked(f"127.0.0.1:{self.port}/v3/kv/range", {"key": "YQ=="})
        except (OSError, ValueError):
            return False
        return True

    def leads(self) -> bool:
        """Whether it is the leader."""
        try:
            status = asked(f"127.0.0.1:{self.port}/v3/maintenance/status", {})
        except (OSError, ValueError):
            return False
        return bool(status["header"]["member_id"] == status.get("leader"))


def tries_to_end(said: str) -> list[tuple[float, float]]:
    """From when until when a server of Consul that printed this may have tried again to end an overdue session.

    Which failure is which try, and of which session, it does not say. What runs into each other is one.
    """
    failed = [datetime.fromisoformat(when).timestamp() for when in _FAILED_TO_END.findall(said)]
    found: list[tuple[float, float]] = []
    for since in sorted(at + after for at in failed for after in TRIES_AGAIN_AFTER):
        begun = found.pop()[0] if found and since <= found[-1][1] else since
        found.append((begun, since + TRY_LASTS))
    return found


class ConsulServer(Member):
    """One server."""

    asks_libc: ClassVar[bool] = False  # a Go program asks the kernel itself

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Take two more ports for the other servers."""
        super().__init__(engine, folder, name, durable=durable)
        self._serf, self._rpc = free_port(), free_port()
        self.peer = f"127.0.0.1:{self._serf}"
        self._cluster: dict[str, Any] = {"bootstrap_expect": 1}

    def url_at(self, hosts: str) -> str:
        """The URL for these addresses."""
        return f"consul://{hosts}/?least_ttl={LEAST_TTL}"

    def meet(self, _number: int, members: Mapping[str, str]) -> None:
        """Learn who the others are."""
        others = [*members.values()]
        self._cluster = {"bootstrap_expect": len(others), "retry_join": others, "retry_interval": "1s"}

    def command(self) -> list[str]:
        """What starts it."""
        settings = {
            "server": True,
            "node_name": self.name,
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "data_dir": str(self.data),
            "session_ttl_min": f"{LEAST_TTL}s",
            "log_level": "err",
            "disable_update_check": True,
            "disable_host_node_id": True,
            "leave_on_terminate": False,
            "performance": {"raft_multiplier": 1},
            "ports": {
                "http": self.port, "serf_lan": self._serf, "server": self._rpc,
                "dns": -1, "grpc": -1, "https": -1, "serf_wan": -1,
            },
            **self._cluster,
        }  # fmt: skip
        path = self.folder / "settings.json"
        path.write_text(json.dumps(settings))
        return [str(self.program), "agent", f"-config-file={path}"]

    def answers(self) -> bool:
        """Whether it has a leader: others do not answer this read."""
        try:
            asked(f"127.0.0.1:{self.port}/v1/session/list?consistent")
        except (OSError, ValueError):
            return False
        return True

    def leads(self) -> bool:
        """Whether it is the leader."""
        try:
            return bool(asked(f"127.0.0.1:{self.port}/v1/agent/self")["Stats"]["consul"]["leader"] == "true")
        except (OSError, ValueError):
            return False

    def robberies(self) -> list[tuple[float, float]]:
        """When it may have ended sessions that were overdue once, while it stood still, and are no more."""
        return tries_to_end(self.log.read_text(errors="replace") if self.log.exists() else "")


class ZooKeeperServer(Member):
    """One server."""

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Take two more ports for the other servers."""
        super().__init__(engine, folder, name, durable=durable)
        self.peer = f"127.0.0.1:{free_port()}:{free_port()}"
        self._number, self._cluster = 1, dict[str, str]()

    def url_at(self, hosts: str) -> str:
        """The URL for these addresses."""
        return f"zookeeper://{hosts}?tick={TICK}"

    def meet(self, number: int, members: Mapping[str, str]) -> None:
        """Learn who the others are."""
        self._number = number
        self._cluster = {f"server.{place}": peer for place, peer in enumerate(members.values(), 1)}

    def command(self) -> list[str]:
        """What starts it."""
        self.data.mkdir(exist_ok=True)
        (self.data / "myid").write_text(str(self._number))
        settings = {
            "tickTime": str(round(TICK * 1000)),
            "maxSessionTimeout": "120000",
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "dataDir": str(self.data),
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "initLimit": "50",
            "syncLimit": "20",
            **self._cluster,
        }
        path = self.folder / "zoo.cfg"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        # A small heap and the simplest collector: several of these may run on a small machine.
        java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [*java, "-cp", str(self.program), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(path)]

    def answers(self) -> bool:
        """Whether it serves."""
        return b"Mode: " in heard(self.port, b"srvr", to_the_end=True)

    def leads(self) -> bool:
        """Whether it is the leader."""
        return b"Mode: leader" in heard(self.port, b"srvr", to_the_end=True)
