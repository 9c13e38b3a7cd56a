"""Getting in: passwords, permissions, TLS, standbys, Unix sockets, client objects. Who is not let in is told why."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import warnings
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy
from tests.engines.driving import WORLDS
from tests.engines.postgres_help import assert_hidden, calling, exercise
from tests.engines.sql_help import want
from tests.support.certificates import make_certificates
from tests.support.postgres_server import PASSWORD, PostgresServer, running_postgres
from tests.support.server_process import memory_folder

from leasehold import EngineError, EngineUnavailable, GuaranteeWarning, InvalidURL, Leasehold, Misuse
from leasehold.core.engine import Grant
from leasehold.engines.postgres import open_engine, tables_sql
from leasehold.wires.postgres_target import target_from_url


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def address(server: PostgresServer, user: str = "leasehold", password: str = PASSWORD, more: str = "") -> str:
    return f"postgresql://{user}:{password}@127.0.0.1:{server.port}/leasehold{more}"


# Who is not let in


@pytest.mark.parametrize(
    ("user", "password", "database", "why"),
    [
        ("leasehold", "canary-9wrong", "leasehold", "password authentication failed.*; check the user, the password"),
        ("nobody", "canary-9wrong", "leasehold", "password authentication failed"),
        ("leasehold", PASSWORD, "missing", "does not exist.*; check the name"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    postgres_server: PostgresServer, world: str, user: str, password: str, database: str, why: str
) -> None:
    place = f"127.0.0.1:{postgres_server.port}/{database}"
    with calling(f"postgresql://{user}:{password}@{place}", world) as engine:
        with pytest.raises(EngineUnavailable, match=why) as told:
            engine.take(want("n", "h"))
        assert f"postgresql://{place} cannot be reached" in str(told.value)
        assert_hidden(told.value, password)


@pytest.fixture
def guarded(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """`worker` is a user who may make nothing, and `locking` a schema that an administrator made."""
    sql = postgres_server.sql
    sql(f"CREATE ROLE worker LOGIN PASSWORD '{PASSWORD}'")
    with contextlib.closing(postgres_server.superuser()) as administrator:
        administrator.execute(tables_sql("locking").encode())
    yield postgres_server
    sql("DROP SCHEMA locking CASCADE")
    sql("DROP OWNED BY worker CASCADE")
    sql("DROP ROLE worker")


def test_without_permissions_an_administrator_is_told_what_to_do(guarded: PostgresServer, world: str) -> None:
    with (
        calling(address(guarded, "worker", more="?schema=missing"), world) as engine,
        pytest.raises(EngineError, match=r"may not make.*tables_sql\(\).*GRANT SELECT, INSERT, UPDATE, DELETE") as told,
    ):
        engine.take(want("n", "h"))
    assert told.value.__notes__ == [tables_sql("missing")]
    assert_hidden(told.value)


def test_permissions_as_the_messages_name_them_are_enough(guarded: PostgresServer, world: str) -> None:
    with calling(address(guarded, "worker", more="?schema=locking"), world) as engine:
        guarded.sql("GRANT USAGE ON SCHEMA locking TO worker")
        with pytest.raises(EngineError, match=r"lacks a permission on the tables.*GRANT SELECT, INSERT") as told:
            engine.take(want("n", "h"))
        assert not isinstance(told.value, EngineUnavailable)
        guarded.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA locking TO worker")
        exercise(engine)


# Servers that take no writes


def test_a_read_only_server_is_told_and_nothing_is_left(postgres_server: PostgresServer, world: str) -> None:
    with calling(postgres_server.url, world) as engine:
        postgres_server.sql("ALTER ROLE leasehold SET default_transaction_read_only = on")
        try:
            with pytest.raises(EngineUnavailable, match=r"takes no writes.*primary"):
                engine.take(want("n", "h"))
        finally:
            postgres_server.sql("ALTER ROLE leasehold RESET default_transaction_read_only")
        assert engine.status("n") is None
        exercise(engine)


@pytest.fixture(scope="module")
def standby() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and a standby that was copied from it."""
    with running_postgres() as primary, memory_folder() as folder:
        with Leasehold(primary.url) as locks:
            locks.status("any")
        copy = PostgresServer(folder)
        primary.stop()
        shutil.copytree(primary.data, copy.data)
        (copy.data / "standby.signal").touch()
        copy.take_over_files()
        primary.start()
        copy.start()
        try:
            yield primary, copy
        finally:
            copy.kill()


def test_a_standby_is_told(standby: tuple[PostgresServer, PostgresServer], world: str) -> None:
    with (
        calling(standby[1].url, world) as engine,
        pytest.raises(EngineUnavailable, match=r"takes no writes \(in_hot_standby is on\).*host1,host2"),
    ):
        engine.take(want("n", "h"))


def test_of_several_servers_the_primary_is_used(standby: tuple[PostgresServer, PostgresServer], world: str) -> None:
    primary, copy = standby
    hosts = f"127.0.0.1:{copy.port},127.0.0.1:{primary.port}"
    with calling(f"postgresql://leasehold:{PASSWORD}@{hosts}/leasehold", world) as engine:
        exercise(engine)


# TLS


@pytest.fixture(scope="module")
def tls() -> Iterator[PostgresServer]:
    """A server whose certificate is for `localhost`, by an authority of its own; others are beside it."""
    with memory_folder() as folder:
        server = PostgresServer(folder, {"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.key"})
        make_certificates(folder, "DNS:localhost")
        try:
            server.create(with_files=("server.pem", "server.key"))
            yield server
        finally:
            server.kill()


