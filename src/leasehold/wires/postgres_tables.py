"""Leasehold's tables in a PostgreSQL database: how they are made, and how a new connection finds out about them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from leasehold.errors import EngineError
from leasehold.wires.postgres_errors import NO_PRIVILEGE, NO_TABLE, SqlError, error_from, nonsense
from leasehold.wires.sql_table import FIELDS, Dialect, Front, Request, Statement

if TYPE_CHECKING:
    from leasehold.wires.postgres_line import Line
    from leasehold.wires.postgres_target import Target

SCHEMA_VERSION: Final = 3
"""Raised whenever the tables change: those of another version are refused, and left alone."""
CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""Microseconds since 1970. Not now(), which stands still within a transaction."""
LAZILY: Final = "(SELECT set_config('synchronous_commit', 'off', true)) AS lazily"
"""In a FROM clause: the transaction does not wait for the disk."""
MAKING_KEY: Final = 0x6C656173_65686F6C
"""The advisory lock under which tables are made, so that two processes do not do so at the same time."""
LOCK_TIMEOUT_MS: Final = 3000
"""How long a request waits for a row that somebody else has locked: nobody of ours does so for longer than a moment."""
STALL_MS: Final = 1000
"""How long a transaction may stand still between two requests: who stalls there keeps a name's row locked."""
CHECK_CLIENT_MS: Final = 1000
"""How soon the server notices that a client is gone whose request waits for a lock."""

_DDL: Final = """
CREATE TABLE IF NOT EXISTS {prefix}meta (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    base bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {prefix}lease (
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    turn_since bigint NOT NULL,
    closed_until bigint NOT NULL,
    crowd integer NOT NULL,
    holder text COLLATE "C",
    since bigint NOT NULL,
    expires bigint NOT NULL,
    lasts bigint NOT NULL,
    beat bigint NOT NULL,
    delay bigint NOT NULL,
    about text NOT NULL,
    front text[] NOT NULL DEFAULT '{{}}',
    lapses bigint NOT NULL DEFAULT 0,
    told text,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {prefix}seat (
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    holder text COLLATE "C" NOT NULL,
    mode text NOT NULL CHECK (mode IN ('shared', 'permit')),
    since bigint NOT NULL,
    expires bigint NOT NULL,
    lasts bigint NOT NULL,
    beat bigint NOT NULL,
    delay bigint NOT NULL,
    about text NOT NULL,
    PRIMARY KEY (namespace, name, token)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {prefix}waiter (
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    holder text COLLATE "C" NOT NULL,
    mode text NOT NULL CHECK (mode IN ('exclusive', 'shared', 'permit')),
    most integer NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    address text NOT NULL,
    about text NOT NULL,
    lasts bigint NOT NULL DEFAULT 0,
    delay bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, name, seq)
);
CREATE INDEX IF NOT EXISTS leasehold_waiter_holder ON {prefix}waiter (holder);
CREATE TABLE IF NOT EXISTS {prefix}session (
    key bigint PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    since bigint NOT NULL,
    ttl bigint NOT NULL,
    about text NOT NULL
) WITH (fillfactor = 50);
INSERT INTO {prefix}meta VALUES (1, {version}, 0) ON CONFLICT (one) DO NOTHING;
"""


_ONE_WAITS: Final = """EXISTS (
    SELECT 1 FROM generate_series(5, cardinality(l.front), {fields}) AS at WHERE l.front[at]::bigint > {now})"""


def prefix_of(schema: str) -> str:
    """What the names of our tables begin with. A schema's name is checked when it comes in."""
    return f'"{schema}".leasehold_'


def tables_sql(schema: str = "public") -> str:
    """The statements that make the tables, for an administrator."""
    make_schema = "" if schema == "public" else f'CREATE SCHEMA IF NOT EXISTS "{schema}";'
    return make_schema + _DDL.format(prefix=prefix_of(schema), version=SCHEMA_VERSION)


def dialect_of(schema: str, clock: str = CLOCK) -> Dialect:
    """How the lease table is written for PostgreSQL. `clock` is the server's own, except in tests."""
    return Dialect(
        now=clock,
        prefix=prefix_of(schema),
        after="(namespace, name) > ($1, $2)",
        write=lambda name, text: Statement(text, f"leasehold_{name}"),
        front=Front(
            read="array_to_json(front)::text",
            put="ARRAY(SELECT jsonb_array_elements_text($14::jsonb))",
            one_waits=_ONE_WAITS.format(fields=FIELDS, now=clock),
            written=_written,
            texts_in=json.loads,
        ),
        at_clock=f", set_config('idle_in_transaction_session_timeout', '{STALL_MS}', true)",
    )


