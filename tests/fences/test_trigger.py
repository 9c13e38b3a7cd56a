"""The fence inside of PostgreSQL: whoever writes to the table is held to it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from tests.cli.tool import Result, call_in_process
from tests.fences.sql_guards import OPENERS
from tests.fences.test_sql_transactions import Thing
from tests.support.postgres_server import PostgresServer

from leasehold.errors import InvalidName, Misuse, StaleToken, TokenJump
from leasehold.fences import AsyncTriggerFence, SqlFence, TriggerFence
from leasehold.fences.rule import DAY
from leasehold.fences.sql_rule import Ask
from leasehold.fences.trigger import install_sql, refusal_of, remove_sql


@pytest.fixture
def url(sql_url_of: Callable[[str], str]) -> Iterator[str]:
    """A database with a table of accounts."""
    url = sql_url_of("postgresql")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER)")
    yield url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE account")
        connection.execute("DELETE FROM leasehold_fence WHERE resource LIKE 'account%' OR resource = 'vault'")


@pytest.fixture
def database(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


Database = psycopg.Connection[tuple[Any, ...]]


def refused_with(database: Database, token: str | None, sql: str) -> str | None:
    """Write as a psql user would; the SQLSTATE of the refusal, or None."""
    try:
        with database.transaction():
            if token is not None:
                database.execute("SELECT set_config('leasehold.token', %s, true)", [token])
            database.execute(sql)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def balances(database: Database) -> list[tuple[Any, ...]]:
    return database.execute("SELECT id, balance FROM account ORDER BY id").fetchall()


def test_the_whole_table_can_be_one_resource(database: Database) -> None:
    database.execute(install_sql("account"))
    insert, update = "INSERT INTO account VALUES ('42', 1)", "UPDATE account SET balance = balance + 1"
    assert refused_with(database, None, insert) == "LH002"
    assert refused_with(database, "33", insert) is None
    assert refused_with(database, "34", update) is None
    assert refused_with(database, "33", update) == "LH001"
    assert refused_with(database, "34", update) is None
    assert refused_with(database, None, update) == "LH002", "the token was for its transaction only"
    for nothing in ("x", "-1", "9" * 19, "1.0", " 5"):
        assert refused_with(database, nothing, update) == "LH004"
    for sql in ("DELETE FROM account", "TRUNCATE account"):
        assert refused_with(database, "33", sql) == "LH001"
        assert refused_with(database, None, sql) == "LH002"
    assert balances(database) == [("42", 3)]
    assert SqlFence(database).floor("account") == 34


def test_each_row_can_be_a_resource(database: Database) -> None:
    database.execute(install_sql("account", column="id", resource="it's an account"))
    assert refused_with(database, "50", "INSERT INTO account VALUES ('42', 1)") is None
    assert refused_with(database, "10", "INSERT INTO account VALUES ('43', 1)") is None
    assert refused_with(database, "20", "UPDATE account SET balance = 9 WHERE id = '42'") == "LH001"
    assert refused_with(database, "20", "UPDATE account SET id = '42' WHERE id = '43'") == "LH001", "it moves into 42"
    assert refused_with(database, "49", "UPDATE account SET id = '44' WHERE id = '42'") == "LH001", "it moves out of 42"
    assert refused_with(database, "20", "DELETE FROM account") == "LH001"
    assert refused_with(database, "60", "TRUNCATE account") == "LH005"
    assert refused_with(database, "50", "DELETE FROM account WHERE id = '42'") is None
    assert refused_with(database, "49", "INSERT INTO account VALUES ('42', 7)") == "LH001", "the floor outlives the row"
    assert balances(database) == [("43", 1)]
    fence = SqlFence(database)
    assert (fence.floor("it's an account/42"), fence.floor("it's an account/43")) == (50, 10)
    database.execute("DELETE FROM leasehold_fence WHERE resource LIKE 'it%'")


def test_an_earlier_holder_waits_for_the_later_one_and_is_refused(database: Database, url: str) -> None:
    database.execute(install_sql("account"))
    told: list[str | None] = []

    def earlier() -> None:
        with psycopg.connect(url, autocommit=True) as other:
            told.append(refused_with(other, "39", "INSERT INTO account VALUES ('42', 39)"))

    thread = threading.Thread(target=earlier)
    with TriggerFence(database).writing(40):
        database.execute("INSERT INTO account VALUES ('42', 40)")
        thread.start()
        time.sleep(0.2)
        assert told == []
    thread.join(20)
    assert told == ["LH001"]
    assert balances(database) == [("42", 40)]


def test_python_gets_typed_refusals(database: Database, url: str) -> None:
    database.execute(install_sql("account"))
    fence, update = TriggerFence(database), "UPDATE account SET balance = 0"
    with fence.writing(34):
        database.execute(update)
    with pytest.raises(StaleToken) as stale, fence.writing(33):
        database.execute(update)
    assert (stale.value.resource, stale.value.token, stale.value.seen) == ("account", 33, 34)
    with pytest.raises(psycopg.Error) as unfenced:
        database.execute(update)
    assert isinstance(refusal_of(unfenced.value), Misuse)
    tomorrow = time.time_ns() // 1000 + 2 * DAY
    with pytest.raises(TokenJump) as jump, fence.writing(tomorrow):
        database.execute(update)
    assert (jump.value.token, jump.value.seen) == (tomorrow, 34)
    with fence.writing(tomorrow, allow_jump=True):
        database.execute(update)
    with pytest.raises(ZeroDivisionError), fence.writing(tomorrow):
        raise ZeroDivisionError
    with pytest.raises(Misuse), database.transaction():
        with fence.writing(tomorrow):
            database.execute(update)
        try:
            database.execute(update)  # after the block, in the same transaction
        except psycopg.Error as error:
            raise refusal_of(error) or error from None


@pytest.mark.parametrize("way", ["psycopg2", "core", "orm", "django"])
def test_any_layer_is_held_to_it(way: str, database: Database, url: str) -> None:
    database.execute(install_sql("account"))
    with TriggerFence(database).writing(34):
        database.execute("INSERT INTO account VALUES ('42', 1)")
    given, close = OPENERS[way](url)
    fence = TriggerFence(given)
    sql = Ask("UPDATE account SET balance = balance + 1", {})
    with fence.writing(35):
        fence._handle.ask(sql)
    with pytest.raises(StaleToken), fence.writing(34):
        fence._handle.ask(sql)
    close()
    assert balances(database) == [("42", 2)]


def test_objects_of_the_orm_are_held_to_it(database: Database, url: str, resource: str) -> None:
    database.execute(install_sql("thing", column="resource"))
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sqlalchemy.NullPool)
    with sqlalchemy.orm.Session(engine) as session:
        with TriggerFence(session).writing(5):
            session.add(Thing(resource=resource, value="mine"))
        with pytest.raises(StaleToken), TriggerFence(session).writing(4):
            session.get_one(Thing, resource).value = "stale"
        session.add(Thing(resource=resource + "x", value="unfenced"))
        with pytest.raises(sqlalchemy.exc.DBAPIError) as refused:
            session.commit()
        assert isinstance(refusal_of(refused.value), Misuse)
    database.execute(remove_sql("thing"))


def test_async_code_is_held_to_it(database: Database, url: str) -> None:
    database.execute(install_sql("account"))

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            fence = AsyncTriggerFence(connection)
            async with fence.writing(5):
                await connection.execute("INSERT INTO account VALUES ('42', 1)")
            with pytest.raises(StaleToken):
                async with fence.writing(4):
                    await connection.execute("UPDATE account SET balance = 0")

    asyncio.run(work())
    assert balances(database) == [("42", 1)]


def test_psql_is_held_to_it(database: Database, url: str) -> None:
    psql = shutil.which("psql")
    assert psql is not None, "psql comes with the client of PostgreSQL"

    def run(sql: str) -> subprocess.CompletedProcess[str]:
        command = [psql, url, "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-q", "-c", sql]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert run(install_sql("account")).returncode == 0
    assert run(install_sql("account")).returncode == 0, "it may be installed again"
    assert "LH002" in run("INSERT INTO account VALUES ('42', 1)").stderr
    assert run("SELECT set_config('leasehold.token', '5', true); INSERT INTO account VALUES ('42', 1)").returncode == 0
    assert "LH001" in run("SELECT set_config('leasehold.token', '4', true); DELETE FROM account").stderr
    assert balances(database) == [("42", 1)]


def test_writers_need_no_rights_on_the_floors(database: Database, url: str, sql_server: PostgresServer) -> None:
    """So they cannot lower them."""
    database.execute(install_sql("account"))
    sql_server.sql("CREATE ROLE writer")
    sql_server.sql("GRANT SELECT, INSERT, UPDATE ON account TO writer")
    with sql_server.superuser() as other:
        other.execute("SET ROLE writer")
        with TriggerFence(other).writing(5):
            other.execute("INSERT INTO account VALUES ('42', 1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute("UPDATE leasehold_fence SET token = 0")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute("SELECT leasehold_fenced_check('account')")
        other.execute("CREATE TEMP TABLE leasehold_fence (resource TEXT PRIMARY KEY, token BIGINT, written BIGINT)")
        with pytest.raises(StaleToken), TriggerFence(other).writing(4):
            other.execute("UPDATE account SET balance = 0")
        other.execute("RESET ROLE")
    sql_server.sql("DROP OWNED BY writer")
    sql_server.sql("DROP ROLE writer")


def test_many_rows_of_one_resource_leave_one_version_of_its_floor(database: Database) -> None:
    database.execute(install_sql("account", resource="vault", column="balance"))
    with TriggerFence(database).writing(5):
        database.execute("INSERT INTO account SELECT g::text, 7 FROM generate_series(1, 2000) g")
    size = database.execute("SELECT pg_relation_size('leasehold_fence')").fetchone()
    assert size is not None
    assert size[0] <= 8 * 8192
    database.execute("DELETE FROM leasehold_fence WHERE resource LIKE 'vault%'")


def test_floors_are_raised_for_all_as_everywhere(database: Database) -> None:
    database.execute(install_sql("account", floors="account_fence"))
    SqlFence(database, table="account_fence").raise_all_floors(10)
    assert refused_with(database, "9", "DELETE FROM account") == "LH001"
    assert refused_with(database, "10", "DELETE FROM account") is None
    database.execute(remove_sql("account"))
    database.execute("DROP TABLE account_fence")


@pytest.mark.parametrize("wrong", ["", "A", "a b", 'a"b', "a;b", "a.b", "a" * 32])
def test_names_are_plain_identifiers(wrong: str) -> None:
    with pytest.raises(Misuse):
        install_sql(wrong)
    for option in ("column", "schema", "floors"):
        with pytest.raises(Misuse, match=option):
            install_sql("account", **{option: wrong})
    with pytest.raises(InvalidName):
        install_sql("account", resource="a\nb")


# The command


def command(*arguments: str, folder: Path) -> Result:
    return call_in_process(["fence", *arguments], {"HOME": str(folder), "PATH": "/usr/bin"})


def test_the_command_prints_what_it_would_do(tmp_path: Path) -> None:
    printed = command("install", "account", "--column", "id", folder=tmp_path)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout == install_sql("account", column="id")
    removed = command("install", "account", "--remove", folder=tmp_path)
    assert removed.stdout == remove_sql("account")


def test_the_command_applies_it_and_shows_floors(database: Database, url: str, tmp_path: Path) -> None:
    done = command("install", "account", "--apply", "--on", url, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert refused_with(database, None, "DELETE FROM account") == "LH002"
    with TriggerFence(database).writing(34):
        database.execute("DELETE FROM account")
    SqlFence(database).announce("account/announced", 35)
    shown = command("status", "--on", url, "--json", "--limit", "100000", folder=tmp_path)
    assert shown.returncode == 0
    floors = {one["resource"]: one for one in json.loads(shown.stdout)["floors"]}
    assert floors["account"] == {"resource": "account", "token": "34", "written": "34"}
    assert floors["account/announced"] == {"resource": "account/announced", "token": "35", "written": None}
    table = command("status", "--on", url, "--limit", "100000", folder=tmp_path).stdout
    assert [line.split() for line in table.splitlines() if line.startswith("account ")] == [["account", "34", "34"]]
    assert command("install", "account", "--remove", "--apply", "--on", url, folder=tmp_path).returncode == 0
    assert refused_with(database, None, "DELETE FROM account") is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("install", "account", "--apply"), 64, "--apply needs --on"),
        (("install", "account", "--on", "postgresql://u:hunter22@127.0.0.1:1/x"), 64, "--on goes with --apply"),
        (("install", "Account"), 64, "table must be"),
        (("status", "--on", "etcd://host"), 64, "give the URL of what is protected"),
        (("status", "--on", "sqlite:///missing.db"), 64, "there is no file"),
        (("status", "--on", "postgresql://u:hunter22@127.0.0.1:1/x"), 78, "cannot be reached"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    result = command(*arguments, folder=tmp_path)
    assert said in result.stderr
    assert "hunter22" not in result.stderr + result.stdout
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (code, "", 1)
