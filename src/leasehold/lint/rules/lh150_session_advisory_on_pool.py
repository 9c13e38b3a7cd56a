"""An advisory lock that belongs to a connection is taken through a session that borrows connections from a pool.

## Why

`pg_advisory_lock` belongs to the connection, not to the transaction: a commit or rollback does not free it, and it
gives the connection back to the pool with the lock. The unlock may then run on another connection, where it fails
with a mere warning, while the lock stays with a connection that nobody knows. Behind PgBouncer in transaction mode it
is the same with every statement.

## Bad

```py
from sqlalchemy import text
from sqlalchemy.orm import Session

def nightly(session: Session):
    session.execute(text("SELECT pg_advisory_lock(42)"))
    export(session)
    session.commit()
    session.execute(text("SELECT pg_advisory_unlock(42)"))
```

## Good

```py
from sqlalchemy import text
from sqlalchemy.orm import Session

def nightly(session: Session):
    session.execute(text("SELECT pg_advisory_xact_lock(42)"))
    export(session)
    session.commit()
```

## Not reported

Locks on a connection of one's own: psycopg, asyncpg, `engine.connect()`.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module
from leasehold.lint.rule import rule
from leasehold.lint.sql import advisory_calls


@rule("LH150", "session-advisory-on-pool", __doc__, words=("advisory_lock", "try_advisory"))
def check(module: Module) -> Iterator[Finding]:
    """Report the statement."""
    for advisory in advisory_calls(module):
        kind = module.kind(advisory.receiver)
        if advisory.for_session and kind is not None and kind.role in ("session", "engine"):
            yield module.finding(
                "LH150",
                advisory.call,
                f"{advisory.function} belongs to a connection, and this one goes back to the pool with it: use "
                "pg_advisory_xact_lock, or a connection of its own",
            )
