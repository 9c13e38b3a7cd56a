"""Processes that work for the benchmark: started, asked, and ended by their ids, whatever happens."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from leasehold.bench.places import Place

ANSWERS_WITHIN = 60.0
ENDS_WITHIN = 2.0


class WorkerFailed(Exception):
    """A process of the crew failed; its own words are in the message."""


class Worker:
    """One process. It reads commands from its input, one JSON object a line, and answers in the same way.

    It ends by itself when its input does, so it cannot outlive a benchmark that was killed.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        # The address of an engine may hold a password: it goes through the pipe, never into the list of processes.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "leasehold.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the keyboard's interruption reaches only us, and we end it
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_answers, self._read_errors)]
        for reader in self._readers:
            reader.start()
        self.tell(job)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def tell(self, command: dict[str, Any]) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None

    def answer(self, within: float = ANSWERS_WITHIN) -> dict[str, Any]:
        """Wait for the answer to a command."""
        try:
            line = self._answers.get(timeout=within)
        except queue.Empty:
            raise WorkerFailed(f"process {self.pid} did not answer within {within:g} s") from None
        if not line:
            raise WorkerFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(str(answer["error"]))
        return answer

    def dismiss(self) -> None:
        """Let it end by itself, since there is nothing more to do."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except BrokenPipeError:
            return

    def end(self) -> None:
        """See to it that it has ended."""
        self.dismiss()
        for harder in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(ENDS_WITHIN)
                break
            except subprocess.TimeoutExpired:
                harder()
        self._process.wait()
        for reader in self._readers:
            reader.join(ENDS_WITHIN)

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(line)
        self._answers.put("")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._errors.extend(lines)

    def _last_words(self) -> str:
        self._process.wait(ENDS_WITHIN)
        return f"process {self.pid} ended: {''.join(self._errors[-5:]).strip() or 'without a word'}"


class Crew:
    """Several processes with the same job."""

    def __init__(self, size: int, task: str, place: Place, **job: Any) -> None:
        self._workers: list[Worker] = []
        address = asdict(place) | {"folder": str(place.folder)}
        try:
            for number in range(size):
                self._workers.append(Worker({"task": task, "place": address, "number": number, **job}))
            for worker in self._workers:
                worker.answer()  # it is ready
        except BaseException:
            self.end()
            raise

    def ask(self, within: float = ANSWERS_WITHIN, **command: Any) -> list[dict[str, Any]]:
        """Send the same command to all, and wait for every answer."""
        for worker in self._workers:
            worker.tell(command)
        return [worker.answer(within) for worker in self._workers]

    def end(self) -> None:
        """See to it that all have ended."""
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
