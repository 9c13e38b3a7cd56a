"""Statements that write past a version column are refused; those that SQLAlchemy makes for a session are not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leasehold import Misuse
from leasehold.patterns.guards import guard_versions
from leasehold.patterns.optimistic import retry_on_conflict


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'bank.db'}")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Account(id=1, balance=100), Account(id=2, balance=100), Note(id=1, text="a")])
        session.commit()
    guard_versions(engine, Base)
    yield engine
    engine.dispose()


TABLE = Base.metadata.tables["account"]
BYPASSES: dict[str, Any] = {
    "update of the class": sa.update(Account).where(Account.id == 1).values(balance=0),
    "update of all": sa.update(Account).values(balance=0),
    "update of the table": sa.update(TABLE).where(TABLE.c.id == 1).values(balance=0),
    "with a condition, and the version stays": sa.update(Account)
    .where(Account.id == 1, Account.version == 1)
    .values(balance=0),
    "the version is raised, whatever it was": sa.update(Account)
    .where(Account.id == 1)
    .values(balance=0, version=Account.version + 1),
    "delete of the class": sa.delete(Account).where(Account.id == 1),
    "delete of the table": sa.delete(TABLE),
    "text": sa.text("UPDATE account SET balance = 0 WHERE id = 1"),
    "text that deletes": sa.text('delete from "account"'),
    "upsert": upsert(Account)
    .values(id=1, balance=0, version=1)
    .on_conflict_do_update(index_elements=["id"], set_={"balance": 0}),
}
FINE: dict[str, Any] = {
    "with version in both": sa.update(Account)
    .where(Account.id == 1, Account.version == 1)
    .values(balance=0, version=2),
    "delete with version": sa.delete(Account).where(Account.id == 1, Account.version == 1),
    "another table": sa.update(Note).values(text="b"),
    "text with version": sa.text("UPDATE account SET balance = 0, version = 2 WHERE id = 1 AND version = 1"),
    "select": sa.select(Account),
    "insert": sa.insert(Account).values(id=9, balance=0, version=1),
    "upsert that raises it": upsert(Account)
    .values(id=1, balance=0, version=1)
    .on_conflict_do_update(index_elements=["id"], set_={"balance": 0, "version": Account.version + 1}),
    "allowed": sa.update(Account).values(balance=0).execution_options(leasehold_unversioned=True),
}


def _sum(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.text("SELECT sum(balance) FROM account")).scalar_one())


@pytest.mark.parametrize("what", BYPASSES)
def test_a_bypass_is_refused_in_a_session_and_on_a_connection(engine: sa.Engine, what: str) -> None:
    with Session(engine) as session, pytest.raises(Misuse, match="version column 'version'"):
        session.execute(BYPASSES[what])
    with engine.begin() as connection, pytest.raises(Misuse):
        connection.execute(BYPASSES[what])
    assert _sum(engine) == 200


@pytest.mark.parametrize("what", FINE)
def test_what_is_fine_is_carried_out(engine: sa.Engine, what: str) -> None:
    with Session(engine) as session:
        session.execute(FINE[what])
        session.commit()


def test_the_older_ways_are_seen_too(engine: sa.Engine) -> None:
    with Session(engine) as session:
        with pytest.raises(Misuse):
            session.query(Account).update({"balance": 0})
        with pytest.raises(Misuse):
            session.query(Account).filter_by(id=1).delete()


def test_objects_of_a_session_are_written_as_ever_and_conflicts_are_retried(engine: sa.Engine) -> None:
    with Session(engine) as session:
        for account in session.scalars(sa.select(Account)):
            account.balance += 1
        session.add(Account(id=3, balance=5))
        session.flush()
        session.delete(session.get_one(Account, 3))
        session.commit()
    attempts = []

    @retry_on_conflict
    def take(amount: int) -> None:
        attempts.append(amount)
        with Session(engine) as session:
            account = session.get_one(Account, 1)
            account.balance -= amount
            if len(attempts) == 1:
                with Session(engine) as other:
                    other.get_one(Account, 1).balance -= 1
                    other.commit()
            session.commit()

    take(10)
    assert len(attempts) == 2
    with Session(engine) as session:
        assert session.get_one(Account, 1).balance == 100 + 1 - 1 - 10


def test_it_can_only_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'bank.db'}")
    Base.metadata.create_all(engine)
    guard_versions(engine, Account, only_warn=True)
    with caplog.at_level(logging.WARNING, "leasehold"), Session(engine) as session:
        session.execute(sa.update(Account).values(balance=0))
        session.commit()
    engine.dispose()
    assert "UPDATE of 'account' does not look at its version column" in caplog.text


def test_async_engines_are_guarded(tmp_path: Path) -> None:
    async def run() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'bank.db'}")
        guard_versions(engine, Base.registry)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
            with pytest.raises(Misuse):
                await connection.execute(sa.update(Account).values(balance=0))
        await engine.dispose()

    asyncio.run(run())


def test_without_a_version_there_is_nothing_to_guard(engine: sa.Engine) -> None:
    with pytest.raises(Misuse, match="nothing to guard"):
        guard_versions(engine, Note)