def tls_url(server: PostgresServer, host: str, more: str) -> str:
    return f"postgresql://leasehold:{PASSWORD}@{host}:{server.port}/leasehold?{more}"


def test_a_checked_certificate_opens_the_door(tls: PostgresServer, world: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuaranteeWarning)
        trusted = f"sslmode=verify-full&sslrootcert={tls.folder}/ca.pem"
        with calling(tls_url(tls, "localhost", trusted), world) as engine:
            exercise(engine)
            query = (
                "SELECT ssl, count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = %s GROUP BY 1"
            )
            [(is_encrypted, connections)] = tls.sql(query, "leasehold")
            assert is_encrypted
            assert connections == 2  # one of them listens


@pytest.mark.parametrize(
    ("host", "authority", "why"),
    [
        ("localhost", "other", "certificate verify failed.*; check sslmode, sslrootcert"),
        ("127.0.0.1", "ca", "does not match host name"),
    ],
)
def test_a_wrong_certificate_does_not(tls: PostgresServer, world: str, host: str, authority: str, why: str) -> None:
    url = tls_url(tls, host, f"sslmode=verify-full&sslrootcert={tls.folder}/{authority}.pem")
    with calling(url, world) as engine, pytest.raises(EngineUnavailable, match=why) as told:
        engine.take(want("n", "h"))
    assert_hidden(told.value)


def test_a_server_without_tls_does_not_either(postgres_server: PostgresServer, world: str) -> None:
    with (
        calling(address(postgres_server, more="?sslmode=require"), world) as engine,
        pytest.raises(EngineUnavailable, match=r"server does not support SSL.*; check sslmode"),
    ):
        engine.take(want("n", "h"))


def test_what_others_could_read_is_warned_of() -> None:
    with pytest.warns(GuaranteeWarning, match=r"in the clear.*sslmode=prefer; use sslmode=verify-full"):
        Leasehold("postgresql://db.example/app?sslmode=prefer").close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuaranteeWarning)
        Leasehold("postgresql://db2.example/app").close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("sslmode=bogus", "the option sslmode is disable, allow, prefer, require, verify-ca or verify-full"),
        ("channel_binding=bogus", "the option channel_binding"),
        ("gssencmode=bogus", "the option gssencmode"),
        ("ssl_min_protocol_version=bogus", "the option ssl_min_protocol_version"),
        ("target_session_attrs=bogus", "the option target_session_attrs"),
        ("keepalives_idle=bogus", "the option keepalives_idle"),
        ("tcp_user_timeout=bogus&sslmode=require", "the option tcp_user_timeout"),
        ("ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2", "together: ssl_m"),
    ],
)
def test_options_that_libpq_does_not_allow_are_refused_at_once(options: str, says: str) -> None:
    with pytest.raises(InvalidURL, match=says) as told:
        target_from_url(f"postgresql://u:{PASSWORD}@127.0.0.1:1/db?{options}")
    assert "bogus" not in str(told.value)
    assert_hidden(told.value)


def test_a_setting_of_the_environment_that_libpq_does_not_allow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "bogus")
    with pytest.raises(InvalidURL, match="a setting in the environment"):
        Leasehold("postgresql://127.0.0.1:1/db")


@pytest.mark.parametrize(
    "options",
    [
        "gssencmode=require",
        "sslmode=require&sslcertmode=require",
        "sslmode=verify-full&sslrootcert=system",
        "keepalives_idle=-1&keepalives=1",
        "target_session_attrs=read-write&connect_timeout=3",
        "options=-c%20search_path%3Dx&application_name=a",
    ],
)
def test_options_that_libpq_allows_are_taken(options: str) -> None:
    Leasehold(f"postgresql://u@127.0.0.1:1/db?{options}").close()


# Other ways in


def test_a_unix_socket(postgres_server: PostgresServer, world: str) -> None:
    url = f"postgresql://leasehold@/leasehold?host={postgres_server.folder}&port={postgres_server.port}"
    with calling(url, world) as engine:
        exercise(engine)


def test_client_objects_open_the_door(postgres_server: PostgresServer, world: str) -> None:
    with psycopg.connect(postgres_server.url) as connection, calling(connection, world) as engine:
        exercise(engine)
    by_sqlalchemy = sqlalchemy.create_engine(postgres_server.url.replace("postgresql", "postgresql+psycopg", 1))
    with calling(by_sqlalchemy, world) as engine:
        exercise(engine)
    with by_sqlalchemy.connect() as theirs, calling(theirs, world) as engine:
        exercise(engine)
    by_sqlalchemy.dispose()


def test_an_async_connection_opens_the_door(postgres_server: PostgresServer) -> None:
    async def connect() -> psycopg.AsyncConnection[object]:
        return await psycopg.AsyncConnection.connect(postgres_server.url)

    with asyncio.Runner() as runner:
        connection = runner.run(connect())
        with calling(connection, "blocking") as engine:
            exercise(engine)
        runner.run(connection.close())


def test_a_closed_connection_does_not(postgres_server: PostgresServer) -> None:
    connection = psycopg.connect(postgres_server.url)
    connection.close()
    with pytest.raises(Misuse, match="it is closed, or is no connection; accepted are a Connection") as told:
        open_engine(connection, namespace="", client_label="test")
    assert_hidden(told.value)


def test_the_clients_own_connection_is_left_alone(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url) as connection:
        with calling(connection, "blocking") as engine:
            assert isinstance(engine.take(want("n", "h")), Grant)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert not connection.closed
