"""Keeps the repository tidy: who may import whom, how long things may grow, what may not be committed.

Each rule is a function that reads a tree and yields one line for each thing to put right. Below the rules stand their
own tests: every rule must find a violation planted for it, and accept a clean twin.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70

# Effects that would tie an algorithm to one world; a wire brings them in from outside.
EFFECTS = ("asyncio", "random", "socket", "sqlite3", "threading", "time")
CLIENTS = (
    "aiohttp", "aiokafka", "aiomysql", "asyncmy", "asyncpg", "boto3", "confluent_kafka", "consul", "coredis", "etcd3",
    "filelock", "grpc", "hiredis", "httpx", "kazoo", "mariadb", "mysql", "MySQLdb", "psycopg", "psycopg2", "pymysql",
    "redis", "redis_lock", "requests", "sqlalchemy", "valkey",
)  # fmt: skip
# The benchmark and the chaos tester run the peers that they compare Leasehold with.
MAY_IMPORT_CLIENTS = ("leasehold.wires", "leasehold.bench", "leasehold.chaos.peers")
MAY_IMPORT_SQLITE = (
    "leasehold.wires",
    "leasehold.engines.sqlite",
    "leasehold.fences",
    "leasehold.patterns",
    "leasehold.bench",
    "leasehold.chaos",
    "leasehold.demo",
    "leasehold.testing",
)
# Ways to data, which know nothing of leases.
FENCES_MAY_IMPORT = (
    "leasehold.wires.etcd_messages",
    "leasehold.wires.etcd_store",
    "leasehold.wires.zookeeper_messages",
    "leasehold.wires.zookeeper_store",
)
UNSAFE_SERIALISERS = ("marshal", "pickle", "shelve")
PUBLIC = ("leasehold.errors", "leasehold.fences", "leasehold.lease", "leasehold.patterns", "leasehold.testing")


# Reading a source tree


@dataclass(frozen=True)
class Import:
    """One imported module, with the line that imports it."""

    module: str
    line: int


@dataclass(frozen=True)
class Module:
    """One parsed file of a source tree."""

    name: str
    path: Path
    source: str
    is_package: bool

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)


Tree = dict[str, Module]
Rule = Callable[[Tree], Iterator[str]]


def read_tree(src: Path) -> Tree:
    """Read every Python file below `src`, keyed by its dotted name."""
    modules: Tree = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, path, path.read_text(encoding="utf-8"), is_package)
    return modules


def imports_of(module: Module, tree: Tree) -> Iterator[Import]:
    """Yield what a module imports anywhere in it, in functions and for type checkers too."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                yield from (Import(alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom():
                origin = _origin(module, node)
                for alias in node.names:
                    whole = f"{origin}.{alias.name}"
                    yield Import(whole if _is_module(whole, tree) else origin, node.lineno)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _is_dynamic_import(node.func):
                yield Import(name, node.lineno)


def _origin(module: Module, node: ast.ImportFrom) -> str:
    """Return the absolute name of what `from … import` imports from."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _is_module(name: str, tree: Tree) -> bool:
    # A folder that holds modules is a package even without an __init__.py.
    return name in tree or any(other.startswith(f"{name}.") for other in tree)


def _is_dynamic_import(function: ast.expr) -> bool:
    return ast.unparse(function) in {"__import__", "import_module", "importlib.import_module"}


def _within(name: str, *parts: str) -> bool:
    """Whether a dotted name is one of the parts or stands below one."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def _all_imports(tree: Tree, *parts: str) -> Iterator[tuple[Module, Import]]:
    for module in tree.values():
        if _within(module.name, *parts):
            for one in imports_of(module, tree):
                yield module, one


def _at(module: Module, line: int) -> str:
    return f"{module.name} line {line}:"


# Rules over the source tree


