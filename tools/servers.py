"""Finds the real servers that the tests run against, and gets the missing ones.

    python tools/servers.py list [--json]
    python tools/servers.py ensure redis valkey [--json]

A server is looked for in this order:

1. `LEASEHOLD_TEST_<ENGINE>_URL` names one that already runs: nothing to do here.
2. Its program is on PATH, or where distributions put it, or in this checkout's `.servers/`.
3. `ensure` installs Debian's package, without letting Debian start a service.
4. Where the machine's own suite lacks the package but another suite has one that runs here, or where only one program
   of a package is wanted, that package is unpacked into `.servers/`. The system's package lists are not touched, and
   nothing of it is installed. What needs newer libraries than the machine has is unpacked with all that it depends on,
   and started with those.

Tests start their own servers on free ports: this program only says where the programs are.
Tests use `find` and `given_url`; each engine is one row of `ENGINES`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

CACHE = Path(__file__).resolve().parent.parent / ".servers"
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Leasehold's set-up: installed packages must not start services.\nexit 101\n"
DEBIAN_KEYRINGS = (
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
)


class Unavailable(Exception):
    """A server could not be had; the message says how a person can get it."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One row of the table: how to recognise a server's program, and how to get it."""

    program: str
    """File name to look for on PATH."""

    packages: tuple[str, ...]
    """Debian packages to install, or to unpack where only another suite has them."""

    version: tuple[str, ...] = ("{path}", "--version")
    """Command that prints the version; `{path}` stands for the program."""

    places: tuple[str, ...] = ()
    """Glob patterns of places that are not on everyone's PATH; of several matches the newest version wins."""

    beside: tuple[str, ...] = ()
    """Programs that must stand in the same folder for a find to be of use."""

    needs: tuple[str, ...] = ()
    """Other programs that must be on PATH."""

    impostors: tuple[str, ...] = ()
    """Programs to which a link of its name may lead, and which are another server."""

    suites: Mapping[str, str] = field(default_factory=dict)
    """Debian release -> another suite whose packages run there when unpacked."""

    libraries: tuple[str, ...] = ()
    """Debian packages with the shared libraries that unpacked programs load."""

    only_unpacked: bool = False
    """Whether its packages are never installed, only unpacked: one program of them is wanted, and no service."""

    with_dependencies: bool = False
    """Whether it is unpacked with all that its packages depend on, down to libc, and started with those."""

    in_compose: bool = True
    """Whether compose.yaml can start it."""


ENGINES: Mapping[str, Engine] = {
    "redis": Engine(program="redis-server", packages=("redis-server",)),
    "valkey": Engine(
        program="valkey-server",
        # The server's package is a link into the tools' package, which holds the program.
        packages=("valkey-server", "valkey-tools"),
        suites={"bookworm": "bookworm-backports"},
        libraries=("libatomic1", "libjemalloc2", "liblzf1", "libssl3", "libsystemd0"),
    ),
    "etcd": Engine(program="etcd", packages=("etcd-server",)),
    "zookeeper": Engine(
        program="zookeeper.jar",
        # Not Debian's package `zookeeper`: it adds only start scripts, a user, and a desktop's worth of Java.
        packages=("libzookeeper-java", "default-jre-headless"),
        version=("java", "-cp", "{path}", "org.apache.zookeeper.version.VersionInfoMain"),
        places=("/usr/share/java/zookeeper.jar",),
        needs=("java",),
    ),
    "consul": Engine(
        program="consul",
        packages=("consul",),
        # The last Debian release that carried it; a Go program that needs only libc.
        suites={"bookworm": "bullseye", "trixie": "bullseye"},
    ),
    "postgresql": Engine(
        program="postgres",
        packages=("postgresql",),
        places=("/usr/lib/postgresql/*/bin/postgres",),
        beside=("initdb",),
    ),
    # The tests put it before a PostgreSQL of their own, so one that runs somewhere is of no use to them.
    "pgbouncer": Engine(
        program="pgbouncer", packages=("pgbouncer",), places=("/usr/sbin/pgbouncer",), in_compose=False
    ),
    "mariadb": Engine(
        program="mariadbd",
        packages=("mariadb-server",),
        places=("/usr/sbin/mariadbd", "/usr/libexec/mariadbd"),
    ),
    "mysql": Engine(
        program="mysqld",
        packages=("mysql-server",),
        places=("/usr/sbin/mysqld", "/usr/libexec/mysqld"),
        impostors=("mariadbd",),
        # No release of Debian has it. Never installed: it would drive out MariaDB.
        suites={"bookworm": "sid", "trixie": "sid", "forky": "sid"},
        only_unpacked=True,
        with_dependencies=True,
    ),
    # No server, but tests of pages need it as the others need theirs.
    "chromium": Engine(
        program="chromium-headless-shell",
        packages=("chromium-headless-shell",),
        places=("/usr/bin/chromium", "/usr/bin/google-chrome"),
        in_compose=False,
    ),
    # Nor is this: it checks the alert rules, as Prometheus would read them.
    "promtool": Engine(program="promtool", packages=("prometheus",), only_unpacked=True, in_compose=False),
}


