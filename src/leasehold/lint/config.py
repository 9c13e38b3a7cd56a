"""Settings from ``[tool.leasehold.lint]`` of the nearest ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from leasehold.lint.finding import LintError, quoted


@dataclass(frozen=True)
class Config:
    """What to look for, and where not to."""

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: dict[str, tuple[str, ...]] = field(default_factory=dict)
    baseline: str | None = None
    tests: bool = False
    """Also report test files."""
    root: Path = field(default_factory=Path)
    """What patterns and the baseline are relative to."""


_SETTINGS = tuple(one.name.replace("_", "-") for one in fields(Config) if one.name != "root")


def nearest(start: Path) -> Path | None:
    """The ``pyproject.toml`` in this folder or the nearest one above."""
    for folder in [start, *start.parents]:
        candidate = folder / "pyproject.toml"
        try:
            if candidate.is_file():
                return candidate
        except OSError:
            continue
    return None


def read(path: Path | None) -> Config:
    """Read the settings; without a file, or without the table, those that are built in."""
    if path is None:
        return Config()
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise LintError(f"cannot read {quoted(str(path))}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LintError(f"{path} is not valid TOML: {error}") from error
    table: Any = document
    for name in ("tool", "leasehold", "lint"):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise LintError(f"[tool.leasehold.lint] in {path} must be a table")
    return _checked(table, path)


def _checked(table: dict[str, Any], path: Path) -> Config:
    config = Config(root=path.parent)
    for name, value in table.items():
        if name not in _SETTINGS:
            raise LintError(
                f"[tool.leasehold.lint] in {path} has no setting {quoted(name)}; there are {', '.join(_SETTINGS)}"
            )
        setting: dict[str, Any] = {name.replace("-", "_"): _value(name, value, path)}
        config = replace(config, **setting)
    return config


def _value(name: str, value: object, path: Path) -> object:
    if name == "tests":
        if isinstance(value, bool):
            return value
        raise LintError(f"tests in [tool.leasehold.lint] of {path} is true or false, not {quoted(value)}")
    if name == "baseline":
        if isinstance(value, str):
            return value
        raise LintError(f"baseline in [tool.leasehold.lint] of {path} is the path of a file, not {quoted(value)}")
    if name == "per-file-ignores":
        if isinstance(value, dict):
            return {pattern: _strings(f"{name}.{quoted(pattern)}", codes, path) for pattern, codes in value.items()}
        raise LintError(f"{name} in [tool.leasehold.lint] of {path} is a table of pattern = [codes]")
    return _strings(name, value, path)


def _strings(name: str, value: object, path: Path) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise LintError(f"{name} in [tool.leasehold.lint] of {path} is a list of strings, not {quoted(value)}")
