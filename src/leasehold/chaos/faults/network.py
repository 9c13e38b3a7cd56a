"""What happens between workers and the engine, at the proxies: silence, slowness, resets, answers that come late."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Final

from leasehold.chaos.faults.base import BaseFault, aimed
from leasehold.chaos.faults.workers import NO_PROXY
from leasehold.chaos.site import Site
from leasehold.testing.proxy import Proxy

GRANTED_WITHIN: Final = 3.0
"""TTLs in which somebody who waits, and to whom every answer comes late, is granted the lock or never."""
LATE_BY: Final = 0.4
"""TTLs for which a grant is on its way."""


class NetworkFault(BaseFault):
    """Strikes the connections of a holder, or of every worker."""

    loses_answers: ClassVar[bool] = True

    def missing(self, site: Site) -> str | None:
        """It needs proxies."""
        return None if site.proxies else NO_PROXY

    def strike(self, site: Site) -> dict[str, Any]:
        """Break the connections of one worker, or of all.

        Half of those who are struck alone go on holding meanwhile, past the end of their leases.
        """
        if site.chance.random() < 0.3:
            at, proxies = "all", site.proxies
        else:
            clings = self.have_one_cling(site) if site.chance.random() < 0.5 else None
            worker = clings or aimed(site, "holds", "gap")
            at, proxies = (worker.name, site.proxies_of(worker)) if worker else ("all", site.proxies)
        mine = self.take(site, proxies)
        for proxy in mine:
            self.spoil(proxy, site)
        return {"at": at if mine else None}

    @abstractmethod
    def spoil(self, proxy: Proxy, site: Site) -> None:
        """What is done to one connection."""

    def put_right(self) -> None:
        """Let everything pass."""
        for proxy in self._taken:
            if isinstance(proxy, Proxy):
                proxy.heal()


class Partition(NetworkFault):
    """Nothing passes, either way, and nobody is told."""

    name: ClassVar[str] = "partition"
    summary: ClassVar[str] = "packets between a worker, or all, and the engine vanish both ways, past the TTL"
    lasts: ClassVar[float] = 1.6

    def spoil(self, proxy: Proxy, _site: Site) -> None:
        """Let everything vanish."""
        proxy.black_hole()


class LostRequests(NetworkFault):
    """A partition one way: what workers send does not arrive."""

    name: ClassVar[str] = "partition-requests"
    summary: ClassVar[str] = "one-way partition: what a worker sends vanishes, what the engine sends arrives"
    lasts: ClassVar[float] = 1.6

    def spoil(self, proxy: Proxy, _site: Site) -> None:
        """Let requests vanish."""
        proxy.cut("requests")


class LostReplies(NetworkFault):
    """A partition one way: requests take effect, and nobody hears of it."""

    name: ClassVar[str] = "partition-replies"
    summary: ClassVar[str] = "one-way partition: the engine does what it is asked, and its replies vanish"
    lasts: ClassVar[float] = 1.6

    def spoil(self, proxy: Proxy, _site: Site) -> None:
        """Let replies vanish."""
        proxy.cut("replies")


class Latency(NetworkFault):
    """Each packet takes a noticeable part of the TTL."""

    name: ClassVar[str] = "latency"
    summary: ClassVar[str] = "each packet takes a tenth of the TTL, each way"
    lasts: ClassVar[float] = 2.0
    loses_answers: ClassVar[bool] = False

    def spoil(self, proxy: Proxy, site: Site) -> None:
        """Hold back everything for a while."""
        proxy.delay(site.ttl / 10)


class LateReplies(NetworkFault):
    """A grant arrives when it has already run out."""

    name: ClassVar[str] = "late-replies"
    summary: ClassVar[str] = "replies of the engine arrive when the TTL has passed"
    lasts: ClassVar[float] = 2.5

    def spoil(self, proxy: Proxy, site: Site) -> None:
        """Hold back replies for longer than a lease."""
        proxy.delay(1.2 * site.ttl, "replies")


class LateGrant(NetworkFault):
    """A grant is on its way for a good part of its lease, and then its holder is not heard any more.

    Whoever counts the lease from the moment at which the grant arrived believes in it for too long.
    """

    name: ClassVar[str] = "late-grant"
    summary: ClassVar[str] = "a grant arrives late, and nothing that its holder sends from then on does"
    lasts: ClassVar[float] = 1.6

    def strike(self, site: Site) -> dict[str, Any]:
        """Hold back the replies to one who waits; when it was granted the lock and clings to it, cut it off."""
        worker = aimed(site, "waits")
        mine = self.take(site, site.proxies_of(worker)) if worker else []
        if worker is None or not mine:
            return {"at": None}
        for proxy in mine:
            proxy.delay(LATE_BY * site.ttl, "replies")
        self.have_one_cling(site, [worker], within=GRANTED_WITHIN)
        for proxy in mine:
            self.spoil(proxy, site)
        return {"at": worker.name, "doing": worker.doing()}

    def spoil(self, proxy: Proxy, _site: Site) -> None:
        """Let requests vanish."""
        proxy.cut("requests")


class Resets(NetworkFault):
    """Connections are reset while requests are under way."""

    name: ClassVar[str] = "resets"
    summary: ClassVar[str] = "every connection is reset (RST), and the next reply is lost with its connection, too"
    lasts: ClassVar[float] = 0.3
    ends_connections: ClassVar[bool] = True

    def spoil(self, proxy: Proxy, site: Site) -> None:
        """Reset what is open, and later the connection of a request that took effect."""
        proxy.reset()
        proxy.lose("reply", after=site.chance.randrange(4))
