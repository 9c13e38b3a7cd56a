"""Worker processes as a test sees them: started, told what to do, stopped, thawed, killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from typing import Any

Answer = dict[str, Any]


class Refusal(Exception):
    """The worker's command raised. `error` is the name of its class."""

    def __init__(self, error: str, text: str, notes: list[str]) -> None:
        """Carry what the worker reported."""
        super().__init__(f"{error}: {text}")
        self.error, self.text, self.notes = error, text, notes


class WorkerProcess:
    """A worker in a process of its own; see `leasehold.testing.worker` for its commands."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Listen to its answers."""
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._entered: dict[int, asyncio.Future[Answer]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, *, url: str, namespace: str, world: str, resource: str) -> WorkerProcess:
        """Start one; it is ready when this returns."""
        settings = json.dumps({"url": url, "namespace": namespace, "world": world, "resource": resource})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "leasehold.testing.worker",
            settings,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        stdout = process.stdout
        if stdout is None or not await stdout.readline():
            raise RuntimeError(f"the worker did not start (exit code {await process.wait()})")
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, do: str, **arguments: Any) -> asyncio.Future[Answer]:
        """Send a command; the future has its answer, or raises `Refusal`."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        self._send({"number": number, "do": do, **arguments})
        return answer

    async def do(self, do: str, **arguments: Any) -> Answer:
        """Send a command and wait for its answer."""
        return await self.ask(do, **arguments)

    async def enter(self, **terms: Any) -> tuple[Answer, asyncio.Future[Answer]]:
        """Have it enter a ``with`` block: what it got, and the future end of the block (see ``leave``)."""
        number = next(self._numbers)
        end = self._waiting[number] = asyncio.get_running_loop().create_future()
        entered = self._entered[number] = asyncio.get_running_loop().create_future()
        end.add_done_callback(_retrieve)
        self._send({"number": number, "do": "block", **terms})
        await asyncio.wait([end, entered], return_when=asyncio.FIRST_COMPLETED)
        return (entered.result(), end) if entered.done() else (await end, end)

    def _send(self, command: Answer) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def _listen(self) -> None:
        if self._process.stdout is None:
            return
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if "entered" in said:
                self._entered.pop(said["number"]).set_result(said["entered"])
                continue
            answer = self._waiting.pop(said["number"])
            if "error" in said:
                answer.set_exception(Refusal(said["error"], said["text"], said["notes"]))
            else:
                answer.set_result(said["answer"])
        for answer in self._waiting.values():
            answer.set_exception(ConnectionResetError("the worker is gone"))

    def stop(self) -> None:
        """Freeze it, as a long garbage collection or a suspended machine would."""
        freeze(self.pid)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """End it with no chance to clean up, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._listening


def freeze(pid: int, within: float = 10.0) -> None:
    """Stop a child process, and return when every thread of it stands still.

    The signal alone takes a moment, in which a waiter could still be woken and take a lease.
    """
    os.kill(pid, signal.SIGSTOP)
    give_up_at = time.monotonic() + within
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is None:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"process {pid} was told to stop and has not stopped in {within:g} s")
        time.sleep(0.001)


def _retrieve(answer: asyncio.Future[Answer]) -> None:
    """Mark its error as seen: a test need not wait for every answer."""
    if not answer.cancelled():
        answer.exception()
