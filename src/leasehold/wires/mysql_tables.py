"""Leasehold's tables in a MySQL or MariaDB database: how they are made, and how a new connection finds out about them.

All text is kept as bytes (VARBINARY): no collation can take one name for another, fold case or drop a trailing blank.
"""

from __future__ import annotations

from typing import Final

from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires import mysql_line
from leasehold.wires.mysql_errors import NO_PRIVILEGE, NO_TABLE, error_from
from leasehold.wires.mysql_line import Line
from leasehold.wires.mysql_packets import SqlError, written
from leasehold.wires.postgres_errors import nonsense
from leasehold.wires.sql_table import FIELDS, FRONT, Dialect, Front, Request, Statement

SCHEMA_VERSION: Final = 3
"""Raised whenever the tables change: those of another version are refused, and left alone."""
CLOCK: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""Microseconds since 1970, whatever the session's time zone. It stands still within one statement, and only there."""
PREFIX: Final = "leasehold_"
LOCK_TIMEOUT: Final = 3
"""How long a request waits for a row that somebody else has locked, in seconds: nobody of ours keeps it for long."""
STALL: Final = 2
"""How long a transaction may stand still between two requests, in seconds: who stalls there keeps a name locked."""

BEGIN: Final = Request(Statement(f"SET SESSION wait_timeout = {STALL}; START TRANSACTION", "begin"))
COMMIT: Final = Request(Statement("COMMIT; SET SESSION wait_timeout = DEFAULT", mysql_line.COMMIT))
READ: Final = Request(Statement("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION READ ONLY", "read"))

_DDL: Final = """
CREATE TABLE IF NOT EXISTS leasehold_meta (
    one TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    base BIGINT NOT NULL
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS leasehold_lease (
    namespace VARBINARY(255) NOT NULL,
    name VARBINARY(255) NOT NULL,
    token BIGINT NOT NULL,
    turn_since BIGINT NOT NULL,
    closed_until BIGINT NOT NULL,
    crowd INT NOT NULL,
    holder VARBINARY(64),
    since BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    lasts BIGINT NOT NULL,
    beat BIGINT NOT NULL,
    delay BIGINT NOT NULL,
    about VARBINARY(1024) NOT NULL,
    front MEDIUMBLOB NOT NULL,
    lapses BIGINT NOT NULL,
    told VARBINARY(64),
    letter VARBINARY(32) NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, name)
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS leasehold_seat (
    namespace VARBINARY(255) NOT NULL,
    name VARBINARY(255) NOT NULL,
    token BIGINT NOT NULL,
    holder VARBINARY(64) NOT NULL,
    mode VARBINARY(9) NOT NULL,
    since BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    lasts BIGINT NOT NULL,
    beat BIGINT NOT NULL,
    delay BIGINT NOT NULL,
    about VARBINARY(1024) NOT NULL,
    PRIMARY KEY (namespace, name, token)
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS leasehold_waiter (
    namespace VARBINARY(255) NOT NULL,
    name VARBINARY(255) NOT NULL,
    seq BIGINT NOT NULL,
    holder VARBINARY(64) NOT NULL,
    mode VARBINARY(9) NOT NULL,
    most INT NOT NULL,
    since BIGINT NOT NULL,
    until BIGINT NOT NULL,
    address VARBINARY(64) NOT NULL,
    about VARBINARY(1024) NOT NULL,
    lasts BIGINT NOT NULL DEFAULT 0,
    delay BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, name, seq),
    KEY leasehold_waiter_holder (holder)
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS leasehold_wake (
    address VARBINARY(64) NOT NULL,
    letter VARBINARY(32) NOT NULL,
    holder VARBINARY(64) NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (address, letter)
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS leasehold_session (
    namespace VARBINARY(255) NOT NULL,
    name VARBINARY(255) NOT NULL,
    lock_name VARBINARY(64) NOT NULL,
    token BIGINT NOT NULL,
    since BIGINT NOT NULL,
    ttl BIGINT NOT NULL,
    about VARBINARY(1024) NOT NULL,
    PRIMARY KEY (namespace, name)
) ENGINE=InnoDB;
INSERT IGNORE INTO leasehold_meta VALUES (1, {version}, 0);
"""


def tables_sql() -> str:
    """The statements that make the tables, for an administrator."""
    return _DDL.format(version=SCHEMA_VERSION)


