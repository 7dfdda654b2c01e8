"""The stage that a newcomer is to hold, from the present peers and what the newcomer has on disk.

The leader decides, because it follows all peers. Newcomers that send their requests at once are spread over the stages,
because the leader counts each of them from its reply on.
"""

import asyncio
from collections.abc import Sequence

from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.view import RETRY_S
from pipelined.swarm.protocol.work import AssignedStage, GetStage
from pipelined.swarm.records.view import SwarmView
from transports.rpc import Party, Rejected


class StageAssigner:
    """The leader's replies to newcomers.

    Args:
        stages: of the model.
    """

    def __init__(self, view: SwarmView, stages: int):
        self._view, self._stages = view, stages

    async def assign(self, request: GetStage, sender: Party) -> AssignedStage:
        """Reply to one newcomer with its stage.

        Raises:
            Rejected: "stranger": the directory has no newcomer of this name and address.
        """
        name, address, newcomers = request.name, sender.address, self._view.newcomers
        try:
            async with asyncio.timeout(RETRY_S):  # the announcement may not have arrived here yet
                await self._view.wait_for(lambda: name in newcomers and newcomers[name].address == address)
        except TimeoutError:
            raise Rejected(Reason.STRANGER, address=address) from None
        return AssignedStage(self.stage_for(name))

    def stage_for(self, name: str) -> int:
        """The first lost stage that the newcomer has saved at the head's version; else the stage with the fewest peers.

        Args:
            name: of the peer; its former stage does not count.
        Cost: O(stages), in a swarm of any size.
        """
        census = self._view.census
        stages = range(self._stages)
        lost_stages = [stage for stage in stages if not census.count_holding(stage)]
        saved_stages = self._saved_stages(name) if lost_stages else set[int]()
        useful_stages = [stage for stage in lost_stages if stage in saved_stages]
        stage = useful_stages[0] if useful_stages else fewest(census.count_staying(self._stages, excluded=name))
        census.assign(name, stage)
        return stage

    def _saved_stages(self, name: str) -> set[int]:
        """The stages that a peer has saved at the head's version; empty if it has saved all of them."""
        record = self._view.saved.get(name)
        version = self._view.head.version if self._view.head else None
        saved_stages = record.all() if record else []
        stages = {saved.stage for saved in saved_stages if saved.version == version and saved.stages == self._stages}
        return stages if len(stages) < self._stages else set()


def fewest(peer_counts: Sequence[int]) -> int:
    """The stage with the fewest peers, from the number of peers that are, or will be, at each stage."""
    return peer_counts.index(min(peer_counts))
