"""What a PostgreSQL server may complain of, and which of our errors each complaint is."""

from __future__ import annotations

import re
from typing import Final

from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown, quoted
from leasehold.wires.sql_table import Overdue

UNIQUE_VIOLATION: Final = "23505"
NO_TABLE: Final = frozenset({"42P01", "3F000"})
NO_PRIVILEGE: Final = "42501"
LOCK_TIMEOUT: Final = "55P03"

_NOT_CARRIED_OUT: Final = {
    "25006": "it takes no writes (a standby, or default_transaction_read_only is set); leases live on the primary",
    "25P03": "this process stalled in the middle of a transaction, which the server then undid",
    "40001": "it undid the request because of a conflict with others",
    "40P01": "it undid the request because of a conflict with others",
    LOCK_TIMEOUT: "somebody keeps the row locked; look in pg_stat_activity for a session that is idle in transaction",
    "53100": "its disk is full; make room there, nothing else is needed",
    "53200": "it has no memory left",
    "53300": "it has no connection left; raise max_connections, or close what is not used",
    "57014": "it cancelled the request; is its statement_timeout very short?",
    "57P03": "it is starting or shutting down",
    "42P01": "its tables are gone; the next request makes them again, and tokens go on from the clock",
    "3F000": "its tables are gone; the next request makes them again, and tokens go on from the clock",
}
"""SQLSTATEs that say: nothing was written."""
_OVERDUE: Final = "57P05"
"""The session was ended by its idle_session_timeout. The server looks at that timer a last time after it has read a
request and before it carries out anything of it."""
_CUT_OFF: Final = frozenset({"57P01", "57P02"})
"""The session was ended; what it was about to do may have been done."""
_REFUSED: Final = {
    NO_PRIVILEGE: "this user lacks a permission on the tables whose names begin with leasehold_: "
    "GRANT SELECT, INSERT, UPDATE, DELETE",
}


class SqlError(Exception):
    """An error that the server answered a statement with. It is a value here: the request decides what it means."""

    def __init__(self, sqlstate: str, words: str) -> None:
        super().__init__(sqlstate, words)
        self.sqlstate, self.words = sqlstate, words


def error_from(error: SqlError, address: str, *, commits: bool) -> EngineError:
    """Our error for the server's, with its own words."""
    state, said = error.sqlstate, f"(it said {error.sqlstate}: {quoted(error.words)})"
    if state == _OVERDUE:
        return Overdue(f"{address} had ended the session, which was silent for too long {said}")
    if state in _CUT_OFF or state.startswith("08"):
        return cut_off(address, commits=commits)
    if state in _NOT_CARRIED_OUT:
        return EngineUnavailable(f"{address} refused the request: {_NOT_CARRIED_OUT[state]} {said}")
    if state in _REFUSED:
        return EngineError(f"{address} refused the request: {_REFUSED[state]} {said}")
    return EngineError(f"{address} answered with an error {said}")


def unanswered(address: str, *, commits: bool) -> EngineError:
    """Our error for a request that was sent and not answered in time."""
    if not commits:
        return EngineUnavailable(f"{address} did not answer in time, and nothing was carried out")
    return OutcomeUnknown(f"{address} did not answer in time; the request may or may not have been carried out")


def cut_off(address: str, *, commits: bool) -> EngineError:
    """Our error for a connection that ended while a request was under way."""
    if not commits:
        return EngineUnavailable(f"the connection to {address} broke, and nothing was carried out")
    return OutcomeUnknown(f"the connection to {address} broke; the request may or may not have been carried out")


_ADVICE: Final = (
    (re.compile("authentication|password|pg_hba"), "check the user, the password and the server's pg_hba.conf"),
    (re.compile("certificate|SSL"), "check sslmode, sslrootcert, and that the certificate is for this host"),
    (re.compile("(database|role) .* does not exist"), "check the name, or let an administrator create it"),
    (re.compile("too many|connection slots"), "raise max_connections, or close what is not used"),
)
"""What to do about words of libpq or of a server that speaks English."""


def unreachable(address: str, why: str) -> EngineUnavailable:
    """Our error for a server that could not be reached at all: nothing was sent."""
    advice = next(
        (advice for words, advice in _ADVICE if words.search(why)), "is the server running, and the address right?"
    )
    return EngineUnavailable(f"{address} cannot be reached: {why}; {advice}")


def why_not_let_in(words: str, password: str | None) -> str:
    """What libpq says of a failed attempt to connect, for people; never with the password in it."""
    if password:
        words = words.replace(password, "***")
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    # Several hosts, several lines; each begins by naming the host, which our message does already.
    said = re.sub(r"^connection to .* failed: ", "", lines[0] if lines else "no reason given")
    said = re.sub(r" \(and \d+ other names?\)", "", said)
    return quoted(re.sub(r"^(FATAL|ERROR): +", "", said))


def nonsense(answer: object, address: str) -> EngineError:
    """Our error for an answer that no such server gives."""
    return EngineError(f"{address} gave an answer that makes no sense: {quoted(answer)}")
