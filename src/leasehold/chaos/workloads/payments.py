"""Payments: clients send the same payment more than once, and it must be carried out once.

Plain: under the lock, look whether it was carried out; if not, carry it out. Fenced: an idempotency key, whose result
is stored in the transaction of the payment itself.
"""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import SIDES, Cells, Request, Resource
from leasehold.chaos.workloads.workload import Final, Simple
from leasehold.errors import InProgress, StaleToken
from leasehold.patterns.idempotency import Idempotency, Run, SqlKeys

EACH_FOR = 0.5
"""A new payment comes up so often, in TTLs."""
AT_ONCE = 6
"""So many of the latest are sent again and again: long enough for one whose worker died, or stalled, to be retried."""


class Payments(Simple):
    """Carry out one of the latest payments, unless somebody did."""

    name: ClassVar[str] = "payments"
    summary: ClassVar[str] = "carry out payments that are sent several times: once each"
    kind: ClassVar[str] = "payment"
    only_leasehold: ClassVar[bool] = True

    def prepare(self, resource: Resource) -> None:
        """Make the table of keys."""
        store = SqlKeys(resource.path)
        store.create()
        store.close()

    def lap(self, hand: Hand) -> None:
        """Try one payment on both sides."""
        latest = int(hand.now() / (EACH_FOR * hand.terms.ttl))
        key = f"payment-{max(0, latest - hand.chance.randrange(AT_ONCE))}"
        self._under_the_lock(hand, key)
        self._with_a_key(hand, key)

    def _under_the_lock(self, hand: Hand, key: str) -> None:
        with hand.holding(self.name) as grip:
            if grip is None or hand.resource.look("plain", lambda cells: cells.get(key)) is not None:
                return
            hand.work()
            effect = hand.unique()
            with hand.gap(grip) as believed:
                if believed:
                    change = Change(self.kind, key, effect, lambda cells: cells.put(key, effect))
                    hand.write(grip, "plain", change)

    def _with_a_key(self, hand: Hand, key: str) -> None:
        store = SqlKeys(hand.resource.path)
        keys = Idempotency(store, scope="chaos", lease=hand.terms.ttl)
        try:
            result = keys.once(key, lambda run: self._pay(hand, key, run), wait=hand.terms.wait)
            hand.answered(self.kind, key, result)
        except (InProgress, StaleToken):
            return  # somebody else is at it, or has taken over: either carries it out
        finally:
            store.close()

    def _pay(self, hand: Hand, key: str, run: Run) -> Any:
        hand.work()
        effect = hand.unique()
        request = Request("fenced", self.kind, key, hand.worker, hand.next_op(), value=effect)

        def work(cells: Cells) -> None:
            cells.put(key, effect)
            run.complete(effect, on=cells.connection)

        with hand.holds(), hand.gap():
            done = hand.carry_out(request, lambda: hand.resource.write_checked_by(request, work), result=effect)
        if not done:
            raise StaleToken(key, token=run.token, seen=run.token + 1)
        return effect

    def final(self, resource: Resource) -> list[Final]:
        """Each time that a payment was carried out: which, and by what."""
        return effects(resource, self.kind, self.name)


def effects(resource: Resource, kind: str, key: str) -> list[Final]:
    """Each time that an effect took place, as [key, effect], from the log of the resource."""
    accepted = [event for event in resource.log() if event.kind == "accepted" and event.detail["kind"] == kind]
    return [
        Final(
            side,
            kind,
            key,
            [[event.detail["key"], event.detail["value"]] for event in accepted if event.detail["resource"] == side],
        )
        for side in SIDES
    ]
