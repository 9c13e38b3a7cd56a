"""The statements of PostgreSQL's session mode."""

from __future__ import annotations

from typing import Final

from leasehold.engines.postgres_facts import SETTINGS
from leasehold.wires.postgres_tables import LAZILY, prefix_of
from leasehold.wires.postgres_target import Target
from leasehold.wires.sql_table import KEEP_IDLE, Statement

SWEEP_AT_ONCE: Final = 512
LONGEST_TERMINATION_MS: Final = 1000

# The token is minted after the lock is had, and in the same statement. A row of another name is left alone: then there
# is a lock and no token.
_MINT: Final = """
    INSERT INTO {prefix}session AS f (key, namespace, name, token, since, ttl, about)
    SELECT $1, $2, $3, greatest(meta.base + 1, {now}), {now}, $4, $5 FROM l, {prefix}meta AS meta{lazily} WHERE l.got
    ON CONFLICT (key) DO UPDATE SET token = greatest(f.token + 1, {now}), since = {now}, ttl = $4, about = $5
    WHERE f.namespace = $2 AND f.name = $3
"""
_TRY: Final = """
WITH l AS MATERIALIZED (SELECT pg_try_advisory_lock($1::bigint) AS got),
minted AS ({mint} RETURNING token)
SELECT l.got, minted.token, pg_backend_pid(), f.namespace, f.name, f.token, f.about,
    CASE WHEN {when} THEN set_config('idle_session_timeout', $6, false) END{more}
FROM l LEFT JOIN minted ON true LEFT JOIN {prefix}session AS f ON f.key = $1
"""
# What a wait needs, for one who will wait next.
_PATIENCE: Final = """,
    CASE WHEN NOT l.got THEN set_config('lock_timeout', $7, false) || set_config('application_name', $5, false)
    END"""


def _trying(*, when: str, more: str = "") -> str:
    return _TRY.replace("{mint}", _MINT).replace("{when}", when).replace("{more}", more)


_LOCKED: Final = """
locktype = 'advisory' AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND ((classid::bigint << 32) | objid::bigint) = {key}
"""
_TEXTS: Final = {
    "try": _trying(when="l.got"),
    "try_first": _trying(when="true", more=_PATIENCE),
    # The limit for silence was set before, but perhaps in another session: a proxy may have found this one since.
    "lock": f"""
        WITH l AS MATERIALIZED (SELECT pg_advisory_lock($1::bigint)::text IS NOT NULL AS got)
        {_MINT} RETURNING true, token, pg_backend_pid(), namespace, name,
            set_config('idle_session_timeout', $6, false)""",
    "patience": """
        SELECT set_config('lock_timeout', $1, false), set_config('application_name', $2, false),
            set_config('idle_session_timeout', $3, false)""",
    "heartbeat": "SELECT pg_backend_pid(), set_config('idle_session_timeout', $1, false)",
    "unlock": "SELECT pg_advisory_unlock($1::bigint), pg_backend_pid(), set_config('idle_session_timeout', '0', false)",
    "unlock_only": "SELECT pg_advisory_unlock($1::bigint), pg_backend_pid()",
    "status": """
        SELECT f.token, f.about, {now} - f.since, f.ttl, l.granted, a.application_name,
            (extract(epoch FROM clock_timestamp() - l.waitstart) * 1000000)::bigint
        FROM {prefix}session AS f LEFT JOIN (SELECT * FROM pg_locks WHERE {locked_1}) AS l ON true
        LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
        WHERE f.key = $1 AND f.namespace = $2 AND f.name = $3 ORDER BY l.granted DESC, l.waitstart""",
    "names": """
        SELECT name FROM {prefix}session AS f WHERE namespace = $1 AND name > $2
        AND EXISTS (SELECT 1 FROM pg_locks WHERE {locked_key}) ORDER BY name LIMIT $3""",
    "force": """
        WITH minted AS (
            INSERT INTO {prefix}session AS f (key, namespace, name, token, since, ttl, about)
            SELECT $1, $2, $3, greatest(meta.base + 1, {now}), {now}, 0, '' FROM {prefix}meta AS meta
            ON CONFLICT (key) DO UPDATE SET token = greatest(f.token + 1, {now})
            RETURNING token
        )
        SELECT token, (
            SELECT count(pg_terminate_backend(pid, {termination})) FROM pg_locks WHERE {locked_1} AND granted
            AND pid <> pg_backend_pid()
        ) FROM minted""",
    # Names that nobody has used for a day. One that is locked is in use; its lock is tried only if it looks idle.
    "page": "SELECT key FROM {prefix}session WHERE key > $1 ORDER BY key LIMIT {page_size}",
    "raise_base": """
        UPDATE {prefix}meta SET base = greatest(base, coalesce(
            (SELECT max(token) FROM {prefix}session WHERE key > $1 AND key <= $2 AND {old}), 0))""",
    "forget": """
        DELETE FROM {prefix}session WHERE key > $1 AND key <= $2
        AND CASE WHEN {old} THEN pg_try_advisory_xact_lock(key) ELSE false END""",
    "begin": "BEGIN",
    "commit": "COMMIT",
    "settings": SETTINGS,
}


def session_statements(target: Target, clock: str) -> dict[str, Statement]:
    """All statements, for one schema."""
    words = {
        "prefix": prefix_of(target.schema),
        "now": clock,
        "lazily": "" if target.durable else f", {LAZILY}",
        "locked_1": _LOCKED.format(key="$1"),
        "locked_key": _LOCKED.format(key="f.key"),
        "old": f"since <= {clock} - {KEEP_IDLE}",
        "page_size": SWEEP_AT_ONCE,
        "termination": LONGEST_TERMINATION_MS,
    }
    return {name: Statement(text.format(**words), f"leasehold_{name}") for name, text in _TEXTS.items()}
