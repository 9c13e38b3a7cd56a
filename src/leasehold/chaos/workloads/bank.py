"""A bank: read two balances, move an amount from one to the other. The total never changes unless an update is lost."""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import SIDES, Cells, Resource
from leasehold.chaos.workloads import pages
from leasehold.chaos.workloads.workload import Final, ReadThenWrite

ACCOUNTS = ("account/a", "account/b", "account/c", "account/d")
OPENING_BALANCE = 1000
MOST = 20
"""The largest amount that is moved at a time. Balances may fall below zero: that is not the question here."""


class Bank(ReadThenWrite):
    """Read two balances and the ledger, write all three."""

    name: ClassVar[str] = "bank"
    summary: ClassVar[str] = "read two balances, move an amount from one to the other"
    kind: ClassVar[str] = "bank"

    def prepare(self, resource: Resource) -> None:
        """Open the accounts."""
        for side in SIDES:
            resource.look(side, _open_accounts)

    def look(self, cells: Cells, hand: Hand) -> Any:
        """Two balances, and the ledger of all transfers."""
        payer, payee = hand.chance.sample(ACCOUNTS, 2)
        return {
            "payer": payer,
            "has": cells.get(payer),
            "payee": payee,
            "gets": cells.get(payee),
            "ledger": pages.read(cells, "ledger"),
        }

    def change(self, seen: Any, hand: Hand) -> Change:
        """A transfer."""
        transfer, amount = hand.unique(), hand.chance.randint(1, MOST)

        def work(cells: Cells) -> None:
            cells.put(seen["payer"], seen["has"] - amount)
            cells.put(seen["payee"], seen["gets"] + amount)
            pages.append(cells, "ledger", seen["ledger"], transfer)

        return Change(self.kind, self.name, transfer, work, after=seen["ledger"]["last"])

    def final(self, resource: Resource) -> list[Final]:
        """The transfers in the ledger, and by how much the total of all balances is off."""
        finals = []
        for side in SIDES:
            total = resource.look(side, lambda cells: sum(cells.below("account/").values()))
            transfers = resource.look(side, lambda cells: pages.everything(cells, "ledger"))
            off_by = total - len(ACCOUNTS) * OPENING_BALANCE
            finals.append(Final(side, self.kind, self.name, transfers, {"off_by": off_by}))
        return finals


def _open_accounts(cells: Cells) -> None:
    for account in ACCOUNTS:
        cells.put(account, OPENING_BALANCE)
