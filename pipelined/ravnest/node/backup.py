"""A place that two nodes hold: both do the same in the same order, so either can be lost at any moment.

What a stage sends depends on its first state, on the messages that it receives, and on three decisions. Timing takes
these decisions on other places; on a place with a backup they are fixed:

    the order of forwards and backwards          K forwards, then a backward and a forward by turns
    when a round's difference is added           half way to the next snapshot, of an opening round there
    the step after which its cluster stops       a fixed number of updates after a round that is not committed

So both nodes send equal messages under equal names, each receiver keeps the first copy, and no node waits for a
take-over. The faster node waits for the slower one, so that few messages wait there. A new backup first receives the
state, begins some steps behind the other node, and may be fewer steps behind as time passes. No torch.

Source: Ravnest, section 3.5.2; state-machine replication (Schneider, 1990) in place of a copy of results is our own.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pipelined.actors.actor import Actor
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.planning.backups import STEPS_APART
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.stage.orders import NodeOrder
from transports import PeerLost
from transports.rpc.world import RankHolder, RpcTransport

CATCH_UP = 16
"""Steps after which a new backup may be one step less behind the other node."""
FIRST_STEP_LEAD = 2
"""Steps that the other node may make while a new backup, which has the state, makes its first one."""


def fixed_order(generation: Generation, place: ClusterPlace, microbatches: int) -> tuple[str, ...]:
    """The instructions of a place; see `NodeOrder`.

    Args:
        microbatches: that the cluster trains at most.
    """
    stages = generation.clusters[place.cluster][: place.stage + 1]
    alive = min(stage.alive for stage in stages)  # no stage before it waits for more
    order = [f"F{microbatch}" for microbatch in range(min(alive, microbatches))]
    for microbatch in range(microbatches):
        order.append(f"B{microbatch}")
        order += [f"F{microbatch + alive}"] if microbatch + alive < microbatches else []
    return tuple(order)


def fixed_turns(snapshots: Sequence[int], interval: int) -> dict[int, int]:
    """The updates after which the difference of each round is added: half way to the next snapshot.

    The difference of an opening round is added at the next snapshot: a late cluster or a new backup gets its state
    meanwhile.

    Args:
        snapshots: by round beside training the updates before its snapshot.
        interval: updates from the last of them to where the next one would be.
    """
    next_snapshots = [*snapshots[1:], *(snapshot + interval for snapshot in snapshots[-1:])]
    return {
        round_: snapshot + max(1, (following - snapshot) // 2) if snapshot else following
        for round_, (snapshot, following) in enumerate(zip(snapshots, next_snapshots, strict=True), 1)
    }


class PlaceReplica:
    """One of the two nodes of a place, in one cluster.

    Args:
        world: of the cluster.
        actor: sends to the other node.
        order: what both do.
        microbatches: of a step; the nodes are at most `STEPS_APART` steps apart.
        alive: at most, on this stage.
        room: microbatches of which the inputs may wait in a new backup.

    Attributes:
        holder: this node, beside the other one.
        copying: sends the state of the stage to a new backup, which this node does not wait for meanwhile.
    """

    def __init__(
        self, world: RpcTransport, actor: Actor, order: NodeOrder, *, microbatches: int, alive: int, room: int = 0
    ):
        self._actor = actor
        self.order = order
        self._microbatches = microbatches
        self._alive = alive
        self._max_gap = max(1, room // microbatches - 1)
        self.holder = RankHolder(world)
        self.copying: asyncio.Task[None] | None = None
        self._steps = 0
        self._ended_after = -1
        self._reported_steps = 0
        self._gap = STEPS_APART - 1

    @property
    def is_second(self) -> bool:
        """Whether this node is the backup, and the first node is not lost."""
        return self.holder.is_backup and self.holder.has_twin

    def end_after(self, updates: int) -> None:
        """A round was not committed, as both nodes see after equally many updates: this generation ends."""
        if self._ended_after < 0:
            self._ended_after = updates

    def stops(self) -> bool:
        """Whether the cluster is to stop; called once for each step of a segment, in order, after its last update."""
        self._steps += 1
        return 0 <= self._ended_after <= self._steps * self._microbatches - self._alive

    async def keep_pace(self, updates: int) -> None:
        """Wait until the other node has made all updates but those of the last two steps, or is lost.

        A new backup may be as many steps behind as were made while it got the state, and then ever fewer. Its inputs
        wait there meanwhile: when it has no room for more, this node waits, and with it the cluster.
        """
        step, remainder = divmod(updates, self._microbatches)
        if remainder or not self.holder.has_twin:
            return
        self._actor.start(self._send_pace(step))
        if self.copying is not None and not self.copying.done():
            self._gap = min(step + FIRST_STEP_LEAD, self._max_gap)
        elif step % CATCH_UP == 0:
            self._gap = max(STEPS_APART - 1, self._gap - 1)
        with suppress(PeerLost):
            while self._reported_steps < step - self._gap:
                await self.holder.receive(("pace", self._reported_steps + 1))
                self._reported_steps += 1

    async def _send_pace(self, step: int) -> None:
        with suppress(PeerLost):
            await self.holder.send(("pace", step))