@dataclass(frozen=True)
class Found:
    """Where an engine's server comes from on this machine."""

    engine: str
    how: str
    path: Path | None
    version: str | None


# Finding


def url_variable(engine: str) -> str:
    """Return the name of the environment variable that points tests at a running server."""
    return f"LEASEHOLD_TEST_{engine.upper()}_URL"


def given_url(engine: str) -> str | None:
    """Return the URL of a running server that the environment names, if it names one."""
    return os.environ.get(url_variable(engine)) or None


def find(engine: str) -> Path | None:
    """Return the path of the engine's server program, or None where it is not on this machine."""
    located = _locate(engine)
    return located[1] if located else None


def survey(engines: Iterable[str]) -> list[Found]:
    """Return where each engine's server comes from, asking each program found for its version."""
    found = []
    for engine in engines:
        located = _locate(engine)
        if given_url(engine):
            # The URL itself may hold a password, so only its variable is told.
            found.append(Found(engine, f"${url_variable(engine)}", None, None))
        elif located:
            how, path = located
            found.append(Found(engine, how, path, _version(ENGINES[engine], path)))
        else:
            found.append(Found(engine, "missing", None, None))
    return found


def _locate(engine: str) -> tuple[str, Path] | None:
    row = ENGINES[engine]
    if not all(shutil.which(program) for program in row.needs):
        return None
    return next(((how, path) for how, path in _candidates(engine, row) if _usable(row, path)), None)


def _candidates(engine: str, row: Engine) -> Iterator[tuple[str, Path]]:
    on_path = shutil.which(row.program)
    if on_path:
        yield "PATH", Path(on_path)
    for pattern in row.places:
        for path in sorted(Path("/").glob(pattern.removeprefix("/")), key=_by_version, reverse=True):
            yield "system", path
    for folder in ("usr/bin", "usr/sbin"):
        yield "unpacked", CACHE / engine / folder / row.program


def _usable(row: Engine, path: Path) -> bool:
    is_it = path.is_file() and path.resolve().name not in row.impostors
    return is_it and all(path.with_name(name).is_file() for name in row.beside)


def _by_version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def _version(row: Engine, path: Path) -> str | None:
    command = [part.format(path=path) for part in row.version]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    numbers = re.search(r"\d+\.\d+(\.\d+)?", result.stdout)
    return numbers.group() if result.returncode == 0 and numbers else None


# Getting


def ensure(engines: Iterable[str]) -> None:
    """Get every engine's server that is not here yet; raise `Unavailable` where one cannot be had."""
    missing = [engine for engine in engines if not given_url(engine) and not find(engine)]
    if not missing:
        return
    with _one_at_a_time():
        for engine in missing:
            # Someone else may have got it while this waited for its turn.
            if not find(engine):
                _get(engine)


def _get(engine: str) -> None:
    row = ENGINES[engine]
    if not shutil.which("apt-get"):
        raise Unavailable(_how_to_get(engine, "this machine has no apt-get"))
    root = _root_command()
    if root is not None:
        # A fresh machine has empty lists. One unreachable third-party list must not stop everything, so a
        # failure here is left for the install to meet.
        _run([*root, "apt-get", "-qq", "update"], check=False)
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    try:
        if row.only_unpacked or (not _in_own_suite(row.packages) and codename in row.suites):
            _unpack(engine, row, suite=row.suites.get(codename, codename), codename=codename)
            if not row.with_dependencies:
                _complete_libraries(engine, row, root)
        elif root is None:
            raise Unavailable(_how_to_get(engine, "installing it takes root or passwordless sudo"))
        else:
            _install(row.packages, root)
    except subprocess.CalledProcessError as error:
        reason = f"`{' '.join(error.cmd)}` failed: {(error.stderr or '').strip()}"
        raise Unavailable(_how_to_get(engine, reason)) from error
    if not find(engine):
        raise Unavailable(_how_to_get(engine, f"its packages are here now, but not its program {row.program}"))


