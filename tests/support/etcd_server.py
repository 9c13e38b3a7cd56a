"""Etcd of the tests' own, one node or three, on free ports of the loopback, ended by process id."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.programs import program_of
from tests.support.server_process import ServerProcess, leader_of

from leasehold.testing.ports import free_port


def encoded(text: bytes | str) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


class EtcdNode(ServerProcess):
    """One process in a folder. `start` after `kill` finds what the folder kept, on the same ports."""

    def __init__(self, folder: Path, name: str = "one", *, scheme: str = "http", settings: Sequence[str] = ()) -> None:
        super().__init__("etcd", folder / f"{name}.log")
        self._program, self._folder, self._settings = str(program_of("etcd")), folder / name, list(settings)
        self.name, self.port, peer_port = name, free_port(), free_port()
        self.client_url, self.peer_url = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer_port}"

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def start(self, cluster: str | None = None) -> None:
        """Start the process; `wait` waits until it serves."""
        command = [
            self._program,
            f"--name={self.name}",
            f"--data-dir={self._folder}",
            f"--listen-client-urls={self.client_url}",
            f"--advertise-client-urls={self.client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={cluster or f'{self.name}={self.peer_url}'}",
            "--logger=zap",
            "--log-level=error",
            *self._settings,
        ]
        self.launch(command)

    def wait(self) -> None:
        self.wait_until(self._serves)

    def _serves(self) -> bool:
        try:
            # A linearizable read is answered by those only who have a leader.
            self.ask("/v3/kv/range", {"key": encoded("any")}, within=2.0)
        except (OSError, ValueError):
            return False
        return True

    def ask(self, path: str, request: dict[str, Any], within: float = 10.0) -> Any:
        """Ask through the JSON gateway, which shares no code with the engine under test."""
        body = json.dumps(request).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data=body, timeout=within) as answer:
            return json.load(answer)

    def restart(self) -> None:
        """Kill the process and start it on what it kept."""
        self.kill()
        self.start()
        self.wait()

    # What tests want to know or do

    def keys(self) -> list[str]:
        """Every key there is."""
        answer = self.ask("/v3/kv/range", {"key": encoded(b"\0"), "range_end": encoded(b"\0"), "keys_only": True})
        return [base64.b64decode(one["key"]).decode() for one in answer.get("kvs", [])]

    def session_of(self, key: str) -> int:
        """The session that a key hangs on."""
        [found] = self.ask("/v3/kv/range", {"key": encoded(key)})["kvs"]
        return int(found.get("lease", 0))

    def leases(self) -> list[int]:
        """Every session there is."""
        return [int(one["ID"]) for one in self.ask("/v3/lease/leases", {}).get("leases", [])]

    def revoke(self, lease: int) -> None:
        self.ask("/v3/lease/revoke", {"ID": lease})

    def revision(self) -> int:
        return int(self.ask("/v3/kv/range", {"key": encoded("any")})["header"]["revision"])

    def compact(self) -> None:
        self.ask("/v3/kv/compaction", {"revision": self.revision(), "physical": True})

    def delete(self, key: str) -> None:
        self.ask("/v3/kv/deleterange", {"key": encoded(key)})

    def is_leader(self) -> bool:
        answer = self.ask("/v3/maintenance/status", {}, within=2.0)
        return bool(answer["header"]["member_id"] == answer.get("leader"))

    def enable_users(self, *, prefix: str) -> None:
        """Turn authentication on: ``root``, ``worker`` who may use the prefix, ``guest`` who may do nothing."""
        for user in ("root", "worker", "guest"):
            self.ask("/v3/auth/user/add", {"name": user, "password": f"{user}-secret"})
            self.ask("/v3/auth/role/add", {"name": user})
            self.ask("/v3/auth/user/grant", {"user": user, "role": user})
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        permission = {"permType": "READWRITE", "key": encoded(prefix), "range_end": encoded(end)}
        self.ask("/v3/auth/role/grant", {"name": "worker", "perm": permission})
        self.ask("/v3/auth/enable", {})


class EtcdCluster:
    """Three nodes."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [EtcdNode(folder, name) for name in ("a", "b", "c")]
        self._members = ",".join(f"{node.name}={node.peer_url}" for node in self.nodes)

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def url_beginning_at(self, first: EtcdNode) -> str:
        """All endpoints, this one first: it is the one that clients use until it fails."""
        start = self.nodes.index(first)
        ports = [node.port for node in itertools.islice(itertools.cycle(self.nodes), start, start + len(self.nodes))]
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def start(self) -> None:
        for node in self.nodes:
            node.start(self._members)
        for node in self.nodes:
            node.wait()

    def leader(self) -> EtcdNode:
        """The leader, as it says itself."""
        return leader_of(self.nodes, EtcdNode.is_leader)

    def followers(self) -> list[EtcdNode]:
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def bring_back(self, node: EtcdNode) -> None:
        """Start a killed node again and wait until it serves."""
        node.start(self._members)
        node.wait()

    def end(self) -> None:
        for node in self.nodes:
            node.kill()


@contextlib.contextmanager
def running_etcd(folder: Path, *, scheme: str = "http", settings: Sequence[str] = ()) -> Iterator[EtcdNode]:
    """One node, for as long as the block."""
    node = EtcdNode(folder, scheme=scheme, settings=settings)
    node.start()
    try:
        if scheme == "http":
            node.wait()
        yield node
    finally:
        node.kill()


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[EtcdCluster]:
    """Three nodes, for as long as the block."""
    cluster = EtcdCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
