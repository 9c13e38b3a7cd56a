"""Bugs to plant in the sharing of partitions. The judges of `sim/partitions.py` must catch every one of them."""

from __future__ import annotations

from typing import Final

from leasehold.patterns.partitions import entities
from leasehold.patterns.partitions.crew import Crew
from leasehold.patterns.partitions.inbox import AsyncFeed
from leasehold.patterns.partitions.owned import Owned
from leasehold.sim.mutating import Mutation, edit
from leasehold.sim.partitions import Instance, PartitionHistory
from leasehold.sim.partitions_parts import SimInbox, Table

_ALL: Final = (
    Mutation(
        "take-before-release",
        "A partition is granted while another owner holds it.",
        ("alone",),
        lambda: [edit(Table.take, ("if self.living(name) and not shared:", "if False:"))],
    ),
    Mutation(
        "token-not-raised",
        "The next owner gets the token of the one before it.",
        ("token", "order"),
        lambda: [edit(Table.take, ("self.tokens[name] += 1", "self.tokens[name] = 1"))],
    ),
    Mutation(
        "no-drain",
        "A partition is given back while work is under way in it.",
        ("drain", "alone"),
        lambda: [edit(Crew._release_drained, ("or not owned.is_idle", "or False"))],
    ),
    Mutation(
        "lost-and-taken-again",
        "A partition whose lease was lost is forgotten at once, and taken again beside the work that goes on.",
        ("alone",),
        lambda: [edit(Crew._release_drained, ("not owned.is_idle", "not (owned.lease.lost or owned.is_idle)"))],
    ),
    Mutation(
        "uncapped-moves",
        "A member gives up all that is above its quota in one go.",
        ("cap",),
        lambda: [
            edit(Crew._give_up, ("min(len(serving) - goal, self._pace.most_moves - closing)", "len(serving) - goal"))
        ],
    ),
    Mutation(
        "cap-forgets-what-drains",
        "What drains already does not count, so that more and more is on the move.",
        ("cap",),
        lambda: [edit(Crew._give_up, ("self._pace.most_moves - closing", "self._pace.most_moves"))],
    ),
    Mutation(
        "queue-dropped",
        "What was queued when a partition drains is forgotten.",
        ("handed back", "lost"),
        lambda: [edit(Owned.close, ("for item in handed_back:", "for item in ():"))],
    ),
    Mutation(
        "queue-kept",
        "What was queued when a lease was lost is run all the same.",
        ("lease",),
        lambda: [edit(Owned.next, ("if self.lease.lost:", "if False:"))],
    ),
    Mutation(
        "put-after-loss",
        "A partition that is lost or drains takes new items.",
        ("lease", "handed back", "alone", "all", "flat"),
        lambda: [
            edit(Owned.put, ("if not self.serves:", "if False:")),
            edit(Owned.next, ("if self.lease.lost:", "if False:")),
        ],
    ),
    Mutation(
        "out-of-order",
        "The latest item runs first.",
        ("order",),
        lambda: [edit(SimInbox.take, ("return found", "return found[::-1]"))],
    ),
    Mutation(
        "acknowledged-first",
        "A message is acknowledged before it is handled, and a crash in between loses it.",
        ("order", "lost"),
        lambda: [
            edit(
                AsyncFeed._handled,
                (
                    "await self._handle(writer, message)",
                    "await self._inbox.acknowledge(message, writer.token)\n        await self._handle(writer, message)",
                ),
            )
        ],
    ),
    Mutation(
        "unfenced-resource",
        "The resource takes whatever comes.",
        ("order",),
        lambda: [edit(PartitionHistory.write, ("if writer.token < self.floors[writer.entity]:", "if False:"))],
    ),
    Mutation(
        "greedy",
        "A member takes more than its quota.",
        ("flat", "movement", "all"),
        lambda: [edit(Crew._take, ("goal - sum(", "goal + 2 - sum("))],
    ),
    Mutation(
        "gives-up-nothing",
        "A member keeps what is above its quota.",
        ("flat",),
        lambda: [edit(Crew._give_up, ("if count <= 0", "if True"))],
    ),
    Mutation(
        "remainder-to-everybody",
        "Everybody may keep one more than its share.",
        ("flat", "all"),
        lambda: [
            edit(
                entities.quota,
                (
                    "return -((ranked.index(member) - partitions) // len(ranked))",
                    "return partitions // len(ranked) + ranked.index(member)",
                ),
            )
        ],
    ),
    Mutation(
        "dead-members-count",
        "Who is gone stays in the roster.",
        ("all",),
        lambda: [
            edit(Instance.roster, ('self.history.table.living("members")', 'self.history.table.holders["members"]'))
        ],
    ),
    Mutation(
        "looks-once",
        "A member that found nothing free never looks again.",
        ("all", "flat"),
        lambda: [edit(Crew._take, ("self._rests_until = self._ground.now() + self._rest", "self._rests_until = 1e9"))],
    ),
)
PARTITION_MUTATIONS: Final = {mutation.name: mutation for mutation in _ALL}
