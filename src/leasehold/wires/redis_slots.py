"""Which node of a Cluster serves which slot, and how to learn that."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Any, Final

from leasehold.core.worlds import World
from leasehold.errors import EngineError
from leasehold.wires.redis_cluster_target import Cluster
from leasehold.wires.redis_replies import NEEDED_RIGHTS, ErrorReply, command, error_at_entry, nonsense
from leasehold.wires.redis_setup import Dial, ask_apart, first_answer
from leasehold.wires.urls import Endpoint

SLOTS: Final = 16384
_UNKNOWN_HOSTS: Final = ("", "?")


def slot_of(key: str) -> int:
    """The slot of a key that has a hash tag.

    >>> slot_of("lh:{123456789}:l")
    12739
    """
    return binascii.crc_hqx(key[key.index("{") + 1 : key.index("}")].encode(), 0) % SLOTS


class SlotMap:
    """What is known of a cluster's slots. Threads share it: its lists are replaced, and single entries set."""

    def __init__(self) -> None:
        self.owners: list[Endpoint | None] = [None] * SLOTS
        self.primaries: tuple[Endpoint, ...] = ()
        """The nodes that serve slots, in an order that stays."""
        self.asked_at = float("-inf")
        """When somebody last tried to learn."""
        self.doubted = True
        """Whether a node did not answer since, so that others should be asked who serves its slots."""
        self.failure = ""
        """Why nothing could be learned, if so."""
        self._told_by: Endpoint | None = None

    async def learn(self, cluster: Cluster, dial: Dial, world: World, until: float) -> None:
        """Ask one node after the other, the one that answered last time first."""
        asked = dict.fromkeys([*([self._told_by] if self._told_by else []), *self.primaries, *cluster.seeds])

        async def ask(endpoint: Endpoint, until: float) -> tuple[Endpoint, list[Endpoint | None]]:
            return endpoint, await _ask_node(endpoint, cluster, dial, until)

        self._told_by = None
        try:
            told_by, owners = await first_answer(
                list(asked), ask, world, until, f"no node of {cluster.address} could tell which of them serves what"
            )
        except EngineError as error:
            self.failure = str(error)
            raise
        finally:
            self.asked_at = world.now()
        self._told_by, self.owners, self.failure, self.doubted = told_by, owners, "", False
        self.primaries = tuple(sorted({owner for owner in owners if owner is not None}))


async def _ask_node(node: Endpoint, cluster: Cluster, dial: Dial, until: float) -> list[Endpoint | None]:
    link = await dial(node, until)
    reply = await ask_apart(link, cluster.entry.credentials(), command("CLUSTER", "SLOTS"), str(node), until)
    if not isinstance(reply, ErrorReply):
        return owners_from(reply, node)
    if "cluster support disabled" in reply.words:
        raise EngineError(f"{node} is no node of a cluster; write redis://host:port for a single server")
    if reply.code == "NOPERM":
        raise EngineError(
            f"{node} does not tell this user of its slots; ACL SETUSER <name> {NEEDED_RIGHTS} +cluster|slots"
        )
    raise error_at_entry(reply, str(node))


def owners_from(reply: Any, told_by: Endpoint) -> list[Endpoint | None]:
    """The node of each slot, from the answer to CLUSTER SLOTS."""
    owners: list[Endpoint | None] = [None] * SLOTS
    for one in reply if isinstance(reply, list) else [None]:
        match one:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if (
                0 <= first <= last < SLOTS and 0 < port < 65536
            ):
                owner = _endpoint((host or b"").decode("utf-8", "replace"), port, told_by)
                owners[first : last + 1] = [owner] * (last - first + 1)
            case _:
                raise nonsense(reply, str(told_by))
    return owners


def redirection(to: str, told_by: Endpoint) -> Endpoint:
    """Where MOVED or ASK leads: ``host:port``, where the host may be missing or an IPv6 address without brackets."""
    host, _, port = to.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise nonsense(to, str(told_by))
    return _endpoint(host, int(port), told_by)


def _endpoint(host: str, port: int, told_by: Endpoint) -> Endpoint:
    """A node that does not know its own address is where the one that tells of it is."""
    return Endpoint(told_by.host if host in _UNKNOWN_HOSTS else host, port)


def order_of(nodes: Sequence[Endpoint], after: str) -> list[Endpoint]:
    """The nodes that follow one that is given as text, in the order of their texts; it need not be among them."""
    return sorted((node for node in nodes if str(node) > after), key=str)
