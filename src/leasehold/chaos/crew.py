"""The worker processes of a run: started, watched, replaced, and ended by their process ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from leasehold.chaos.marks import Marks
from leasehold.chaos.servers.witness import Witness
from leasehold.chaos.site import Doing
from leasehold.chaos.worker import VARIABLE, Settings, events_file
from leasehold.errors import LeaseholdError

LOOKS_EVERY: Final = 0.02


class WorkerEnded(LeaseholdError):
    """A worker ended by itself: something is wrong with it, and the run proves nothing."""


class WorkerProcess:
    """One worker, through all its lives."""

    def __init__(
        self, settings: Settings, marks: Marks, environment: Mapping[str, str], witness: Witness | None = None
    ) -> None:
        """Start it, in the sight of a witness if there is one."""
        self.name = settings.name
        self._settings, self._marks, self._environment, self._witness = settings, marks, environment, witness
        self._process = self._start()
        self.pid = self._process.pid

    @property
    def grants(self) -> int:
        """How often it was granted what it asked for."""
        return self._marks.grants(self._settings.number)

    def doing(self) -> Doing:
        """What it is at, or was at when it died."""
        return self._marks.doing(self._settings.number)

    def hold_on(self, on: bool) -> None:
        """Tell it to go on holding what it is granted, or no longer."""
        self._marks.tell_to_hold_on(self._settings.number, on)

    def restart(self) -> None:
        """Start another one in its place."""
        self.kill()
        self._marks.note(self._settings.number, "idle")
        self.hold_on(False)
        self._settings = replace(self._settings, life=self._settings.life + 1)
        self._process = self._start()
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Whether its process is over."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        with contextlib.suppress(OSError):
            return self._errors().read_text(errors="replace").strip()[-2000:]
        return ""

    def kill(self) -> None:
        """End it now, frozen or not, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def exit_code(self) -> int | None:
        """That of its latest life, once it is over."""
        return self._process.poll()

    def histories(self) -> list[Path]:
        """What it wrote, in all its lives."""
        lives = range(self._settings.life + 1)
        paths = [events_file(Path(self._settings.folder), self.name, life) for life in lives]
        return [path for path in paths if path.exists()]

    def _errors(self) -> Path:
        return Path(self._settings.folder) / f"{self.name}.stderr"

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "leasehold.chaos.worker"]
        if self._witness:
            self._settings = replace(self._settings, power_losses=self._witness.power_losses)
        with self._errors().open("ab") as errors:
            return subprocess.Popen(
                self._witness.seen(*command) if self._witness else command,
                pass_fds=self._witness.passed if self._witness else (),
                env={**os.environ, **self._environment, VARIABLE: self._settings.text()},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # a Ctrl-C in the terminal is for the run, which ends its workers itself
            )


class Crew:
    """All workers."""

    def __init__(self, marks: Marks, witness: Witness | None = None) -> None:
        """Nobody is there yet; a witness, if there is one, sees what all of them write."""
        self._marks, self._witness = marks, witness
        self.workers: list[WorkerProcess] = []

    def add(self, settings: Settings, environment: Mapping[str, str]) -> None:
        """Start one more."""
        self.workers.append(WorkerProcess(settings, self._marks, environment, self._witness))

    def check(self, struck: Sequence[object] = ()) -> None:
        """Raise `WorkerEnded` when one has ended and no fault has done it."""
        for worker in self.workers:
            if worker.has_ended() and all(worker is not one for one in struck):
                raise WorkerEnded(
                    f"worker {worker.name} ended by itself with exit code {worker.exit_code}: {worker.last_words()}"
                )

    def stop(self, within: float) -> list[str]:
        """Have all finish what they are at, and end; the names of those that had not ended in time."""
        self._marks.stop()
        give_up_at = time.monotonic() + within
        while (late := [worker for worker in self.workers if not worker.has_ended()]) and time.monotonic() < give_up_at:
            time.sleep(LOOKS_EVERY)
        for worker in late:
            worker.kill()
        for worker in self.workers:
            if worker not in late and worker.exit_code:
                raise WorkerEnded(f"worker {worker.name} failed while it ended: {worker.last_words()}")
        return [worker.name for worker in late]

    def kill(self) -> None:
        """End all now."""
        for worker in self.workers:
            worker.kill()
