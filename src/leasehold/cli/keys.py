"""Keys that a person presses, one at a time and without an echo."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from types import TracebackType
from typing import Any, Final, Self

_NAMED: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
}
_ONE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)


class Keyboard:
    """Standard input in the mode in which each key counts at once; as it was before when this is left.

    Ctrl-C and Ctrl-Z keep their meaning. Where standard input is no terminal there are no keys.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self._modes: list[Any] | None = None
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(sys.stdin.fileno()):
                self.descriptor = sys.stdin.fileno()

    def __enter__(self) -> Self:
        if self.descriptor is not None:
            import termios
            import tty

            self._modes = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.descriptor is not None and self._modes is not None:
            import termios

            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._modes)

    def read(self) -> list[str]:
        """The keys that were pressed: characters, or the names of keys such as ``page down``."""
        assert self.descriptor is not None
        read = os.read(self.descriptor, 4096)
        if not read:
            self.descriptor = None  # the terminal is gone
        return keys_in(read.decode(errors="replace"))


def keys_in(text: str) -> list[str]:
    r"""What a terminal sent, as keys.

    >>> keys_in("a\x1b[B\x1b[6~é\x1b")
    ['a', 'down', 'page down', 'é', 'escape']
    """
    found = (_NAMED.get(one, one) for one in _ONE.findall(text))
    return [key for key in found if key.isprintable()]
