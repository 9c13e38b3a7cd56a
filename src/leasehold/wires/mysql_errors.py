"""What a MySQL or MariaDB server may complain of, and which of our errors each complaint is."""

from __future__ import annotations

from typing import Final

from leasehold.errors import EngineError, EngineUnavailable, quoted
from leasehold.wires.mysql_packets import SqlError
from leasehold.wires.postgres_errors import cut_off

DUPLICATE: Final = 1062
NO_TABLE: Final = 1146
NO_SUCH_THREAD: Final = 1094
NOT_PREPARED: Final = 1243
INTERRUPTED: Final = 1317
NO_PRIVILEGE: Final = frozenset({1044, 1142, 1143, 1227, 1370})

_GONE: Final = "its tables are gone; the next request makes them again, and tokens go on from the clock"
_TAKES_NO_WRITES: Final = "it takes no writes (read_only is set); leases live on the primary"
_NO_ROOM: Final = "its disk is full; make room there, nothing else is needed"
_USED_UP: Final = "this user has no connection left; raise max_user_connections, or close what is not used"
_CONFLICT: Final = "it undid the request because of a conflict with others"
_NOT_CARRIED_OUT: Final = {
    1020: _CONFLICT,
    1021: _NO_ROOM,
    1030: "its storage failed, or its disk is full",
    1037: "it has no memory left",
    1040: "it has no connection left; raise max_connections, or close what is not used",
    1041: "it has no memory left",
    1047: "this node of the cluster is not ready",
    1053: "it is shutting down",
    1114: _NO_ROOM,
    NO_TABLE: _GONE,
    1203: _USED_UP,
    1205: "somebody keeps the row locked; look in information_schema.innodb_trx for a transaction that stands still",
    1213: _CONFLICT,
    1226: _USED_UP,
    1290: _TAKES_NO_WRITES,
    INTERRUPTED: "somebody interrupted the request with KILL QUERY",
    1792: _TAKES_NO_WRITES,
    1836: _TAKES_NO_WRITES,
    1969: "it cancelled the request; is its max_statement_time very short?",
    3024: "it cancelled the request; is its max_execution_time very short?",
}
"""Errors that say: nothing was written."""
_CUT_OFF: Final = frozenset({1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031})
"""The session was ended; what it was about to do may have been done."""
_LACKS_PRIVILEGE: Final = (
    "this user lacks a permission on the tables whose names begin with leasehold_: GRANT SELECT, INSERT, UPDATE, DELETE"
)
_REFUSED: Final = {
    **dict.fromkeys(NO_PRIVILEGE, _LACKS_PRIVILEGE),
    1665: "with binlog_format=STATEMENT its replicas could not follow; set it to ROW or MIXED",
}
_AT_THE_DOOR: Final = {
    1044: "this user may not use this database",
    1045: "user or password is wrong, or this user may not come from this host",
    1049: "there is no such database",
    1129: "it has blocked this host after many broken connections; FLUSH HOSTS there",
    1130: "it lets nobody in from this host",
    1698: "user or password is wrong, or this user may not come from this host",
    3159: "it lets nobody in without TLS (require_secure_transport is on); say ssl-mode=VERIFY_IDENTITY",
}


def error_from(error: SqlError, address: str, *, commits: bool) -> EngineError:
    """Our error for the server's, with its own words."""
    code, said = error.code, f"(it said {error.code}: {quoted(error.words)})"
    if code in _CUT_OFF:
        return cut_off(address, commits=commits)
    if code in _NOT_CARRIED_OUT:
        return EngineUnavailable(f"{address} refused the request: {_NOT_CARRIED_OUT[code]} {said}")
    if code in _REFUSED:
        return EngineError(f"{address} refused the request: {_REFUSED[code]} {said}")
    return EngineError(f"{address} answered with an error {said}")


def error_at_entry(error: SqlError, address: str) -> EngineUnavailable:
    """Our error for a server that does not let one in. Its words are not shown: they may quote what it was sent."""
    why = _AT_THE_DOOR.get(error.code) or _NOT_CARRIED_OUT.get(error.code, "it refused the connection")
    return EngineUnavailable(f"{address} cannot be used: {why} (error {error.code})")