def core_touches_no_effects(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold.core"):
        if _within(one.module, *EFFECTS, *CLIENTS):
            yield f"{_at(module, one.line)} core imports {one.module}; take it from the wire instead"


def core_imports_only_facts(tree: Tree) -> Iterator[str]:
    allowed = ("leasehold.errors", "leasehold.lease", "leasehold.names", "leasehold.core")
    for module, one in _all_imports(tree, "leasehold.core"):
        if _within(one.module, "leasehold") and not _within(one.module, *allowed):
            yield (
                f"{_at(module, one.line)} core imports {one.module};"
                " let the caller pass it in, or move what both need into core"
            )


def fences_know_tokens_only(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold.fences"):
        known = _within(one.module, "leasehold.engines", "leasehold.core", "leasehold.wires")
        if known and one.module not in FENCES_MAY_IMPORT:
            yield f"{_at(module, one.line)} a fence imports {one.module}; take the token as an integer instead"


def chaos_uses_public_api(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold.chaos"):
        public = one.module == "leasehold" or _within(one.module, "leasehold.chaos", *PUBLIC)
        if _within(one.module, "leasehold") and not public:
            yield f"{_at(module, one.line)} chaos imports {one.module}; use what `leasehold` exports instead"


def lint_stands_alone(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold.lint"):
        if _within(one.module, "leasehold") and not _within(one.module, "leasehold.lint"):
            yield f"{_at(module, one.line)} lint imports {one.module}; keep what it needs within lint/"


def nobody_imports_cli(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold"):
        outside = not _within(module.name, "leasehold.cli", "leasehold.__main__")
        if outside and _within(one.module, "leasehold.cli"):
            yield f"{_at(module, one.line)} imports {one.module}; move what it needs out of the command instead"


def only_wires_import_clients(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold"):
        if _within(one.module, *CLIENTS) and not _within(module.name, *MAY_IMPORT_CLIENTS):
            yield f"{_at(module, one.line)} imports {one.module}; only wires/ may: add what you need to a wire there"


def only_sqlite_parts_import_sqlite(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold"):
        if _within(one.module, "sqlite3") and not _within(module.name, *MAY_IMPORT_SQLITE):
            yield f"{_at(module, one.line)} imports sqlite3; go through wires/, engines/sqlite or a fence instead"


def no_unsafe_serialisers(tree: Tree) -> Iterator[str]:
    for module, one in _all_imports(tree, "leasehold"):
        if _within(one.module, *UNSAFE_SERIALISERS):
            yield f"{_at(module, one.line)} imports {one.module}, which can run foreign code; use json instead"


def files_stay_short(tree: Tree) -> Iterator[str]:
    for module in tree.values():
        lines = len(module.source.splitlines())
        if lines > MAX_FILE_LINES:
            yield f"{module.name} has {lines} lines of {MAX_FILE_LINES}; split it where a reader would"


def functions_stay_short(tree: Tree) -> Iterator[str]:
    for module in tree.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    yield (
                        f"{_at(module, node.lineno)} {node.name}() has {lines} lines of {MAX_FUNCTION_LINES};"
                        " give its steps names of their own"
                    )


SOURCE_RULES: tuple[Rule, ...] = (
    core_touches_no_effects,
    core_imports_only_facts,
    fences_know_tokens_only,
    chaos_uses_public_api,
    lint_stands_alone,
    nobody_imports_cli,
    only_wires_import_clients,
    only_sqlite_parts_import_sqlite,
    no_unsafe_serialisers,
    files_stay_short,
    functions_stay_short,
)


# Rules over committed files


# Put together here, so that this file does not hold what it looks for.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("yarnpkg", "com"),
        ("deb", "debian", "org"), ("security", "debian", "org"), ("snapshot", "debian", "org"),
        ("archive", "ubuntu", "com"), ("pkg", "dev"), ("crates", "io"), ("anaconda", "org"),
    )
)  # fmt: skip
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home/\w+|Users/\w+)/")
LINK_TO_PAGE = re.compile(r"[\w./-]+\.md\b")
IMAGE = re.compile(r"!\[[^\]]*\]\((?!https?:)([^)\s#]+)")

FileRule = Callable[[Path, list[Path]], Iterator[str]]


def committed_files(root: Path) -> list[Path]:
    """List what git tracks; in a copy without git, everything but what the targets of the Makefile make."""
    try:
        # A repository above this folder is someone else's.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
        listing = subprocess.check_output(
            ["git", "ls-files", "-z"], cwd=root, env=environment, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        return _not_made(root)
    paths = [root / name for name in listing.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def _not_made(root: Path) -> list[Path]:
    made = {".git", ".servers", ".venv", "__pycache__", "build", "dist", "out", "site"}
    return [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(part in made or part.endswith("_cache") for part in path.relative_to(root).parts)
    ]


def _lines(paths: list[Path]) -> Iterator[tuple[Path, int, str]]:
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), start=1):
            yield path, number, line


def no_registry_host(root: Path, paths: list[Path]) -> Iterator[str]:
    for path, number, line in _lines(paths):
        for host in REGISTRY_HOSTS:
            if host in line:
                yield f"{path.relative_to(root)}:{number} names {host}; leave the choice of mirror to the machine"


def no_machine_path(root: Path, paths: list[Path]) -> Iterator[str]:
    for path, number, line in _lines(paths):
        found = MACHINE_PATH.search(line)
        if found:
            yield f"{path.relative_to(root)}:{number} has the machine path {found.group()}; write it relative"


def every_page_is_in_the_navigation(root: Path, paths: list[Path]) -> Iterator[str]:
    docs = root / "docs"
    made = docs / "reference"  # from the source
    named = {docs / page for page in LINK_TO_PAGE.findall((root / "mkdocs.yml").read_text(encoding="utf-8"))}
    listed = {page for page in named if page.parent != made}
    pages = {path for path in paths if path.suffix == ".md" and path.is_relative_to(docs) and path.parent != made}
    for page in sorted(pages - listed):
        yield f"{page.relative_to(root)} cannot be reached; add it to `nav` in mkdocs.yml"
    for page in sorted(listed - pages):
        yield f"{page.relative_to(root)} is in `nav` of mkdocs.yml but not committed; add the page or drop the line"


def every_image_exists(root: Path, paths: list[Path]) -> Iterator[str]:
    for path, number, line in _lines([path for path in paths if path.suffix == ".md"]):
        for target in IMAGE.findall(line):
            if not (path.parent / target).is_file():
                yield f"{path.relative_to(root)}:{number} shows {target}, which is not there; commit it or drop it"


def the_map_shows_the_tree(root: Path, paths: list[Path]) -> Iterator[str]:
    src, text = root / "src" / "leasehold", (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\w+(?:\.py|/)", text.partition("src/leasehold/\n")[2].partition("```")[0]))
    inside = [path.relative_to(src).parts for path in paths if path.suffix == ".py" and path.is_relative_to(src)]
    there = {first + "/" * bool(rest) for first, *rest in inside} - {"__main__.py"}
    for part in sorted(there - listed):
        yield f"src/leasehold/{part} is not in the layout of ARCHITECTURE.md; say in a line what it is for"
    gone = (listed - there) | {name for name in re.findall(r"`(\w+/\w+\.py)`", text) if not (src / name).is_file()}
    for part in sorted(gone):
        yield f"ARCHITECTURE.md names {part}, which is not below src/leasehold; name what took its place"


FILE_RULES: tuple[FileRule, ...] = (
    no_registry_host,
    no_machine_path,
    every_page_is_in_the_navigation,
    every_image_exists,
    the_map_shows_the_tree,
)


# This repository


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=lambda rule: rule.__name__)
def test_source(rule: Rule) -> None:
    tree = read_tree(ROOT / "src")
    assert "leasehold" in tree, "the rules read nothing: src/leasehold is not where it was"
    findings = list(rule(tree))
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("rule", FILE_RULES, ids=lambda rule: rule.__name__)
def test_committed_files(rule: FileRule) -> None:
    paths = committed_files(ROOT)
    assert ROOT / "pyproject.toml" in paths, "the rules read nothing: pyproject.toml is not among the files"
    findings = list(rule(ROOT, paths))
    assert not findings, "\n".join(findings)


# The rules themselves: each finds what is planted for it, and only that


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def body(lines: int) -> str:
    return "    pass\n" * lines


# Rule, file, the violation, and a clean twin of it.
PLANTED: tuple[tuple[Rule, str, str, str], ...] = (
    (core_touches_no_effects, "core/a.py", "import time", "import math"),
    (core_touches_no_effects, "core/a.py", "from asyncio import sleep", "from asyncio_free import sleep"),
    (core_touches_no_effects, "core/a.py", "def f():\n    import socket", "def f():\n    import math"),
    (core_touches_no_effects, "core/deep/a.py", "import redis.asyncio", "import redistribution"),
    (core_touches_no_effects, "core/a.py", "import sqlite3 as s", "sqlite3 = 1"),
    (core_imports_only_facts, "core/a.py", "from leasehold import client", "from leasehold import errors"),
    (core_imports_only_facts, "core/a.py", "from leasehold import Leasehold", "from leasehold.names import check"),
    (core_imports_only_facts, "core/a.py", "from ..engines import redis", "from ..errors import LeaseLost"),
    (core_imports_only_facts, "core/__init__.py", "from ..client import x", "from .a import x"),
    (core_imports_only_facts, "core/a.py", "import leasehold.wires.redis", "import leasehold.lease"),
    (fences_know_tokens_only, "fences/a.py", "from ..engines.redis import x", "from ..errors import StaleToken"),
    (fences_know_tokens_only, "fences/a.py", "from leasehold import core", "from leasehold import lease"),
    (fences_know_tokens_only, "fences/a.py", "import leasehold.wires.redis", "import leasehold.wires.etcd_store"),
    (chaos_uses_public_api, "chaos/a.py", "from leasehold import core", "from leasehold import Leasehold"),
    (chaos_uses_public_api, "chaos/a.py", "from ..client import x", "from .history import x"),
    (lint_stands_alone, "lint/a.py", "from leasehold import Leasehold", "from leasehold.lint import rule"),
    (lint_stands_alone, "lint/a.py", "from .. import errors", "from . import rule"),
    (nobody_imports_cli, "client.py", "from leasehold.cli import main", "from leasehold.climate import main"),
    (nobody_imports_cli, "core/a.py", "from .. import cli", "from .. import client"),
    (only_wires_import_clients, "engines/redis.py", "import hiredis", "from ..wires import redis"),
    (only_wires_import_clients, "client.py", "import_module('redis')", "import_module('json')"),
    (only_wires_import_clients, "fences/a.py", "from psycopg import connect", "import sqlite3"),
    (only_sqlite_parts_import_sqlite, "client.py", "import sqlite3", "import json"),
    (only_sqlite_parts_import_sqlite, "engines/redis.py", "import sqlite3", "import json"),
    (no_unsafe_serialisers, "client.py", "import pickle", "import json"),
    (no_unsafe_serialisers, "wires/a.py", "from shelve import open", "import json"),
    (no_unsafe_serialisers, "a.py", "__import__('marshal')", "__import__('json')"),
    (files_stay_short, "a.py", "x = 1\n" * 501, "x = 1\n" * 500),
    (functions_stay_short, "a.py", "def f():\n" + body(70), "def f():\n" + body(69)),
    (functions_stay_short, "a.py", "class A:\n  async def f():\n" + body(70), "@a\ndef f():\n" + body(69)),
)
# Modules that the planted imports name.
AROUND = {
    f"src/leasehold/{name}.py": ""
    for name in (
        "__init__", "client", "errors", "lease", "names", "cli/__init__", "core/__init__", "engines/redis",
        "wires/redis", "lint/rule", "chaos/history",
    )
}  # fmt: skip


@pytest.mark.parametrize(("rule", "name", "wrong", "right"), PLANTED)
def test_source_rule_finds_its_violation(tmp_path: Path, rule: Rule, name: str, wrong: str, right: str) -> None:
    plant(tmp_path, AROUND | {f"src/leasehold/{name}": wrong})
    [finding] = rule(read_tree(tmp_path / "src"))
    assert "\n" not in finding
    assert ";" in finding, "a finding says what is wrong; then what to do instead"
    plant(tmp_path, AROUND | {f"src/leasehold/{name}": right})
    assert list(rule(read_tree(tmp_path / "src"))) == []


def test_parts_that_may_import_clients_do_so_unreported(tmp_path: Path) -> None:
    plant(tmp_path, AROUND)
    plant(tmp_path, {"src/leasehold/wires/redis.py": "import hiredis\nimport sqlite3"})
    plant(tmp_path, {"src/leasehold/engines/sqlite.py": "import sqlite3"})
    plant(tmp_path, {"src/leasehold/fences/sqlite.py": "import sqlite3"})
    plant(tmp_path, {"src/leasehold/__main__.py": "from leasehold.cli import main"})
    tree = read_tree(tmp_path / "src")
    assert [finding for rule in SOURCE_RULES for finding in rule(tree)] == []


CLEAN_FILES = {
    "mkdocs.yml": "nav:\n  - index.md\n",
    "docs/index.md": "![a](a.svg)",
    "docs/a.svg": "<svg/>",
    "ARCHITECTURE.md": "see `core/table.py`\n```\nsrc/leasehold/\n  lock.py  locks\n  core/  the algorithms\n```\n",
    "src/leasehold/lock.py": "",
    "src/leasehold/core/table.py": "",
}
PLANTED_FILES: tuple[tuple[FileRule, dict[str, str]], ...] = (
    (no_registry_host, {"a.lock": f"--index-url https://{REGISTRY_HOSTS[0]}/simple"}),
    (no_machine_path, {"a.md": "see `/" + "work/x`"}),
    (no_machine_path, {"a.toml": "path = '/" + "root/x'"}),
    (every_page_is_in_the_navigation, {"docs/lost.md": ""}),
    (every_page_is_in_the_navigation, {"mkdocs.yml": "nav:\n  - index.md\n  - gone.md\n"}),
    (every_image_exists, {"docs/index.md": "![a](b.svg)"}),
    (the_map_shows_the_tree, {"src/leasehold/sim/network.py": ""}),
    (the_map_shows_the_tree, {"ARCHITECTURE.md": "src/leasehold/\n  lock.py  locks\n  core/\n  queue.py  gone\n```\n"}),
    (the_map_shows_the_tree, {"ARCHITECTURE.md": "`core/turns.py`\nsrc/leasehold/\n  lock.py  locks\n  core/\n```\n"}),
)


@pytest.mark.parametrize(("rule", "files"), PLANTED_FILES)
def test_file_rule_finds_its_violation(tmp_path: Path, rule: FileRule, files: dict[str, str]) -> None:
    plant(tmp_path, CLEAN_FILES)
    assert list(rule(tmp_path, committed_files(tmp_path))) == []
    plant(tmp_path, files)
    [finding] = rule(tmp_path, committed_files(tmp_path))
    assert "\n" not in finding
    assert ";" in finding or "," in finding


def test_relative_paths_are_no_machine_paths(tmp_path: Path) -> None:
    plant(tmp_path, {"a.md": "net/work/x and ~/root/y"})
    assert list(no_machine_path(tmp_path, committed_files(tmp_path))) == []


def test_every_rule_has_a_planted_violation() -> None:
    assert {planted[0] for planted in PLANTED} == set(SOURCE_RULES)
    assert {planted[0] for planted in PLANTED_FILES} == set(FILE_RULES)