def text_at(at: str | int, front: str = "front") -> str:
    """An expression: what stands at this position in a name's row, counted from one; empty behind the last."""
    return f"SUBSTRING_INDEX(SUBSTRING_INDEX({front}, ' ', {at}), ' ', -1)"


_UNTILS: Final = " UNION ALL ".join(f"SELECT {FIELDS * place + 5} AS position" for place in range(FRONT))
_ONE_WAITS: Final = "EXISTS (SELECT 1 FROM ({untils}) AS places WHERE CAST(CONCAT('0', {until}) AS SIGNED) > {now})"
_ABOUT: Final = 6
"""Where in a place the only text stands that may have blanks: that is written in hexadecimal."""


def dialect_of(clock: str = CLOCK) -> Dialect:
    """How the lease table is written for MySQL and MariaDB. `clock` is the server's own, except in tests."""
    return Dialect(
        now=clock,
        prefix=PREFIX,
        after="namespace >= $1 AND (namespace > $1 OR name > $2)",
        write=written,
        front=Front(
            read="front",
            put="$14",
            one_waits=_ONE_WAITS.format(untils=_UNTILS, until=text_at("places.position", "l.front"), now=clock),
            written=_front_written,
            texts_in=_texts_in,
        ),
    )


def _front_written(texts: list[str]) -> str:
    """Texts in one, with a blank behind each."""
    hidden = (text.encode().hex().upper() if at % FIELDS == _ABOUT else text for at, text in enumerate(texts))
    return "".join(f"{text} " for text in hidden)


def _texts_in(front: str) -> list[str]:
    *texts, end = str.split(front, " ")
    if end:
        raise ValueError("a name's row ends with a blank")
    texts[_ABOUT::FIELDS] = [bytes.fromhex(about).decode() for about in texts[_ABOUT::FIELDS]]
    return texts


# Read-committed: locks of rows that are not there (of gaps) would let two who add the same name undo each other.
# MariaDB 11.6 and later would refuse a statement that waited for a row which changed meanwhile: every hand-over does.
# Time limits of the server's own are for queries that run away; those in comments are known to one of the two only.
_ENTER: Final = Statement(
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
    "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, "
    "sql_auto_is_null = 0, time_zone = '+00:00', innodb_lock_wait_timeout = {0} "
    "/*M!100108 , max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */ "
    "/*M!110602 , innodb_snapshot_isolation = 0 */; "
    "SELECT @@global.read_only, (SELECT version FROM leasehold_meta)",
    "enter",
)


class Tables:
    """The tables of one database, as connections find them."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def enter(self, line: Line, until: float) -> None:
        """Prepare a new connection, and make the tables if there are none."""
        try:
            version = await self._look(line, until)
            if version is None:
                await self._make(line, until)
                version = await self._look(line, until)
        except BaseException:
            line.close()
            raise
        if version != SCHEMA_VERSION:
            line.close()
            raise EngineError(
                f"{self._address} has tables of another version of Leasehold (theirs is {version}, this one knows "
                f"{SCHEMA_VERSION}); let all programs that share them use the same version, or give another database"
            )

    async def _look(self, line: Line, until: float) -> int | None:
        try:
            [[row]] = await line.ask_plainly([Request(_ENTER, (LOCK_TIMEOUT,))], until, commits=False)
        except SqlError as error:
            if error.code == NO_TABLE:
                return None
            raise error_from(error, self._address, commits=False) from None
        read_only, version = row
        if read_only not in {0, "0", "OFF"}:
            raise EngineUnavailable(
                f"{self._address} takes no writes (read_only is on); leases live on the primary: connect to that, or "
                "give all servers as host1,host2"
            )
        if not isinstance(version, int | None):
            raise nonsense(version, self._address)
        return version

    async def _make(self, line: Line, until: float) -> None:
        statements = [part for part in tables_sql().split(";") if part.strip()]
        try:
            for statement in statements:
                await line.ask_plainly([Request(Statement(statement, "make"))], until, commits=False)
        except SqlError as error:
            if error.code not in NO_PRIVILEGE:
                raise error_from(error, self._address, commits=False) from None
            raise self._not_allowed() from None

    def _not_allowed(self) -> EngineError:
        error = EngineError(
            f"{self._address} has no tables of Leasehold, and this user may not make them; let an administrator run "
            "what leasehold.engines.mysql.tables_sql() returns (it is in this error's notes), and GRANT SELECT, "
            "INSERT, UPDATE, DELETE on these tables to the user"
        )
        error.add_note(tables_sql())
        return error