def _written(texts: list[str]) -> str:
    """A list of texts, written the way the server writes it."""
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


_ENTER: Final = """
SELECT mine, (SELECT version FROM {prefix}meta),
    CASE WHEN mine THEN set_config('search_path', 'pg_catalog', false) END,
    CASE WHEN mine THEN set_config('lock_timeout', '{lock_timeout}', false) END,
    CASE WHEN mine AND current_setting('client_connection_check_interval', true) IS NOT NULL
        THEN set_config('client_connection_check_interval', '{check_client}', false) END
FROM (SELECT $1::boolean OR pg_backend_pid() = $2::integer AS mine) AS session
"""
_SCHEMA: Final = Statement("SELECT 1 FROM pg_namespace WHERE nspname = $1::text", "")


class Tables:
    """The tables of one schema, as connections find them."""

    def __init__(self, target: Target) -> None:
        self._schema, self._address, self._trusts_pooler = target.schema, target.address, target.trusts_pooler
        words = {"lock_timeout": LOCK_TIMEOUT_MS, "check_client": CHECK_CLIENT_MS}
        self._enter = Statement(_ENTER.format(prefix=prefix_of(target.schema), **words), "")

    async def enter(self, line: Line, until: float) -> bool:
        """Prepare a new connection, and make the tables if there are none.

        Returns whether the connection has a session of its own. Behind a pooler it may not have one, and then nothing
        may be set or prepared that outlasts a transaction.
        """
        line.prepares = False
        request = Request(self._enter, ("true" if self._trusts_pooler else "false", line.claimed_pid))
        try:
            version, own_session = await self._look(line, request, until)
            if version is None:
                await self._make(line, until)
                version, own_session = await self._look(line, request, until)
        except BaseException:
            line.close()
            raise
        if version != SCHEMA_VERSION:
            line.close()
            raise EngineError(
                f"{self._address} has tables of another version of Leasehold (theirs is {version}, this one knows "
                f"{SCHEMA_VERSION}); let all programs that share them use the same version, or give another ?schema="
            )
        line.prepares = own_session
        return own_session

    async def _look(self, line: Line, request: Request, until: float) -> tuple[int | None, bool]:
        try:
            [[own_session, version, *_]] = await line.ask_plainly(request, until, commits=False)
        except SqlError as error:
            if error.sqlstate in NO_TABLE:
                return None, False
            raise error_from(error, self._address, commits=False) from None
        if type(own_session) is not bool or not isinstance(version, int | None):
            raise nonsense((own_session, version), self._address)
        return version, own_session

    async def _make(self, line: Line, until: float) -> None:
        statements = ["BEGIN", f"SELECT pg_advisory_xact_lock({MAKING_KEY})"]
        # Where there is one, IF NOT EXISTS would still need the right to make one.
        if not await line.ask(Request(_SCHEMA, (self._schema,)), until):
            statements.append(f'CREATE SCHEMA "{self._schema}"')
        ddl = _DDL.format(prefix=prefix_of(self._schema), version=SCHEMA_VERSION)
        statements += [part for part in ddl.split(";") if part.strip()]
        try:
            for statement in [*statements, "COMMIT"]:
                await line.ask_plainly(_plain(statement), until, commits=False)
        except SqlError as error:
            if error.sqlstate != NO_PRIVILEGE:
                raise error_from(error, self._address, commits=False) from None
            raise self._not_allowed() from None

    def _not_allowed(self) -> EngineError:
        error = EngineError(
            f"{self._address} has no tables of Leasehold in the schema {self._schema!r}, and this user may not make "
            "them; let an administrator run what leasehold.engines.postgres.tables_sql() returns (it is in this "
            "error's notes), and GRANT SELECT, INSERT, UPDATE, DELETE on these tables to the user"
        )
        error.add_note(tables_sql(self._schema))
        return error


def _plain(text: str) -> Request:
    """A statement that is sent once in a connection."""
    return Request(Statement(text, ""))
