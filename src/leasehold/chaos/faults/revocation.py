"""What an operator does: a lease is ended by force."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

from leasehold import Leasehold
from leasehold.chaos.faults.base import BaseFault, aimed
from leasehold.chaos.site import Site
from leasehold.errors import LeaseholdError


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Each forced release is logged as a warning, which is right for operators; here it is in the history."""
    logger = logging.getLogger("leasehold")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


class Revocation(BaseFault):
    """`leasehold break`: whoever holds is revoked, and finds out at its next renewal."""

    name: ClassVar[str] = "revocation"
    summary: ClassVar[str] = "every lease that is held is ended by force, as an operator does"
    lasts: ClassVar[float] = 1.6
    pauses_holders: ClassVar[bool] = True

    def missing(self, site: Site) -> str | None:
        """It is Leasehold's own."""
        if site.subject == "leasehold":
            return None
        return f"to end a lease by force is an operation of Leasehold, and of {site.subject} there is none"

    def strike(self, site: Site) -> dict[str, Any]:
        """End what is held; an engine that does not answer, since another fault has it, revokes nothing."""
        # Half of the holders go on meanwhile: they have to find out without asking.
        if site.chance.random() < 0.5 or self.have_one_cling(site) is None:
            aimed(site, "holds", "gap")
        revoked: list[str] = []
        with (
            _in_silence(),
            Leasehold(site.url, namespace=site.namespace, label="operator", request_timeout=2.0) as locks,
        ):
            try:
                for name in locks.names():
                    locks.force_release(name, because="a fault of a chaos run")
                    revoked.append(name)
            except LeaseholdError as error:
                return {"at": ", ".join(revoked) or None, "error": type(error).__name__}
        return {"at": ", ".join(revoked) or None}

    def put_right(self) -> None:
        """A revoked lease stays revoked: there is nothing to undo."""
