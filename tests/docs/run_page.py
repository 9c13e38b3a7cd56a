"""Runs a page of the documentation: every Python block and every command on it, top to bottom, as a reader would.

Python blocks share one namespace; one with ``title="worker.py"`` is saved as that file instead, as the reader is asked
to. In a ``console`` block, each line that starts with ``$ `` is a command that must
succeed, or exit as the following ``[exit N]`` line says. Tracebacks name the line of the page.

Addresses of servers are those that a reader is likely to have; here others answer, which are put in their place.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>.*)$")
NOT_RUN = re.compile(r"^(pip install|make |git clone|source |cd )")
"""What a reader does once, before the page begins; the suite itself runs these in its own set-up."""
RUNNABLE = {"python", "console"}
TITLE = re.compile(r'title="([\w./-]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block: what it is, where it starts, its text, and the file that it is to be saved as."""

    kind: str
    line: int
    text: str
    title: str | None = None


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    opened: tuple[str, str, str, int] | None = None
    body: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence is not None:
            opened = (fence["indent"], fence["ticks"], fence["info"].strip(), number)
            body = []
        elif opened is not None and line.strip() == opened[1]:
            title = TITLE.search(opened[2])
            text = "\n".join(body) + "\n"
            found.append(Block(opened[2].split(" ")[0], opened[3], text, title[1] if title else None))
            opened = None
        elif opened is not None:
            body.append(line.removeprefix(opened[0]))
    if opened is not None:
        raise ValueError(f"the block that starts at line {opened[3]} never ends")
    return found


def commands_of(block: Block) -> list[tuple[str, int]]:
    """The commands of a console block, each with the exit code that the page claims."""
    commands: list[tuple[str, int]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], 0))
        elif commands and (claimed := re.fullmatch(r"\[exit (\d+)\]", line.strip())):
            commands[-1] = (commands[-1][0], int(claimed[1]))
    return [(command, code) for command, code in commands if not NOT_RUN.match(command)]


def readdressed(page: str, servers: Mapping[str, str]) -> str:
    """The page with the addresses of these servers."""
    for address, instead in servers.items():
        page = page.replace(address, instead)
    return page


def run(path: Path, servers: Mapping[str, str]) -> None:
    """Run the page; any failure ends with a traceback."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    for block in blocks_of(readdressed(path.read_text(), servers)):
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
        elif block.kind == "python":
            source = "\n" * block.line + block.text
            exec(compile(source, str(path), "exec"), namespace)
        elif block.kind == "console":
            for command, claimed in commands_of(block):
                code = subprocess.run(["bash", "-c", command], check=False, timeout=60).returncode
                if code != claimed:
                    raise SystemExit(f"{path.name}:{block.line}: `{command}` exited with {code}, not {claimed}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))  # what the page saves as a file, it can import
    run(Path(sys.argv[1]), json.loads(sys.argv[2]))
