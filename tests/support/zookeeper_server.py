"""ZooKeeper of the tests' own, one server or three, on free ports of the loopback, ended by process id."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.programs import program_of
from tests.support.server_process import ServerProcess, leader_of, memory_folder

from leasehold.testing.ports import free_port

TICK = 0.1
"""In seconds; sessions are looked at once a tick, so that a short one makes quick tests."""
# A small heap and the simplest collector: several of these run beside the tests on a small machine. Nothing is synced
# to the disk: what a killed process has written, the system still has.
JAVA = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dzookeeper.forceSync=no")


class ZooKeeperServer(ServerProcess):
    """One process in a folder. `start` after `kill` finds what the folder kept, on the same ports."""

    def __init__(
        self, folder: Path, number: int = 1, *, settings: Mapping[str, str] | None = None, java: Sequence[str] = ()
    ) -> None:
        super().__init__("ZooKeeper", folder / f"server-{number}.log")
        program = program_of("zookeeper")
        # TLS needs more of Netty than the program itself names.
        netty = (f"netty-{part}.jar" for part in ("codec", "resolver", "transport-native-unix-common"))
        self.program = ":".join(map(str, [program, *(program.with_name(name) for name in netty)]))
        self._folder, self._java = folder / f"server-{number}", java
        self.number, self.port = number, free_port()
        self.peer = f"127.0.0.1:{free_port()}:{free_port()}"
        self.settings = {
            "tickTime": str(round(TICK * 1000)),
            "maxSessionTimeout": "120000",
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "dataDir": str(self._folder),
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "initLimit": "50",
            "syncLimit": "20",
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}?tick={TICK}"

    def url_at(self, host: str, port: int) -> str:
        return f"zookeeper://{host}:{port}?tick={TICK}"

    def start(self) -> None:
        """Start the process; `wait` waits until it serves."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / "myid").write_text(str(self.number))
        configuration = self._folder / "zoo.cfg"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = ["java", *JAVA, *self._java, "-cp", self.program, main, str(configuration)]
        self.launch(command, self._folder)

    def wait(self) -> None:
        self.wait_until(self.serves)

    def serves(self) -> bool:
        return "Mode: " in self.say("srvr")

    def mode(self) -> str:
        """``standalone``, ``leader`` or ``follower``; empty while it does not serve."""
        return self.say("srvr").partition("Mode: ")[2].partition("\n")[0]

    def say(self, word: str) -> str:
        """Ask by one of the words of four letters, which share no code with the engine under test."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2.0) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def ephemerals(self) -> list[str]:
        """Every node that hangs on a session."""
        return [line.strip() for line in self.say("dump").splitlines() if line.startswith("\t/")]

    def knows_session(self, number: int) -> bool:
        """Whether there is a session with this id."""
        return f"0x{number:x}" in self.say("dump")

    def restart(self) -> None:
        """Kill the process and start it on what it kept."""
        self.kill()
        self.start()
        self.wait()


class ZooKeeperEnsemble:
    """Three servers."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [ZooKeeperServer(folder, number) for number in (1, 2, 3)]
        for node in self.nodes:
            node.settings |= {f"server.{one.number}": one.peer for one in self.nodes}

    @property
    def url(self) -> str:
        return self.url_of(*self.nodes)

    def url_of(self, *nodes: ZooKeeperServer) -> str:
        return f"zookeeper://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}?tick={TICK}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()

    def leader(self) -> ZooKeeperServer:
        return leader_of(self.nodes, lambda node: node.mode() == "leader")

    def followers(self) -> list[ZooKeeperServer]:
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def end(self) -> None:
        for node in self.nodes:
            node.kill()


@contextlib.contextmanager
def running_zookeeper(
    *, settings: Mapping[str, str] | None = None, java: Sequence[str] = ()
) -> Iterator[ZooKeeperServer]:
    """One server, for as long as the block."""
    with memory_folder() as folder:
        server = ZooKeeperServer(folder, settings=settings, java=java)
        server.start()
        try:
            server.wait()
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def running_ensemble(prepare: Callable[[ZooKeeperEnsemble], object] = lambda _: None) -> Iterator[ZooKeeperEnsemble]:
    """Three servers, for as long as the block; `prepare` may change their settings before."""
    with memory_folder() as folder:
        ensemble = ZooKeeperEnsemble(folder)
        prepare(ensemble)
        try:
            ensemble.start()
            yield ensemble
        finally:
            ensemble.end()
