"""ZooKeeper of the tests' own, one server or three, on free ports of the loopback, ended by process id."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.support.programs import program_of

from leasehold.testing.ports import free_port
from leasehold.testing.processes import freeze

STARTS_WITHIN = 60.0
TICK = 0.1
"""In seconds; sessions are looked at once a tick, so that a short one makes quick tests."""
# A small heap and the simplest collector: several of these run beside the tests on a small machine. Nothing is synced
# to the disk: what a killed process has written, the system still has.
JAVA = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dzookeeper.forceSync=no")


class ZooKeeperServer:
    """One process in a folder. `start` after `kill` finds what the folder kept, on the same ports."""

    def __init__(
        self, folder: Path, number: int = 1, *, settings: Mapping[str, str] | None = None, java: Sequence[str] = ()
    ) -> None:
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
        self._log = folder / f"server-{number}.log"
        self.process: subprocess.Popen[bytes] | None = None

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
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def wait(self) -> None:
        give_up_at = time.monotonic() + STARTS_WITHIN
        while not self.serves():
            if self.process is None or self.process.poll() is not None or time.monotonic() > give_up_at:
                pytest.fail(f"ZooKeeper did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.05)

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

    def pause(self) -> None:
        assert self.process is not None
        freeze(self.process.pid)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)

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
        give_up_at = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < give_up_at:
            for node in self.nodes:
                if node.mode() == "leader":
                    return node
            time.sleep(0.05)
        pytest.fail("the ensemble has no leader")

    def followers(self) -> list[ZooKeeperServer]:
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def end(self) -> None:
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.resume()
            node.kill()


@contextlib.contextmanager
def _quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@contextlib.contextmanager
def running_zookeeper(
    *, settings: Mapping[str, str] | None = None, java: Sequence[str] = ()
) -> Iterator[ZooKeeperServer]:
    """One server, for as long as the block."""
    with _quick_folder() as folder:
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
    with _quick_folder() as folder:
        ensemble = ZooKeeperEnsemble(folder)
        prepare(ensemble)
        try:
            ensemble.start()
            yield ensemble
        finally:
            ensemble.end()
