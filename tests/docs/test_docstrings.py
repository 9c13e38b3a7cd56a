"""Every example in a docstring runs as printed."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import leasehold

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(leasehold.__path__, "leasehold.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_its_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    """The list of modules is not empty by accident."""
    found = [doctest.DocTestFinder().find(importlib.import_module(name)) for name in ("leasehold.errors", "leasehold")]
    assert any(test.examples for tests in found for test in tests)
