"""Consul of the tests' own, one server or three, on free ports of the loopback, ended by process id."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.programs import program_of
from tests.support.server_process import ServerProcess, leader_of, memory_folder

from leasehold.testing.ports import free_ports

LEAST_TTL = 0.5
"""The tests' servers allow sessions this short; Consul's own limit is 10 s."""
ROOT_TOKEN = "5a4ce5f2-9ad1-4d3b-8f70-000000000001"


class ConsulNode(ServerProcess):
    """One server in a folder. `start` after `kill` finds what the folder kept, on the same ports."""

    def __init__(self, folder: Path, name: str = "one") -> None:
        super().__init__("Consul", folder / f"{name}.log")
        self._program, self._folder, self.name = str(program_of("consul")), folder, name
        self.port, self.serf_port, rpc_port, self.tls_port = free_ports(4)
        self._settings: dict[str, Any] = {
            "server": True,
            "bootstrap_expect": 1,
            "node_name": name,
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "data_dir": str(folder / name),
            "session_ttl_min": f"{LEAST_TTL}s",
            "log_level": "err",
            "disable_update_check": True,
            "disable_host_node_id": True,
            "performance": {"raft_multiplier": 1},
            "ports": {
                "http": self.port, "serf_lan": self.serf_port, "server": rpc_port,
                "dns": -1, "grpc": -1, "https": -1, "serf_wan": -1,
            },
        }  # fmt: skip
        self.token: str | None = None

    @property
    def url(self) -> str:
        return self.url_at("127.0.0.1", self.port)

    @staticmethod
    def url_at(host: str, port: int) -> str:
        return f"consul://{host}:{port}/?least_ttl={LEAST_TTL}"

    def configure(self, **settings: Any) -> None:
        """Change settings before the start."""
        self._settings |= settings

    def listen_with_tls(self, certificates: Path) -> None:
        """Serve HTTPS too, on a port of its own, to those only who show a certificate."""
        self._settings["ports"] |= {"https": self.tls_port}
        self.configure(
            ca_file=f"{certificates}/ca.pem",
            cert_file=f"{certificates}/server.pem",
            key_file=f"{certificates}/server.key",
            verify_incoming_https=True,
        )

    def start(self) -> None:
        """Start the process; `wait` waits until it serves."""
        config = self._folder / f"{self.name}.json"
        config.write_text(json.dumps(self._settings))
        self.launch([self._program, "agent", f"-config-file={config}"])

    def wait(self) -> None:
        """Wait until it has a leader that answers."""
        self.wait_until(self._serves)

    def _serves(self) -> bool:
        try:
            self.ask("GET", "session/list?consistent", within=2.0)
        except (OSError, ValueError):
            return False
        return True

    def ask(self, method: str, path: str, body: Any = None, *, within: float = 10.0) -> Any:
        """Ask with the standard library, which shares no code with the engine under test."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-Consul-Token": self.token} if self.token else {}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/{path}", method=method, data=data, headers=headers
        )
        with urllib.request.urlopen(request, timeout=within) as answer:
            return json.load(answer)

    def restart(self) -> None:
        """Kill the process and start it on what it kept."""
        self.kill()
        self.start()
        self.wait()

    # What tests want to know or do

    def keys(self) -> list[str]:
        """Every key of ours."""
        try:
            found: list[str] = self.ask("GET", "kv/leasehold/?keys&consistent")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            error.close()
            return []
        return found

    def sessions(self) -> list[dict[str, Any]]:
        """Every session there is."""
        found: list[dict[str, Any]] = self.ask("GET", "session/list?consistent")
        return found

    def destroy_sessions(self) -> None:
        for session in self.sessions():
            self.ask("PUT", f"session/destroy/{session['ID']}")

    def is_leader(self) -> bool:
        return bool(self.ask("GET", "agent/self", within=2.0)["Stats"]["consul"]["leader"] == "true")

    def close_to_strangers(self) -> None:
        """Let in only those who have a token; `ROOT_TOKEN` may do everything."""
        tokens = {"master": ROOT_TOKEN, "agent": ROOT_TOKEN}
        self.token = ROOT_TOKEN
        self.configure(primary_datacenter="dc1", acl={"enabled": True, "default_policy": "deny", "tokens": tokens})

    def let_in(self, rules: str) -> str:
        """A token that may do what the rules say."""
        name = f"policy-{time.monotonic_ns()}"
        self.ask("PUT", "acl/policy", {"Name": name, "Rules": rules})
        token: str = self.ask("PUT", "acl/token", {"Policies": [{"Name": name}]})["SecretID"]
        return token


class ConsulCluster:
    """Three servers."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [ConsulNode(folder, name) for name in ("a", "b", "c")]
        join = [f"127.0.0.1:{node.serf_port}" for node in self.nodes]
        for node in self.nodes:
            node.configure(bootstrap_expect=3, retry_join=join, retry_interval="1s")

    def url_beginning_at(self, first: ConsulNode) -> str:
        """All servers, this one first: it is the one that clients use until it fails."""
        others = [node for node in self.nodes if node is not first]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in (first, *others))
        return f"consul://{hosts}/?least_ttl={LEAST_TTL}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()

    def leader(self) -> ConsulNode:
        """The leader, as it says itself."""
        return leader_of(self.nodes, ConsulNode.is_leader)

    def bring_back(self, node: ConsulNode) -> None:
        node.start()
        node.wait()

    def end(self) -> None:
        for node in self.nodes:
            node.kill()


@contextlib.contextmanager
def running_consul(prepare: Callable[[ConsulNode], object] = lambda _node: None) -> Iterator[ConsulNode]:
    """One server, for as long as the block."""
    with memory_folder() as folder:
        node = ConsulNode(folder)
        prepare(node)
        try:
            node.start()
            node.wait()
            yield node
        finally:
            node.kill()


@contextlib.contextmanager
def running_cluster() -> Iterator[ConsulCluster]:
    """Three servers, for as long as the block."""
    with memory_folder() as folder:
        cluster = ConsulCluster(folder)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()
