"""The statements of the session mode of MySQL and MariaDB. Several that stand together are sent as one packet."""

from __future__ import annotations

from typing import Final

from leasehold.engines.mysql_facts import REPLICAS, SETTINGS
from leasehold.wires.mysql_line import NUDGE
from leasehold.wires.mysql_packets import Queued, prepared, written
from leasehold.wires.sql_table import KEEP_IDLE, Statement

SWEEP_AT_ONCE: Final = 128
CLOCK: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"
"""Microseconds since 1970, in a session whose time zone is UTC; unlike other clocks it goes on while one waits."""

# The token is minted by a statement of its own, which begins when the lock is had: it sees what the last holder and
# those who forget idle names have left. What the first one sets is there for people who look at the list of processes.
_LOCK: Final = """
SET @leasehold_about = $7, @leasehold_got = GET_LOCK($1, $2 / 1000);
INSERT INTO leasehold_session (namespace, name, lock_name, token, since, ttl, about)
SELECT $3, $4, $1, LAST_INSERT_ID(GREATEST(base + 1, {now})), {now}, $5, $7 FROM leasehold_meta
WHERE IS_USED_LOCK($1) = CONNECTION_ID()
ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(leasehold_session.token + 1, {now})), since = {now},
    ttl = $5, about = $7;
SET SESSION wait_timeout = CAST(IF(IS_USED_LOCK($1) <=> CONNECTION_ID(), $6, @@global.wait_timeout) AS SIGNED);
SELECT @leasehold_got, LAST_INSERT_ID(), CONNECTION_ID(), f.token, f.about
FROM leasehold_meta LEFT JOIN leasehold_session AS f ON f.namespace = $3 AND f.name = $4
"""
# The same for a name that has a row, on a connection whose number and timer are known. The row is locked while GET_LOCK
# is asked, which therefore does not wait. That it is asked once was seen on MariaDB alone: others never take this way.
_TAKE: Final = """
UPDATE leasehold_session SET token = LAST_INSERT_ID(GREATEST(token + 1, {now})), since = {now}, ttl = $4, about = $5
WHERE namespace = $1 AND name = $2 AND CONNECTION_ID() = $6 AND FALSE /*M!100108 = (GET_LOCK($3, 0) <> 1) */
"""
# The same for one who waits, and who locks no row meanwhile. Where a proxy lets another session serve the connection,
# that one has no timer, and must not get the lock. The wait is no prepared statement: people look for it in the list of
# processes, and so does who ends it.
_WAIT: Final = "SET @leasehold_about = $7, @leasehold_got = IF(CONNECTION_ID() = $6, GET_LOCK($1, $2 / 1000), 0)"
_MINT_AFTER: Final = """
UPDATE leasehold_session SET token = LAST_INSERT_ID(GREATEST(token + 1, {now})), since = {now}, ttl = $5, about = $7
WHERE namespace = $3 AND name = $4 AND @leasehold_got = 1 AND IS_USED_LOCK($1) = $6
"""
# What is selected into a variable is answered by how many rows there were, which costs less than a row. The timer stays
# as it is: the next lease on this connection is likely to want the same.
_UNLOCK: Final = """
SELECT 1 FROM DUAL WHERE IF(CONNECTION_ID() = $2, RELEASE_LOCK($1), 0) = 1 INTO @leasehold_unlocked
"""
_TEXTS: Final = {
    "lock": _LOCK,
    "heartbeat": """
        SET SESSION wait_timeout = $2; SELECT IF(IS_USED_LOCK($1) <=> CONNECTION_ID(), CONNECTION_ID(), 0)""",
    "status": """
        SELECT token, about, {now} - since, ttl, IS_USED_LOCK(lock_name) IS NOT NULL FROM leasehold_session
        WHERE namespace = $1 AND name = $2""",
    # Without the privilege PROCESS a user sees its own connections, which is enough where all programs are one user.
    "waiters": """
        SELECT info, time FROM information_schema.processlist WHERE state = 'User lock' AND LOCATE($1, info)
        ORDER BY time DESC, id""",
    "names": """
        SELECT name FROM leasehold_session WHERE namespace = $1 AND name > $2 AND IS_USED_LOCK(lock_name) IS NOT NULL
        ORDER BY name LIMIT $3""",
    "mint": """
        INSERT INTO leasehold_session (namespace, name, lock_name, token, since, ttl, about)
        SELECT $1, $2, $3, LAST_INSERT_ID(GREATEST(base + 1, {now})), {now}, 0, '' FROM leasehold_meta
        ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(leasehold_session.token + 1, {now}));
        SELECT LAST_INSERT_ID(), IS_USED_LOCK($3)""",
    "self": "SELECT CONNECTION_ID()",
    "kill": "KILL CONNECTION $1",
    # Only if that connection still waits for this lock: after a restart another one may have its number.
    "end_wait": """
        SET @leasehold_waits = (SELECT id FROM information_schema.processlist WHERE id = $1 AND LOCATE($2, info));
        KILL CONNECTION COALESCE(@leasehold_waits, 0)""",
    "who": "SELECT IS_USED_LOCK($1)",
    "page": """
        SELECT namespace, name, lock_name, {old} FROM leasehold_session
        WHERE namespace >= $1 AND (namespace > $1 OR name > $2) ORDER BY namespace, name LIMIT {page_size}""",
    # Names that nobody has used for a day. Who forgets one keeps its lock meanwhile, so that nobody mints for it.
    "forget": """
        SET @leasehold_got = GET_LOCK($3, 0);
        START TRANSACTION;
        UPDATE leasehold_meta SET base = GREATEST(base, COALESCE((
            SELECT token FROM leasehold_session WHERE namespace = $1 AND name = $2 AND {old}), 0))
        WHERE @leasehold_got = 1;
        DELETE FROM leasehold_session WHERE namespace = $1 AND name = $2 AND {old} AND @leasehold_got = 1;
        COMMIT;
        DO RELEASE_LOCK($3)""",
    "settings": SETTINGS,
    "replicas": REPLICAS,
}


def session_statements(clock: str) -> dict[str, Statement]:
    """All statements."""
    words = {"now": clock, "old": f"since <= {clock} - {KEEP_IDLE}", "page_size": SWEEP_AT_ONCE}
    names = dict.fromkeys(_TEXTS, "") | {"kill": NUDGE, "end_wait": NUDGE}
    statements = {name: written(names[name] or name, text.format(**words)) for name, text in _TEXTS.items()}
    stand = Queued("queue", _WAIT, _MINT_AFTER.format(**words))
    often = {"take": _TAKE.format(**words), "unlock": _UNLOCK}
    return statements | {name: prepared(name, text) for name, text in often.items()} | {"stand": stand}
