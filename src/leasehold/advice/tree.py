"""The decision tree: questions, and at its leaves the patterns. Command, page and picture come from here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from leasehold.errors import Misuse, quoted


class Question(NamedTuple):
    """A question with two answers, and what each of them leads to: another question, or a leaf."""

    name: str
    text: str
    why: str
    """Why it matters, in one sentence."""
    yes: str
    no: str


class Leaf(NamedTuple):
    """What to do."""

    name: str
    title: str
    what: str
    """The pattern in plain words."""
    guarantee: str
    breaks: str
    """What would break it."""
    page: str
    """Where the documentation tells more."""
    needs_engine: bool
    """Whether it runs on an engine of leases that has to be chosen."""
    protects_state: bool = False
    """Whether a wrong grant does harm, so that the engine must be fit for correctness."""

    @property
    def sample(self) -> str:
        """A complete program that runs as printed, against the embedded engine."""
        return (Path(__file__).parent / "samples" / f"{self.name.replace('-', '_')}.txt").read_text(encoding="utf-8")


FIRST: Final = "harmless"
QUESTIONS: Final = {
    one.name: one
    for one in (
        Question(
            "harmless",
            "May it run twice, or at the same time on two machines, without harm?",
            "Setting a value is harmless; adding to it, charging a card or sending a mail is not.",
            yes="costly",
            no="repeated",
        ),
        Question(
            "costly",
            "Is a second run so dear that you want to save it most of the time?",
            "A lock for efficiency may fail now and then; nothing breaks, some work is done twice.",
            yes="efficiency-lock",
            no="nothing",
        ),
        Question(
            "repeated",
            "Is it the same request that comes again: a retry, a redelivered message, a second click?",
            "Then the second one wants the first one's result, not its turn.",
            yes="idempotency-key",
            no="scheduled",
        ),
        Question(
            "scheduled",
            "Is it a scheduled job on several instances that is to be done once for each tick?",
            "A lock alone does not do: an instance whose clock is late takes it again after the first has let go.",
            yes="once-only-job",
            no="forever",
        ),
        Question(
            "forever",
            "Is one instance to do it for as long as it lives, and another to follow it?",
            "Then it is the role that is exclusive, not one piece of work.",
            yes="leader-election",
            no="transaction",
        ),
        Question(
            "transaction",
            "Is all that it reads and writes in one database, and can it be one short transaction there?",
            "The database then does the locking, and there is no lease that could run out.",
            yes="low-contention",
            no="checks-token",
        ),
        Question(
            "low-contention",
            "Do two of them seldom want to change the same row?",
            "If so, it is cheapest to try, and to try again when somebody else was first.",
            yes="optimistic",
            no="row-lock",
        ),
        Question(
            "checks-token",
            "Can what you write to refuse a write: by a column, a script, a condition, a header?",
            "Only the resource itself can stop a holder that stalled past its lease and then writes.",
            yes="much-in-order",
            no="by-entity",
        ),
        Question(
            "much-in-order",
            "Does much work come for each of many things, to be done in order: for each customer, device, account?",
            "Then a lock around each piece of work costs more than the work.",
            yes="single-writer",
            no="fenced-lock",
        ),
        Question(
            "by-entity",
            "Is it about one thing at a time: an account, an order, a device?",
            "A lock for each thing has little contention, and a mistake concerns one thing.",
            yes="lock-per-entity",
            no="unfenced-lock",
        ),
    )
}
LEAVES: Final = {
    one.name: one
    for one in (
        Leaf(
            "nothing",
            "No lock at all",
            "Let it run. Whoever runs last writes what the others wrote.",
            "None is needed.",
            "Somebody makes it less harmless later: say in its docstring that it must stay so.",
            "why.md",
            needs_engine=False,
        ),
        Leaf(
            "efficiency-lock",
            "A lock that saves work",
            "Try the lock and go home when it is taken.",
            "Nearly always one runs at a time. After a stall, a failover or a lost server two may.",
            "Nothing, as long as two runs are only a waste.",
            "leases.md",
            needs_engine=True,
        ),
        Leaf(
            "idempotency-key",
            "Idempotency keys",
            "The first request runs and stores its result; those that follow get it.",
            "One result for each key; a crashed run is run again with a higher token, and its late result is refused.",
            "Side effects outside of the database before a crash: hand your key on, or note recovery points.",
            "patterns/idempotency.md",
            needs_engine=False,
        ),
        Leaf(
            "once-only-job",
            "A once-only job",
            "Each run is keyed by its tick, in the time of a store that all instances share.",
            "Every tick is completed once; one that crashed is run again.",
            "Work that is begun twice and cannot stand it: commit what it writes together with its result.",
            "patterns/jobs.md",
            needs_engine=False,
        ),
        Leaf(
            "leader-election",
            "Leader election",
            "The instance that holds the lease leads; it stops its work before it gives the lease back.",
            "One leads at a time by its own clock; each term has a higher token.",
            "A leader that is frozen and thaws: fence its writes with the token of its term.",
            "patterns/election.md",
            needs_engine=True,
            protects_state=True,
        ),
        Leaf(
            "optimistic",
            "Optimistic concurrency",
            "Read with a version, write on the condition that it is the same, else do it again.",
            "No update is lost.",
            "Contention: above a third of attempts in vain, take the row's lock instead.",
            "patterns/optimistic.md",
            needs_engine=False,
        ),
        Leaf(
            "row-lock",
            "One transaction with the row's own lock",
            "BEGIN IMMEDIATE in SQLite, SELECT … FOR UPDATE in PostgreSQL and MySQL; then read, decide, write, commit.",
            "The database's own: exclusive until the commit, and undone if the client dies.",
            "Slow work inside of the transaction: do it before or after.",
            "patterns/optimistic.md",
            needs_engine=False,
        ),
        Leaf(
            "single-writer",
            "One writer for each thing",
            "Spread the things over partitions; each has one owner by a lease, and work waits in order at the owner.",
            "One owner at a time by its own clock, each with a higher token; a partition moves after it was drained.",
            "An owner that is frozen and thaws: fence its writes with the token of its partition.",
            "patterns/partitions.md",
            needs_engine=True,
            protects_state=True,
        ),
        Leaf(
            "fenced-lock",
            "A lock with a fence",
            "Take the lock, and let the resource refuse whatever comes with a lower token.",
            "No write of an earlier holder lands after one of a later holder, whatever stalls.",
            "A writer that goes past the fence.",
            "fences.md",
            needs_engine=True,
            protects_state=True,
        ),
        Leaf(
            "lock-per-entity",
            "A lock for each thing",
            "Name the lock after the thing; check the lease before each step that cannot be undone.",
            "One works on a thing at a time, up to a holder that stalls between its check and its act.",
            "A stall in that gap: nothing refuses the act. A lock-delay makes it less likely, not impossible.",
            "leases.md",
            needs_engine=True,
            protects_state=True,
        ),
        Leaf(
            "unfenced-lock",
            "A lock, and the knowledge that it is not enough",
            "Take the lock with a lock-delay, limit the hold, and check the lease before each act.",
            "One at a time, up to a holder that stalls between its check and its act.",
            "A stall in that gap: nothing refuses the act. Look for a resource that can check a token.",
            "leases.md",
            needs_engine=True,
            protects_state=True,
        ),
    )
}


class Step(NamedTuple):
    """A question that was answered on the way."""

    question: Question
    answer: bool


def walk(answers: Mapping[str, bool]) -> tuple[list[Step], Leaf | Question]:
    """Follow the answers as far as they go: the way, and the leaf; or the question that is still open."""
    unknown = set(answers) - set(QUESTIONS)
    if unknown:
        raise Misuse(f"{quoted(min(unknown))} is no question; they are {', '.join(QUESTIONS)}")
    way: list[Step] = []
    at = FIRST
    while at in QUESTIONS:
        question = QUESTIONS[at]
        if at not in answers:
            return way, question
        way.append(Step(question, answers[at]))
        at = question.yes if answers[at] else question.no
    return way, LEAVES[at]


def ways() -> Iterator[tuple[dict[str, bool], Leaf]]:
    """Every way through the tree, with its end."""

    def onward(at: str, answers: dict[str, bool]) -> Iterator[tuple[dict[str, bool], Leaf]]:
        if at in LEAVES:
            yield answers, LEAVES[at]
            return
        yield from onward(QUESTIONS[at].yes, {**answers, at: True})
        yield from onward(QUESTIONS[at].no, {**answers, at: False})

    yield from onward(FIRST, {})
