"""Where the time of the PostgreSQL trigger goes: what each part of it adds to a transaction, inside of the server.

    python tools/trigger_cost.py                     # the table of docs/fences-cost.md

It takes the processor time of the server's process (Linux only), which other work on the machine hardly moves. A block
of the server's own language repeats the transaction, so that no client and no network is in it: a DELETE and an INSERT
of one row. Needs the PostgreSQL of the tests (`tools/servers.py ensure postgresql`), which it starts, and ends.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
from tests.support.postgres_server import running_postgres

from leasehold.fences.trigger import install_sql

RIGHTS = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"
FIRST = 10**15
SAY = (
    "PERFORM set_config('leasehold.token', mine::text, true), set_config('leasehold.allow_jump', '', true), "
    "set_config('leasehold.once', '', true), set_config('leasehold.written_here', '', true);"
)
GUARD_ROW = """
    UPDATE leasehold_fence SET token = mine, written = CASE WHEN written < mine THEN mine ELSE written END
    WHERE resource = 'row' AND token BETWEEN -1 AND mine AND written <= mine;
"""
ONLY_RAISE = """
    UPDATE public.leasehold_fence SET token = current_setting('leasehold.token', true)::bigint
    WHERE resource = about AND token <= current_setting('leasehold.token', true)::bigint;
"""
REPEATED = """
    DO $do$ DECLARE mine bigint; BEGIN FOR number IN 1..TIMES LOOP
        mine := TOKEN + number; FIRST
        DELETE FROM thing WHERE id = '1'; INSERT INTO thing VALUES ('1', 'x'); COMMIT;
    END LOOP; END $do$
"""


class Way(NamedTuple):
    """What is installed, and what the transaction does before its two statements."""

    name: str
    ddl: str
    first: str


def empty_trigger(name: str, rights: str) -> str:
    """A trigger that does nothing, which shows what it costs to have one."""
    return f"""
        CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql {rights} AS $$
        BEGIN IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$;
        CREATE TRIGGER empty BEFORE INSERT OR DELETE ON thing FOR EACH ROW EXECUTE FUNCTION {name}();
    """


def with_check(body: str) -> str:
    """The fence, whose check is only this."""
    whole = install_sql("thing", column="id")
    before, _, rest = whole.partition("DECLARE")
    _, _, after = rest.partition("END\n$fence$")
    return f"{before}BEGIN {body} END\n$fence${after}"


def ways() -> list[Way]:
    """From nothing to everything."""
    return [
        Way("no fence", "", ""),
        Way("the guard row instead of a trigger", "", GUARD_ROW),
        Way("the token is said, and no trigger hears it", "", SAY),
        Way("a trigger that does nothing", empty_trigger("nothing", ""), SAY),
        Way("the same, with the rights of its installer", empty_trigger("nothing_by_right", RIGHTS), SAY),
        Way("the fence's trigger, without its check", with_check("RETURN;"), SAY),
        Way("with a check that only raises the floor", with_check(ONLY_RAISE), SAY),
        Way("the fence", install_sql("thing", column="id"), SAY),
    ]


def spent(connection: psycopg.Connection[Any]) -> float:
    """The processor time of the server's process so far, in microseconds."""
    return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1000


def repeat(connection: psycopg.Connection[Any], way: Way, times: int, token: int) -> float:
    """Microseconds for one transaction."""
    for name in ("leasehold_fence", "leasehold_fence_truncate", "empty"):
        connection.execute(f"DROP TRIGGER IF EXISTS {name} ON thing".encode())
    connection.execute(way.ddl.encode())
    block = REPEATED.replace("TIMES", str(times)).replace("TOKEN", str(token)).replace("FIRST", way.first)
    before = spent(connection)
    connection.execute(block.encode())
    return (spent(connection) - before) / times


def main() -> None:
    """Print one row for each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=1000, help="transactions of each kind in each round")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    taken: dict[str, list[float]] = {way.name: [] for way in ways()}
    token = FIRST
    with running_postgres(fsync="off") as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE thing (id TEXT PRIMARY KEY, value TEXT)")
        connection.execute(install_sql("thing", column="id").encode())
        connection.execute("INSERT INTO leasehold_fence VALUES ('row', 1, 1)")
        for round_ in range(given.rounds + 1):  # the first is not counted
            for way in ways():
                token += given.times
                one = repeat(connection, way, given.times, token)
                if round_:
                    taken[way.name].append(one)
    print("| a transaction of two statements, each with one row | processor time in the server |\n|---|---|")
    for name, times in taken.items():
        print(f"| {name} | {statistics.median(times):.0f} µs |")


if __name__ == "__main__":
    main()
