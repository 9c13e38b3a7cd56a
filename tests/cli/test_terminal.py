"""`leasehold run` at a real terminal, in an interactive shell with job control, as people use it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.tool import LEASEHOLD, PATIENCE, Command, Heart, guard_of, lives, now, wait_for

PROMPT = "prompt> "


class Shell:
    """Bash on a pseudo-terminal."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._seen = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            arguments = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
            os.execvpe("bash", arguments, {**environment, "PS1": PROMPT, "TERM": "xterm"})
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        self.expect(re.escape(PROMPT))

    def type(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C, `\\x1a` Ctrl-Z, `\\x04` Ctrl-D."""
        os.write(self._terminal, keys.encode())

    def expect(self, pattern: str, within: float = PATIENCE) -> re.Match[str]:
        """Wait until the screen shows the pattern, after what was expected before."""
        give_up_at = now() + within
        while True:
            found = re.search(pattern, self._seen)
            if found is not None:
                self._seen = self._seen[found.end() :]
                return found
            assert now() < give_up_at, f"{pattern!r} was not shown; there was {self._seen!r}"
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._seen += os.read(self._terminal, 4096).decode(errors="replace").replace("\r", "")

    def run(self, line: str) -> None:
        """Type a command line; what the terminal echoes of it is no answer."""
        self.type(f"{line}\n")
        self.expect(re.escape(line) + "\n")

    def code(self) -> int:
        """The exit code of the last command."""
        self.expect(re.escape(PROMPT))
        self.run("echo code=$?")
        return int(self.expect(r"code=(\d+)\n")[1])

    def close(self) -> None:
        os.close(self._terminal)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(leasehold: Command, tmp_path: Path) -> Iterator[Shell]:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "leasehold").write_text(f'#!/bin/sh\nexec {" ".join(LEASEHOLD)} "$@"\n')
    (programs / "leasehold").chmod(0o755)
    one = Shell({**leasehold.environment, "PATH": f"{programs}:{os.environ['PATH']}"}, tmp_path)
    yield one
    one.close()


def test_ctrl_c_ends_the_program_and_leasehold(shell: Shell, heart: Heart) -> None:
    shell.run(f"leasehold run name -- {' '.join(heart.command())}")
    heart.wait_until_it_beats()
    shell.type("\x03")
    assert shell.code() == 130
    assert not lives(heart.pid)


def test_ctrl_c_belongs_to_a_program_that_handles_it(shell: Shell, tmp_path: Path) -> None:
    program = "import time\ntry: print('ready'); time.sleep(60)\nexcept KeyboardInterrupt: print('handled'); exit(5)"
    (tmp_path / "program.py").write_text(program)
    shell.run(f"leasehold run name -- {sys.executable} program.py")
    shell.expect("ready")
    shell.type("\x03")
    shell.expect("handled")
    assert shell.code() == 5


@pytest.mark.parametrize("interpreter", ["bash", "sh"])
def test_ctrl_c_ends_the_script_around_it(shell: Shell, heart: Heart, tmp_path: Path, interpreter: str) -> None:
    (tmp_path / "loop.sh").write_text(f"for i in 1 2 3; do leasehold run name -- {' '.join(heart.command())}; done")
    shell.run(f"{interpreter} loop.sh")
    heart.wait_until_it_beats()
    shell.type("\x03")
    assert shell.code() == 130


def test_the_program_can_read_from_the_terminal(shell: Shell) -> None:
    shell.run("leasehold run name -- sh -c 'read answer; echo \"<$answer>\"; exit 6'")
    shell.type("hello\n")
    shell.expect("<hello>")
    assert shell.code() == 6


def test_the_program_is_in_the_foreground_from_its_first_instruction(shell: Shell) -> None:
    look = "import os; print('first' if os.tcgetpgrp(0) == os.getpgrp() else 'not yet')"
    shell.run(f'leasehold run name -- {sys.executable} -S -c "{look}"')
    shell.expect("first\n")


def test_beside_a_pager_the_terminal_stays_with_the_pager(shell: Shell) -> None:
    shell.run("leasehold run name -- sh -c 'echo from the program' | sh -c 'cat; read key < /dev/tty; echo key=$key'")
    shell.expect("from the program")
    shell.type("q\n")
    shell.expect("key=q\n")
    assert shell.code() == 0


def test_in_a_pipe_a_program_that_asks_gets_the_terminal(shell: Shell) -> None:
    shell.run("leasehold run name -- sh -c 'read answer; echo \"<$answer>\"' | cat")
    shell.type("hello\n")
    shell.expect("<hello>")
    assert shell.code() == 0


def test_in_a_pipe_ctrl_c_ends_all(shell: Shell, heart: Heart) -> None:
    shell.run(f"leasehold run name -- {' '.join(heart.command())} | cat")
    heart.wait_until_it_beats()
    shell.type("\x03")
    assert shell.code() == 130
    wait_for(lambda: not lives(heart.pid), "the program is gone")


def test_ctrl_z_and_fg(shell: Shell, heart: Heart, leasehold: Command) -> None:
    shell.run(f"leasehold run name -- {' '.join(heart.command())}")
    heart.wait_until_it_beats()
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.expect(re.escape(PROMPT))
    beat = heart.latest_beat
    time.sleep(0.3)
    assert heart.latest_beat == beat
    shell.run("fg")
    wait_for(lambda: heart.latest_beat > beat, "the program goes on")
    shell.type("\x03")
    assert shell.code() == 130


@pytest.mark.parametrize("guarded", [True, False])
def test_what_was_suspended_past_its_lease_never_runs_again(
    shell: Shell, heart: Heart, leasehold: Command, guarded: bool
) -> None:
    shell.run(f"leasehold run name --ttl 1 -- {' '.join(heart.command())}")
    heart.wait_until_it_beats()
    shell.type("\x1a")
    shell.expect("Stopped")
    beat = heart.latest_beat
    if not guarded:
        shell.run("jobs -p")
        os.kill(guard_of(int(shell.expect(r"(\d+)\n")[1]), heart), signal.SIGKILL)
    assert leasehold("run", "name", "--wait", "20", "--", "true").returncode == 0
    shell.run("fg")
    shell.expect("was lost: its TTL ran out")
    assert shell.code() == 77
    assert heart.latest_beat == beat


def test_in_the_background(shell: Shell, heart: Heart) -> None:
    shell.run("leasehold run name -- sh -c 'echo started; read answer; echo \"<$answer>\"' &")
    shell.expect("started")
    time.sleep(1)
    shell.type("\n")
    shell.expect("Stopped")  # it wants to read, as any job in the background that does
    shell.run("fg")
    shell.type("hello\n")
    shell.expect("<hello>")
    assert shell.code() == 0


def test_an_interactive_shell_inside(shell: Shell) -> None:
    shell.run("leasehold run name -- bash --norc --noprofile -i")
    shell.expect(re.escape(PROMPT))
    shell.run("sleep 60")
    time.sleep(0.3)
    shell.type("\x03")
    assert shell.code() == 130
    shell.expect(re.escape(PROMPT))
    shell.run("exit 5")
    assert shell.code() == 5


def test_the_terminal_is_put_right_after_a_loss(shell: Shell, leasehold: Command) -> None:
    raw = "import os, time, tty; tty.setraw(0); print('raw', flush=True); time.sleep(60)"
    shell.run(f'leasehold run name --ttl 3 -- {sys.executable} -c "{raw}"')
    shell.expect("raw")
    assert leasehold("break", "name", "--because", "a test", "--yes").returncode == 0
    assert shell.code() == 77
    shell.expect(re.escape(PROMPT))
    shell.run("stty -a")
    shell.expect(r" icanon\b")


def test_break_asks_first(shell: Shell, heart: Heart, leasehold: Command) -> None:
    running = leasehold.start_with(heart, "name", "--ttl", "2")
    shell.run("leasehold break name --because stuck")
    shell.expect("Release it by force")
    shell.type("n\n")
    assert shell.code() == 1
    shell.expect(re.escape(PROMPT))
    shell.run("leasehold break name --because stuck")
    shell.expect(r"holder +python")
    shell.expect("Release it by force")
    shell.type("y\n")
    shell.expect(r"Announce token \d+ at the fence")
    assert shell.code() == 0
    assert running.wait(20) == 77


def test_watch_shows_changes_until_ctrl_c(shell: Shell, heart: Heart, leasehold: Command) -> None:
    shell.run("leasehold status --watch=0.2")
    shell.expect("Nothing is held")
    running = leasehold.start_with(heart, "a-name")
    shell.expect("a-name")
    running.terminate()
    shell.expect("Nothing is held")
    shell.type("\x03")
    assert shell.code() == 0
