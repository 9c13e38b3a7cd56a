"""Transactions on the keys of an etcd cluster, for fences: nothing here knows of leases."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd import AsyncWire, BlockingWire, Wire
from leasehold.wires.etcd_address import address_from_url, warn_of_transport
from leasehold.wires.etcd_lines import Lines
from leasehold.wires.etcd_messages import Malformed, Outcome

ANSWERS_WITHIN: Final = 10.0
"""Seconds for one transaction."""


class Transaction(NamedTuple):
    """What to compare, and what to do then and otherwise."""

    conditions: list[bytes]
    then: list[bytes]
    otherwise: list[bytes]


class _Store:
    def __init__(self, url: str, world: type[BlockingWire | AsyncWire]) -> None:
        address = address_from_url(url)
        warn_of_transport(address, stacklevel=5)
        self._address, self._lines = str(address), Lines(address)
        self._wire: Wire = world(self._lines)
        self._process = os.getpid()

    async def _carry_out(self, transaction: Transaction) -> Outcome:
        if os.getpid() != self._process:
            self._lines.forked()
            self._process = os.getpid()
        until = self._wire.world.now() + ANSWERS_WITHIN
        answer = await self._wire.call(messages.TXN, messages.txn(*transaction), until)
        try:
            return messages.outcome_of(answer)
        except Malformed as error:
            raise EngineError(f"etcd at {self._address} sent an answer that cannot be read: {error}") from None

    def close(self) -> None:
        """Close the connection; the next transaction opens one anew."""
        self._lines.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"


class EtcdStore(_Store):
    """For threads."""

    def __init__(self, url: str) -> None:
        """Nothing is sent yet."""
        super().__init__(url, BlockingWire)

    def carry_out(self, transaction: Transaction) -> Outcome:
        """Carry out one transaction; it is sent once."""
        return run_blocking(self._carry_out(transaction))


class AsyncEtcdStore(_Store):
    """For tasks of whichever event loop is running."""

    def __init__(self, url: str) -> None:
        """Nothing is sent yet."""
        super().__init__(url, AsyncWire)

    async def carry_out(self, transaction: Transaction) -> Outcome:
        """Carry out one transaction; it is sent once."""
        return await self._carry_out(transaction)
