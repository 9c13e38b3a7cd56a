"""A fence that lives in PostgreSQL itself: a trigger holds every writer of a table to it, be it an ORM or psql.

The DDL is made here and installed once (`leasehold fence install` prints or applies it). From then on a transaction
that writes to the table says its token first:

    SELECT set_config('leasehold.token', '34', true)

or, in Python, runs inside of `TriggerFence(connection).writing(lease)`. Without a token the write is refused with
SQLSTATE LH002, with a stale one with LH001.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from leasehold.errors import InvalidToken, LeaseholdError, Misuse, StaleToken, TokenJump, TokenUsed
from leasehold.fences.rule import DAY, HasToken, token_of
from leasehold.fences.sql_handles import async_handle, blocking_handle, is_session
from leasehold.fences.sql_rule import TABLE, Ask, check_identifier
from leasehold.names import check_name
from leasehold.watching import refused

STALE, MISSING, JUMP, INVALID, TRUNCATED, USED = "LH001", "LH002", "LH003", "LH004", "LH005", "LH006"
"""The SQLSTATEs of the trigger."""

FUNCTION = "leasehold_fenced"
TRIGGER = "leasehold_fence"

# It runs with the rights of whoever installed it, so that writers need none on the floors and cannot lower them; hence
# the fixed search path. A floor that is there already is only locked, not written again, so that a statement that
# touches many rows of one resource leaves one version of its floor behind. With leasehold.once, what this transaction
# has written itself is kept in a setting of the transaction, which goes with it: many rows of it may be written.
_FUNCTION = """
CREATE OR REPLACE FUNCTION "{schema}"."{function}_check"(about text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE
    given text := coalesce(current_setting('leasehold.token', true), '');
    mine bigint;
    seen bigint;
    wrote bigint;
    far boolean;
    once boolean := coalesce(current_setting('leasehold.once', true), '') = 'on';
    here jsonb := coalesce(nullif(current_setting('leasehold.written_here', true), ''), '{{}}')::jsonb;
BEGIN
    IF given = '' THEN
        RAISE EXCEPTION 'this write to "%" has no fencing token', about USING ERRCODE = '{missing}',
            HINT = 'First say, in the same transaction: SELECT set_config(''leasehold.token'', ''<token>'', true)';
    END IF;
    IF given !~ '^(0|[1-9][0-9]{{0,18}})$' OR given::numeric > 9223372036854775807 THEN
        RAISE EXCEPTION 'leasehold.token must be an integer from 0 to 2**63 - 1' USING ERRCODE = '{invalid}';
    END IF;
    mine := given::bigint;
    far := mine > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {day}
        AND coalesce(current_setting('leasehold.allow_jump', true), '') <> 'on';
    LOOP
        SELECT f.token, f.written INTO seen, wrote FROM "{schema}"."{floors}" f WHERE f.resource = about FOR UPDATE;
        IF NOT FOUND THEN
            SELECT f.token INTO seen FROM "{schema}"."{floors}" f WHERE f.resource = '' FOR SHARE;
            wrote := NULL;
        END IF;
        seen := coalesce(seen, -1);
        IF mine < seen THEN
            RAISE EXCEPTION 'token % is stale for "%": token % has been seen there', mine, about, seen
                USING ERRCODE = '{stale}', DETAIL = json_build_object('resource', about, 'token', mine::text,
                    'seen', seen::text)::text, HINT = 'A later holder is at work; nothing was written.';
        END IF;
        IF far AND mine - seen > {day} THEN
            RAISE EXCEPTION 'token % is absurdly far above the highest seen for "%" (%)', mine, about, seen
                USING ERRCODE = '{jump}', DETAIL = json_build_object('resource', about, 'token', mine::text,
                    'seen', seen::text)::text,
                    HINT = 'Confirm it: SELECT set_config(''leasehold.allow_jump'', ''on'', true)';
        END IF;
        IF once AND wrote >= mine AND here -> about IS NULL THEN
            RAISE EXCEPTION 'token % has already been used for a write to "%"', mine, about
                USING ERRCODE = '{used}', DETAIL = json_build_object('resource', about, 'token', mine::text)::text,
                    HINT = 'leasehold.once allows one transaction for each token; nothing was written.';
        END IF;
        IF once THEN
            PERFORM set_config('leasehold.written_here', (here || jsonb_build_object(about, 1))::text, true);
        END IF;
        IF wrote IS NOT NULL THEN
            IF seen < mine OR wrote < mine THEN
                UPDATE "{schema}"."{floors}" SET token = mine, written = mine WHERE resource = about;
            END IF;
            RETURN;
        END IF;
        INSERT INTO "{schema}"."{floors}" (resource, token, written) VALUES (about, mine, mine)
            ON CONFLICT (resource) DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END
$fence$;
REVOKE ALL ON FUNCTION "{schema}"."{function}_check"(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION "{schema}"."{function}"() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fence$
DECLARE
    one text;
    other text;
BEGIN
    IF TG_OP = 'TRUNCATE' AND TG_NARGS > 1 THEN
        RAISE EXCEPTION 'TRUNCATE of "%" touches every resource in it, and a token is for one', TG_TABLE_NAME
            USING ERRCODE = '{truncated}', HINT = 'Use DELETE.';
    ELSIF TG_LEVEL = 'STATEMENT' THEN
        PERFORM "{schema}"."{function}_check"(TG_ARGV[0]);
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        one := TG_ARGV[0] || coalesce(to_jsonb(OLD) ->> TG_ARGV[1], '');
        PERFORM "{schema}"."{function}_check"(one);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        other := TG_ARGV[0] || coalesce(to_jsonb(NEW) ->> TG_ARGV[1], '');
        IF other IS DISTINCT FROM one THEN
            PERFORM "{schema}"."{function}_check"(other);
        END IF;
        RETURN NEW;
    END IF;
    RETURN OLD;
END
$fence$;
"""

_FLOORS = """
CREATE TABLE IF NOT EXISTS "{schema}"."{floors}" (
    resource TEXT COLLATE "C" NOT NULL PRIMARY KEY, token BIGINT NOT NULL, written BIGINT NOT NULL
);
INSERT INTO "{schema}"."{floors}" (resource, token, written) VALUES ('', -1, -1) ON CONFLICT (resource) DO NOTHING;
"""

_WHOLE_TABLE = """
CREATE TRIGGER "{trigger}" BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON "{schema}"."{table}"
    FOR EACH STATEMENT EXECUTE FUNCTION "{schema}"."{function}"({resource});
"""

_EACH_ROW = """
CREATE TRIGGER "{trigger}" BEFORE INSERT OR UPDATE OR DELETE ON "{schema}"."{table}"
    FOR EACH ROW EXECUTE FUNCTION "{schema}"."{function}"({resource}, '{column}');
CREATE TRIGGER "{trigger}_truncate" BEFORE TRUNCATE ON "{schema}"."{table}"
    FOR EACH STATEMENT EXECUTE FUNCTION "{schema}"."{function}"({resource}, '{column}');
"""

_REMOVE = """
DROP TRIGGER IF EXISTS "{trigger}" ON "{schema}"."{table}";
DROP TRIGGER IF EXISTS "{trigger}_truncate" ON "{schema}"."{table}";
"""


def install_sql(
    table: str, *, column: str | None = None, resource: str | None = None, schema: str = "public", floors: str = TABLE
) -> str:
    """Return the DDL that puts a table behind a fence, as one script that may be run again.

    Without `column` the whole table is one resource, named like the table. With it, each value of the column is one:
    ``table/value``. `resource` gives another name than the table's.
    """
    name = check_name(resource if resource is not None else table, what="resource")
    parts = {
        "table": check_identifier(table, what="table"),
        "schema": check_identifier(schema, what="schema"),
        "floors": check_identifier(floors, what="floors"),
        "column": check_identifier(column, what="column") if column is not None else "",
        "resource": _literal(name if column is None else name + "/"),
        "function": FUNCTION,
        "trigger": TRIGGER,
        "stale": STALE,
        "missing": MISSING,
        "jump": JUMP,
        "invalid": INVALID,
        "truncated": TRUNCATED,
        "used": USED,
        "day": DAY,
    }
    pieces = (_FLOORS, _FUNCTION, _REMOVE, _WHOLE_TABLE if column is None else _EACH_ROW)
    return "BEGIN;\n" + "".join(pieces).format(**parts) + "\nCOMMIT;\n"


def remove_sql(table: str, *, schema: str = "public") -> str:
    """Return the DDL that takes the fence off a table. Its floors stay, for the day when it is put back."""
    parts = {"table": check_identifier(table, what="table"), "schema": check_identifier(schema, what="schema")}
    return _REMOVE.format(trigger=TRIGGER, **parts).lstrip()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def refusal_of(error: BaseException) -> LeaseholdError | None:
    """Return what an error of the database means if it came from the trigger, whatever layers it went through."""
    seen: BaseException | None = error
    while seen is not None:
        state = getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None)
        if isinstance(state, str) and state.startswith("LH"):
            return _meaning(state, seen)
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None


def _meaning(state: str, error: BaseException) -> LeaseholdError:
    detail = getattr(getattr(error, "diag", None), "message_detail", None) or getattr(error, "detail", None)
    told = json.loads(detail) if detail else {}
    if state == STALE:
        return StaleToken(told["resource"], token=int(told["token"]), seen=int(told["seen"]))
    if state == JUMP:
        known = int(told["seen"])
        return TokenJump(told["resource"], token=int(told["token"]), seen=None if known < 0 else known, most=DAY)
    if state == USED:
        return TokenUsed(told["resource"], token=int(told["token"]))
    if state == INVALID:
        return InvalidToken("leasehold.token must be an integer from 0 to 2**63 - 1")
    first, _, _ = str(error).partition("\n")
    return Misuse(f"{first}; run the write inside of `with TriggerFence(connection).writing(lease):`")


_SAY = (
    "SELECT set_config('leasehold.token', :token, true), set_config('leasehold.allow_jump', :jump, true), "
    "set_config('leasehold.once', :once, true), set_config('leasehold.written_here', '', true)"
)


def _said(token: str = "", *, once: bool = False, allow_jump: bool = False) -> Ask:
    return Ask(_SAY, {"token": token, "jump": "on" if allow_jump else "", "once": "on" if once else ""})


class TriggerFence:
    """Says the token for a block of writes to tables that the trigger guards, on a connection of blocking code.

    Takes what `SqlFence` takes, for PostgreSQL. The check itself is the database's: one round trip more, to say it.
    """

    def __init__(self, connection: Any) -> None:
        """Nothing is read or written yet."""
        self._handle, self._given = blocking_handle(connection), connection
        _check_is_postgres(self._handle.dialect)

    @contextlib.contextmanager
    def writing(self, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> Iterator[Any]:
        """Run the block in a transaction whose writes carry this token; what the trigger refuses is raised as such.

        With `once`, a resource that was written with this token before, in another block, refuses with `TokenUsed`.
        """
        said = _said(str(token_of(token)), once=once, allow_jump=allow_jump)
        joins = self._handle.in_transaction()
        try:
            with self._handle.transaction():
                self._handle.ask(said)
                yield self._given
                if is_session(self._given):
                    self._given.flush()  # what it still holds back belongs to the block
                if joins:  # what the block said would hold for the rest of the transaction
                    self._handle.ask(_said())
        except Exception as error:
            raise_as_refusal(error)
            raise


class AsyncTriggerFence:
    """The same as `TriggerFence`, for what `AsyncSqlFence` takes."""

    def __init__(self, connection: Any) -> None:
        """Nothing is read or written yet."""
        self._handle, self._given = async_handle(connection), connection
        _check_is_postgres(self._handle.dialect)

    @contextlib.asynccontextmanager
    async def writing(
        self, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> AsyncIterator[Any]:
        """Run the block in a transaction whose writes carry this token; see `TriggerFence.writing`."""
        said = _said(str(token_of(token)), once=once, allow_jump=allow_jump)
        joins = self._handle.in_transaction()
        try:
            async with self._handle.transaction():
                await self._handle.ask(said)
                yield self._given
                if is_session(self._given):
                    await self._given.flush()
                if joins:
                    await self._handle.ask(_said())
        except Exception as error:
            raise_as_refusal(error)
            raise


def raise_as_refusal(error: Exception) -> None:
    """Raise the meaning of an error that came from the trigger; return for any other."""
    refusal = refusal_of(error)
    if refusal is not None:
        raise (refusal if isinstance(refusal, Misuse) else refused(refusal)) from error


def _check_is_postgres(dialect: str) -> None:
    if dialect != "postgresql":
        raise Misuse(f"the trigger is for PostgreSQL, and this is a connection to {dialect}; use SqlFence")