def _how_to_get(engine: str, reason: str) -> str:
    row = ENGINES[engine]
    apt = f"sudo apt-get install {' '.join(row.packages)}"
    docker = f"  - docker compose up --detach --wait {engine}, then set {url_variable(engine)} as compose.yaml says"
    lines = [
        f"{engine}: no server for the tests: {reason}.",
        "  Any one of these helps:",
        f"  - put `{row.program}` on PATH; on Debian and Ubuntu: {apt}",
        *([docker] if row.in_compose else []),
        "  - go without: make test SERVERS=  (the tests of servers that are not here are skipped)",
    ]
    return "\n".join(lines)


def _root_command() -> list[str] | None:
    """Return the prefix that runs a command as root, or None where that takes a password."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if shutil.which("sudo") and _run([*sudo, "true"], check=False).returncode == 0:
        return sudo
    return None


def _in_own_suite(packages: Sequence[str]) -> bool:
    policies = (_run(["apt-cache", "policy", package]).stdout for package in packages)
    return all(re.search(r"^  Candidate: (?!\(none\))", policy, re.MULTILINE) for policy in policies)


def _install(packages: Sequence[str], root: Sequence[str]) -> None:
    print(f"Installing {' '.join(packages)}", file=sys.stderr)
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    with _no_service_starts(root):
        _run([*root, *apt, "install", "--no-install-recommends", *packages])


@contextlib.contextmanager
def _no_service_starts(root: Sequence[str]) -> Iterator[None]:
    """Keep Debian from starting what it installs: the tests start servers of their own."""
    saved = POLICY.with_name(f"{POLICY.name}.before-leasehold")
    # A run that was killed may have left its own policy, or the saved one, behind.
    ours_left = POLICY.is_file() and POLICY.read_text() == POLICY_TEXT
    if POLICY.exists() and not ours_left and not saved.exists():
        _run([*root, "mv", str(POLICY), str(saved)])
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(POLICY_TEXT)
            script.flush()
            _run([*root, "install", "-m", "755", script.name, str(POLICY)])
        yield
    finally:
        if saved.exists():
            _run([*root, "mv", str(saved), str(POLICY)])
        else:
            _run([*root, "rm", "-f", str(POLICY)])


def _unpack(engine: str, row: Engine, *, suite: str, codename: str) -> None:
    """Unpack packages of another suite into the cache, by private lists that the system never sees."""
    print(f"Unpacking {' '.join(row.packages)} of {suite} into {CACHE / engine}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch_name:
        scratch = Path(scratch_name)
        unpacked = scratch / "unpacked"
        for package in _downloaded(scratch, row, _private_sources(engine, suite, codename)):
            _run(["dpkg", "-x", str(package), str(unpacked)])
        if row.with_dependencies:
            unpacked = _launched_by_its_own_loader(unpacked, row.program)
        # Only a complete folder ever stands under the engine's name.
        shutil.rmtree(CACHE / engine, ignore_errors=True)
        unpacked.rename(CACHE / engine)


def _downloaded(scratch: Path, row: Engine, sources: str) -> list[Path]:
    """Fetch the packages, or them and all that they depend on, as on a machine that has nothing yet."""
    for folder in ("lists/partial", "archives/partial"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "private.sources").write_text(sources)
    (scratch / "status").touch()
    apt = ["apt-get", "-qq"]
    settings = {
        "Dir::Etc::sourcelist": str(scratch / "private.sources"),
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": str(scratch / "lists"),
        "Dir::State::status": str(scratch / "status"),
        "Dir::Cache::archives": str(scratch / "archives"),
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        # apt's own user cannot write below this folder; root can.
        "APT::Sandbox::User": "root",
    }
    for name, value in settings.items():
        apt += ["-o", f"{name}={value}"]
    _run([*apt, "update"])
    if row.with_dependencies:
        _run([*apt, "--yes", "--no-install-recommends", "--download-only", "install", *row.packages])
    else:
        _run([*apt, "download", *row.packages], cwd=scratch / "archives")
    return sorted((scratch / "archives").glob("*.deb"))


LAUNCHER = """\
#!/bin/sh
# Runs the program with the libraries that were unpacked with it, and with none of this machine.
all="$(dirname "$(readlink -f "$0")")/../../all"
exec "$all/{loader}" --library-path "{libraries}" "$all/{program}" "$@"
"""


def _launched_by_its_own_loader(everything: Path, name: str) -> Path:
    """Return a folder with what was unpacked, and a launcher where its program is looked for."""
    [program] = (path for folder in ("bin", "sbin") for path in everything.glob(f"usr/{folder}/{name}"))
    libraries = [path for part in ("lib", "usr/lib") for path in (everything / part).glob("*-linux-gnu*")]
    # The program names its loader. Where it says that it is, there may be a link that leads to this machine's own.
    named = re.search(rb"/lib[^\0]*/(ld[-.][^\0/]+)", program.read_bytes()[:65536])
    places = [folder / named[1].decode() for folder in libraries] if named else []
    loader = next((path for path in places if path.exists()), None)
    if loader is None:
        raise Unavailable(f"{name} was unpacked without the loader of its libraries")
    text = LAUNCHER.format(
        loader=loader.relative_to(everything),
        libraries=":".join(f"$all/{path.relative_to(everything)}" for path in libraries),
        program=program.relative_to(everything),
    )
    whole = everything.with_name("launched")
    launcher = whole / program.relative_to(everything)
    launcher.parent.mkdir(parents=True)
    launcher.write_text(text)
    launcher.chmod(0o755)
    everything.rename(whole / "all")
    return whole


def _private_sources(engine: str, suite: str, codename: str) -> str:
    """Return a sources file for `suite`, on the mirror that this machine already uses for its own release."""
    targets = _run(["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"]).stdout
    for line in targets.splitlines():
        release, component, mirror = line.split(maxsplit=2)
        if (release, component) == (codename, "main"):
            break
    else:
        raise Unavailable(_how_to_get(engine, f"apt here knows no mirror of the release {codename!r}"))
    fields = {"Types": "deb", "URIs": mirror, "Suites": suite, "Components": "main"}
    keyring = next((path for path in DEBIAN_KEYRINGS if Path(path).exists()), None)
    if keyring:
        fields["Signed-By"] = keyring
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def _complete_libraries(engine: str, row: Engine, root: Sequence[str] | None) -> None:
    """Install the shared libraries that an unpacked program lacks: unpacking brings no dependencies."""
    path = find(engine)
    if path is None or "not found" not in _run(["ldd", str(path)], check=False).stdout:
        return
    try:
        if root is None:
            libraries = " ".join(row.libraries)
            raise Unavailable(_how_to_get(engine, f"it lacks libraries; sudo apt-get install {libraries}"))
        _install(row.libraries, root)
    except BaseException:
        # A program that cannot start must not be found the next time.
        shutil.rmtree(CACHE / engine, ignore_errors=True)
        raise


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one run of this checkout at a time change the machine; the others wait."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], *, check: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    # English output, since some of it is read here.
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, check=check, cwd=cwd, env=environment, capture_output=True, text=True)


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Find the servers that the tests run against, or get them.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, words in (
        ("list", "show where each server comes from"),
        ("ensure", "get those that are missing"),
    ):
        one = verbs.add_parser(verb, help=words, description=words)
        # An empty list is a valid answer of `nargs="*"`, which `choices` would refuse; hence no `choices`.
        one.add_argument("engines", nargs="*" if verb == "list" else "+", help=", ".join(ENGINES))
        one.add_argument("--json", action="store_true", help="print JSON: engine -> how, path, version")
    options = parser.parse_args(arguments)
    engines: list[str] = options.engines or list(ENGINES)
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown:
        parser.error(f"unknown engine {unknown[0]!r}; known are {', '.join(ENGINES)}")
    if options.verb == "ensure":
        # An ended run puts the machine back as it was.
        signal.signal(signal.SIGTERM, _exit_on_signal)
        try:
            ensure(engines)
        except Unavailable as unavailable:
            print(unavailable, file=sys.stderr)
            return 1
    print(_as_json(survey(engines)) if options.json else _as_table(survey(engines)))
    return 0


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _as_json(found: Iterable[Found]) -> str:
    rows = {
        one.engine: {"how": one.how, "path": str(one.path) if one.path else None, "version": one.version}
        for one in found
    }
    return json.dumps(rows, indent=2)


def _as_table(found: Iterable[Found]) -> str:
    rows = [("engine", "version", "found", "path")]
    rows += [(one.engine, one.version or "-", one.how, str(one.path or "-")) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
