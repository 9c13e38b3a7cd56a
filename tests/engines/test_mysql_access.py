"""Getting in: URLs and client objects, passwords, permissions, TLS; and nothing shown that is secret."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest
import sqlalchemy
from tests.engines.mysql_help import calling, opened
from tests.engines.sql_help import soon, want
from tests.support.certificates import make_certificates
from tests.support.mariadb_server import PASSWORD, MariadbServer, running_mariadb

from leasehold import Leasehold
from leasehold.core.engine import Busy, Grant
from leasehold.core.worlds import run_blocking
from leasehold.engines.mysql import open_engine, tables_sql
from leasehold.errors import EngineError, EngineUnavailable, GuaranteeWarning, InvalidURL, Misuse
from leasehold.wires.mysql_target import target_from_client, target_from_url

WORLDS = ("blocking", "asyncio")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def exercise(url: str, world: str = "blocking") -> None:
    """The whole life of a contended lease."""
    with calling(url, world) as (engine, run):
        first = run(engine.take(want("a", "h1"), until=soon(engine)))
        assert isinstance(first, Grant)
        assert isinstance(run(engine.take(want("a", "h2"), until=soon(engine), patience=9.0)), Busy)
        assert run(engine.release("a", "h1", until=soon(engine))) is True
        since = engine.world.now()
        run(engine.wait(want("a", "h2"), since + 5.0))
        assert engine.world.now() - since < 2.0
        second = run(engine.take(want("a", "h2"), until=soon(engine), patience=9.0))
        assert isinstance(second, Grant)
        assert second.token > first.token
        assert run(engine.release("a", "h2", until=soon(engine))) is True


def failure(url: str) -> EngineError:
    """What the first request fails with; it and all that hangs on it is free of the password."""
    with opened(url) as engine, pytest.raises(EngineError) as caught:
        run_blocking(engine.take(want("a", "h"), until=soon(engine, 8.0)))
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__context__)
    assert PASSWORD not in shown
    return caught.value


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql:/x", "it must start with"),
        ("mysql://u:canary@/db", "no host"),
        ("mysql://127.0.0.1/db", "no user"),
        ("mysql://u:canary@127.0.0.1", "no database"),
        ("mysql://u:canary@127.0.0.1/db/more", "no database"),
        ("mysql://u:can@ary@127.0.0.1/db", "strange place"),
        ("mysql://u:canary%zz@127.0.0.1/db", "two hexadecimal digits"),
        ("mysql://u:canary@127.0.0.1:70000/db", "port"),
        ("mysql://u:canary@127.0.0.1:x/db", "port"),
        ("mysql://u:canary@127.0.0.1,127.0.0.1:3306/db", "twice"),
        ("mysql://u:canary@127.0.0.1/db?charset=utf8", "not known; known are ssl-mode, "),
        ("mysql://u:canary@127.0.0.1/db?sslmode=canary", r"not known, did you mean ssl-mode\? known are "),
        ("mysql://u:canary@127.0.0.1/db?ssl-mode=PREFERRED", "ssl-mode is one of"),
        ("mysql://u:canary@127.0.0.1/db?ssl-ca=/nowhere", "cannot be read"),
        ("mysql://u:canary@127.0.0.1/db?socket=/tmp/s", "a host and a socket"),
        ("mysql://u:canary@host/db#x", "'#'"),
    ],
)
def test_a_wrong_url_is_explained_and_not_shown(url: str, problem: str) -> None:
    with pytest.raises(InvalidURL, match=problem) as caught:
        target_from_url(url)
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert "canary" not in "".join(shown.format()).replace(repr(url), "")


def test_what_a_url_says_is_understood() -> None:
    target = target_from_url("mariadb://w%40rker:p%2Fss@db-1:3307,db-2/app%20data?ssl-mode=disabled")
    assert (target.user, target.password, target.database) == ("w@rker", "p/ss", "app data")
    assert target.address == "mysql://db-1:3307,db-2:3306/app%20data"
    assert "p/ss" not in repr(target)
    assert target_from_url("mysql://u@/d?socket=/run/s").address == "mysql:///d?socket=/run/s"


def test_another_machine_is_spoken_to_in_verified_tls_unless_told() -> None:
    tls = target_from_url("mysql://u:p@db-1/d").tls
    assert tls is not None
    assert tls.check_hostname
    assert target_from_url("mysql://u:p@localhost/d").tls is None
    with pytest.warns(GuaranteeWarning, match="in the clear"):
        open_engine("mysql://u:p@db-2/d?ssl-mode=DISABLED", namespace="", client_label="test")
    with pytest.warns(GuaranteeWarning, match="not known to be the server"):
        open_engine("mysql://u:p@db-3/d?ssl-mode=REQUIRED", namespace="", client_label="test")


def test_a_unix_socket_and_a_name_will_do(mariadb_server: MariadbServer, world: str) -> None:
    exercise(f"mysql://leasehold:{PASSWORD}@/leasehold?socket={mariadb_server.socket}", world)
    exercise(mariadb_server.url_at("localhost", mariadb_server.port), world)


def test_client_objects_give_their_settings(mariadb_server: MariadbServer) -> None:
    target = target_from_url(mariadb_server.url)
    with contextlib.closing(
        pymysql.connect(
            host="127.0.0.1", port=mariadb_server.port, user="leasehold", password=PASSWORD, database="leasehold"
        )
    ) as client:
        found = target_from_client(client)
        assert (found.tls is None) == (mariadb_server.engine == "mariadb"), "PyMySQL speaks TLS where the server does"
        assert replace(found, tls=None, tls_if_asked=True) == target
        with Leasehold(client, namespace="from-client") as locks, locks.lock("a") as lease:
            assert lease.token
    engine = sqlalchemy.create_engine(mariadb_server.url.replace("://", "+pymysql://"))
    assert target_from_client(engine) == target
    with Leasehold(engine, namespace="from-sqlalchemy") as locks, locks.lock("a") as lease:
        assert lease.token
    engine.dispose()
    with pytest.raises(Misuse, match="accepted are"):
        target_from_client(object())


def test_who_is_not_let_in_is_told_why(mariadb_server: MariadbServer) -> None:
    port = mariadb_server.port
    for url, why in [
        (f"mysql://leasehold:wrong-{PASSWORD}@127.0.0.1:{port}/leasehold", "user or password is wrong"),
        (f"mysql://leasehold:{PASSWORD}@127.0.0.1:{port}/mysql", "may not use this database"),
    ]:
        error = failure(url)
        assert isinstance(error, EngineUnavailable)
        assert why in str(error)
    # MySQL does not tell who is a user: it asks one that there is not by some plugin or other.
    nobody = str(failure(f"mysql://nobody:{PASSWORD}@127.0.0.1:{port}/leasehold"))
    assert "user or password is wrong" in nobody or "if it knows one of that name" in nobody


def test_a_plugin_that_is_not_supported_is_named(mariadb_server: MariadbServer) -> None:
    if mariadb_server.engine == "mariadb":
        mariadb_server.sql("INSTALL SONAME 'auth_ed25519'")
        mariadb_server.add_user("stranger", f"VIA ed25519 USING PASSWORD('{PASSWORD}')")
    else:
        mariadb_server.add_user("stranger", f"WITH sha256_password BY '{PASSWORD}'")
    mariadb_server.sql("GRANT ALL ON leasehold.* TO stranger")
    error = failure(f"mysql://stranger:{PASSWORD}@127.0.0.1:{mariadb_server.port}/leasehold")
    assert {"mariadb": "client_ed25519", "mysql": "'sha256_password'"}[mariadb_server.engine] in str(error)
    assert "mysql_native_password" in str(error)


@pytest.mark.parametrize("mariadb_server", ["mysql"], indirect=True)
def test_the_password_itself_is_told_to_a_server_of_this_machine_in_tls(
    mariadb_server: MariadbServer, world: str
) -> None:
    """MySQL keeps a hash of which no proof can be made, and remembers who has told it the password."""
    url, in_clear = mariadb_server.url, f"{mariadb_server.url}?ssl-mode=DISABLED"
    mariadb_server.sql("FLUSH PRIVILEGES")
    assert "asks for the password itself (caching_sha2_password)" in str(failure(in_clear))
    wrong = url.replace(PASSWORD, f"wrong-{PASSWORD}")
    assert "user or password is wrong" in str(failure(wrong))
    with mariadb_server.without_tls():
        assert "asks for the password itself (caching_sha2_password)" in str(failure(url))
    exercise(url, world)
    exercise(in_clear, world)
    assert "user or password is wrong" in str(failure(wrong))


@pytest.mark.parametrize("mariadb_server", ["mysql"], indirect=True)
def test_a_server_that_wants_tls_says_so(mariadb_server: MariadbServer) -> None:
    mariadb_server.sql("SET GLOBAL require_secure_transport = ON")
    try:
        assert "it lets nobody in without TLS" in str(failure(mariadb_server.url))
        exercise(f"{mariadb_server.url}?ssl-mode=REQUIRED")
    finally:
        mariadb_server.sql("SET GLOBAL require_secure_transport = OFF")


def test_the_tables_may_be_made_by_an_administrator(mariadb_server: MariadbServer, world: str) -> None:
    mariadb_server.sql("CREATE DATABASE IF NOT EXISTS theirs")
    mariadb_server.add_user("modest")
    mariadb_server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON theirs.* TO modest")
    url = f"mysql://modest:{PASSWORD}@127.0.0.1:{mariadb_server.port}/theirs"
    error = failure(url)
    assert "may not make them" in str(error)
    assert error.__notes__ == [tables_sql()]
    with contextlib.closing(mariadb_server.superuser()) as admin, admin.cursor() as cursor:
        admin.select_db("theirs")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyMySQL tells that a table is not there yet
            for statement in filter(str.strip, tables_sql().split(";")):
                cursor.execute(statement)
    exercise(url, world)
    mariadb_server.sql("REVOKE INSERT ON theirs.* FROM modest")
    error = failure(url)
    assert "lacks a permission" in str(error)
    mariadb_server.sql("DROP DATABASE theirs")


@pytest.mark.parametrize("mariadb_server", ["mysql"], indirect=True)
def test_a_server_that_is_set_strictly_and_strangely_will_do(mariadb_server: MariadbServer, world: str) -> None:
    usual = {
        name: mariadb_server.sql(f"SELECT @@global.{name}")[0][0]
        for name in ("sql_require_primary_key", "sql_mode", "collation_server", "time_zone", "transaction_isolation")
    }
    strange = (1, "ANSI,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES", "utf8mb4_0900_as_cs", "+05:45", "SERIALIZABLE")
    try:
        for name, value in zip(usual, strange, strict=True):
            mariadb_server.sql(f"SET GLOBAL {name} = %s", value)
        mariadb_server.sql("CREATE DATABASE strange")
        mariadb_server.sql("GRANT ALL ON strange.* TO leasehold")
        url = mariadb_server.url.removesuffix("leasehold") + "strange"
        exercise(url, world)
        with Leasehold(url.replace("://", "+session://", 1)) as locks, locks.lock("a") as lease:
            assert lease.token
    finally:
        mariadb_server.sql("DROP DATABASE strange")
        for name, value in usual.items():
            mariadb_server.sql(f"SET GLOBAL {name} = %s", value)


def test_tables_of_another_version_are_left_alone(mariadb_server: MariadbServer) -> None:
    mariadb_server.sql("CREATE DATABASE newer")
    mariadb_server.sql("GRANT ALL ON newer.* TO leasehold")
    mariadb_server.sql("CREATE TABLE newer.leasehold_meta (one INT, version INT, base BIGINT)")
    mariadb_server.sql("INSERT INTO newer.leasehold_meta VALUES (1, 99, 0)")
    error = failure(mariadb_server.url.removesuffix("leasehold") + "newer")
    assert "theirs is 99" in str(error)
    mariadb_server.sql("DROP DATABASE newer")


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def secure_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MariadbServer, Path]]:
    """A server whose certificate is for the name localhost; and the file of its authority."""
    folder = make_certificates(tmp_path_factory.mktemp("tls"), "DNS:localhost")
    settings = {"plugin-load-add": "auth_pam", "pam-use-cleartext-plugin": "1"} if request.param == "mariadb" else {}
    files = {"ssl-cert": folder / "server.pem", "ssl-key": folder / "server.key"}
    with running_mariadb(engine=request.param, files=files, **settings) as server:
        yield server, folder / "ca.pem"


def test_tls_is_spoken_and_checked(secure_server: tuple[MariadbServer, Path], world: str) -> None:
    server, certificate = secure_server
    server.sql("ALTER USER leasehold REQUIRE SSL")
    by_name, by_number = (server.url_at(host, server.port) for host in ("localhost", "127.0.0.1"))
    exercise(f"{by_name}?ssl-ca={certificate}", world)
    exercise(f"{by_number}?ssl-ca={certificate}&ssl-mode=VERIFY_CA", world)
    exercise(f"{by_number}?ssl-mode=REQUIRED", world)
    assert "user or password is wrong" in str(failure(by_name)), "in the clear this user is not let in"
    assert "TLS could not be begun" in str(failure(f"{by_number}?ssl-ca={certificate}"))
    assert "TLS could not be begun" in str(failure(f"{by_name}?ssl-mode=VERIFY_IDENTITY"))


def test_a_server_without_tls_is_not_spoken_to_in_the_clear(mariadb_server: MariadbServer) -> None:
    with mariadb_server.without_tls():
        assert "does not speak TLS" in str(failure(f"{mariadb_server.url}?ssl-mode=REQUIRED"))


@pytest.mark.parametrize("secure_server", ["mariadb"], indirect=True)
def test_the_password_itself_is_given_to_nobody_on_an_open_line(secure_server: tuple[MariadbServer, Path]) -> None:
    server, certificate = secure_server
    server.sql("CREATE USER pam_user IDENTIFIED VIA pam")
    server.sql("GRANT ALL ON leasehold.* TO pam_user")
    at = f"mysql://pam_user:{PASSWORD}@localhost:{server.port}/leasehold"
    assert "asks for the password itself (mysql_clear_password)" in str(failure(at))
    assert "user or password is wrong" in str(failure(f"{at}?ssl-ca={certificate}")), "it was given, and not PAM's"
