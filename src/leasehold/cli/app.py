"""The command itself: finds the verb, and turns every error into one clear line and the right exit code."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import click

from leasehold import __version__
from leasehold.cli import exits
from leasehold.cli.config import Config, read
from leasehold.cli.exits import Interrupted
from leasehold.cli.output import complain, guard_secrets, mask, one_line_logs, say
from leasehold.errors import EngineError, LeaseholdError, LeaseLost, Misuse, NotAcquired

# Verb -> the module that must be there for it (a verb may forward to a part that is not installed).
_VERBS: dict[str, str | None] = {
    "run": None,
    "status": None,
    "jobs": None,
    "serve": None,
    "break": None,
    "fence": None,
    "engines": None,
    "doctor": None,
    "advise": None,
    "lint": None,
    "explain": None,
    "demo": "leasehold.demo",
    "chaos": "leasehold.chaos",
    "bench": "leasehold.bench",
    "monitoring": None,
    "completion": None,
}
_FILES = {"break": "breaking"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Unread(Exception):
    """Whoever read the answer has gone. Click would exit with 1, which has other meanings here."""


class Verbs(click.Group):
    """Imports the file of a verb only when it is needed."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """Read the arguments, and show help where it is asked for."""
        try:
            return super().make_context(*arguments, **more)
        except BrokenPipeError as gone:
            raise _Unread from gone

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as gone:
            raise _Unread from gone

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """In the order in which people need them."""
        return [verb for verb, needs in _VERBS.items() if _is_installed(needs)]

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb, or None when there is no such verb."""
        if cmd_name not in _VERBS or not _is_installed(_VERBS[cmd_name]):
            return None
        command: click.Command = importlib.import_module(f"leasehold.cli.{_FILES.get(cmd_name, cmd_name)}").command
        return command


def _is_installed(module: str | None) -> bool:
    try:
        return module is None or find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  leasehold run nightly-export -- python export.py
  leasehold status --watch
  leasehold break nightly-export --because "its host is gone"

\b
Environment:
  LEASEHOLD_URL     the engine, such as redis://host:6379/0; --on goes before it
  LEASEHOLD_CONFIG  a file with settings, instead of ~/.config/leasehold/config.toml
  LEASEHOLD_<VERB>_<OPTION>   an option of a verb, such as LEASEHOLD_RUN_TTL=60
  LEASEHOLD_DEBUG   1 shows the traceback of an error
""",
)
@click.version_option(__version__, "-V", "--version", message="leasehold %(version)s")
def verbs() -> None:
    """Locks across processes and machines that stay correct when a holder stalls."""


def call(arguments: Sequence[str]) -> int:
    """Carry out one command line, and return its exit code."""
    guard_secrets([*arguments, os.environ.get("LEASEHOLD_URL", "")])
    one_line_logs()
    try:
        settings = _configured()
        code = verbs.main(
            args=list(arguments),
            prog_name="leasehold",
            standalone_mode=False,
            default_map=settings.defaults,
            auto_envvar_prefix="LEASEHOLD",
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.OK
    except Interrupted as interrupted:
        return _end_by(interrupted)
    except (BrokenPipeError, _Unread):
        return _end_unread()
    except Exception as error:  # noqa: BLE001 -- the last line of defence: one line instead of a traceback
        if isinstance(error, click.Abort) and isinstance(error.__cause__, KeyboardInterrupt):
            return _end_by(Interrupted(signal.SIGINT))
        return _explain(error)


def _configured() -> Config:
    """Settings from the one file; what the environment says goes before them."""
    settings = read(verbs)
    for name, value in settings.environment.items():
        os.environ.setdefault(name, value)
    if settings.url is not None and not os.environ.get("LEASEHOLD_URL"):
        guard_secrets([settings.url])
        os.environ["LEASEHOLD_URL"] = settings.url
    return settings


def _explain(error: Exception) -> int:
    """One line on what went wrong, and its exit code."""
    if os.environ.get("LEASEHOLD_DEBUG") == "1":
        import traceback

        sys.stderr.write(mask("".join(traceback.format_exception(error))))
    if isinstance(error, ModuleNotFoundError):
        from leasehold.opening import how_to_get

        error = how_to_get(error) or error
    match error:
        case click.Abort():
            return exits.NOTHING_DONE
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return exits.USAGE
        case click.ClickException():
            complain(*_told(error))
            return exits.USAGE
        case LeaseholdError():
            say(str(error))
            return _code_of(error)
        case OSError() if (ordinary := _ordinary(error)) is not None:
            say(ordinary[1])
            return ordinary[0]
        case _:
            say(f"unexpected {type(error).__name__}: {error} (LEASEHOLD_DEBUG=1 shows where)")
            return exits.BROKEN


def _told(error: click.ClickException) -> tuple[str, str]:
    """Which command, and what was wrong with its arguments."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "leasehold"
    return path, f"{error.format_message()} (try: {path} --help)"


def _code_of(error: LeaseholdError) -> int:
    match error:
        case Misuse():
            return exits.USAGE
        case NotAcquired():
            return exits.BUSY
        case LeaseLost():
            return exits.LOST
        case EngineError():
            return exits.UNREACHABLE
        case _:
            return exits.BROKEN


def _end_by(interrupted: Interrupted) -> int:
    """End by the signal itself, so that a script that called this command stops as well."""
    sys.stdout.flush()
    signal.signal(interrupted.signum, signal.SIG_DFL)
    os.kill(0 if interrupted.group else os.getpid(), interrupted.signum)
    return exits.SIGNALLED + interrupted.signum


def _end_unread() -> int:
    """Whoever read the answer has gone (``leasehold status | head``)."""
    _drop_stdout()
    return exits.SIGNALLED + signal.SIGPIPE


def _drop_stdout() -> None:
    """What is left of the answer goes nowhere: Python must not complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _ordinary(error: OSError) -> tuple[int, str] | None:
    """The exit code and a word for what is nobody's defect; None when it is something else."""
    if error.errno in _FULL and error.filename is None:
        _drop_stdout()
        return exits.NOT_WRITTEN, f"the answer could not be written: {error.strerror}"
    if isinstance(error, FileNotFoundError) and _has_no_working_folder():
        return exits.USAGE, "the working folder is gone; change to one that is there"
    return None


def _has_no_working_folder() -> bool:
    try:
        return not os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
