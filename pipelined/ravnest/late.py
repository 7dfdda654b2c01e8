"""What late clusters get beside the average: the optimizer's state, from the nodes of the first cluster.

The first round of clusters that go on has its snapshot before their first update, so what is sent is of the snapshot.
Each node of the first cluster sends each late node what both hold, a message for each tensor. Imports torch.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from pipelined.aio.nursery import Nursery
from pipelined.ravnest.held_stage import HeldStage, averaged
from pipelined.ravnest.records import Clusters
from pipelined.training.optimizer.state import VALUE
from transports import Transport


class LateState:
    """One node's part; a node of neither the first nor a late cluster does nothing.

    Args:
        world: of the nodes of all clusters.
        layers: of the whole model, see `state_by_layer`.
        stage: of this node.
    """

    def __init__(
        self, world: Transport, clusters: Clusters, layers: Sequence[Mapping[str, torch.Tensor]], stage: HeldStage
    ):
        self._world, self._layers, self._stage = world, layers, stage
        self._places = [(n, place) for n, row in enumerate(clusters.rows) for place in row]
        cluster, kept = self._places[world.rank][0], len(clusters.rows) - clusters.going.late
        self._sends, self._receives = cluster == 0, cluster >= kept
        self._others = range(kept, len(clusters.rows)) if self._sends else range(1)
        self._state = dict[str, torch.Tensor]()

    async def copy(self) -> None:
        """In the first cluster: copy what is to be sent. Cost: the bytes of the stage and of its optimizer's state."""
        if self._sends:
            state = await self._stage.copied()
            averages = {key for key, tensor in state.items() if key.endswith(f"/{VALUE}") and averaged([tensor])}
            self._state = {key: tensor for key, tensor in state.items() if key not in averages}

    async def exchange(self) -> None:
        """Send it, or receive it. Raises: as `Transport.send` and `Transport.receive`."""
        if self._sends or self._receives:
            one = self._send if self._sends else self._receive
            async with Nursery() as tasks:
                for rank, name in self._shared():
                    tasks.create_task(one(rank, name))
        if self._sends:
            self._state = {}

    async def load(self) -> None:
        """In a late cluster: begin with what was received beside the average."""
        if self._receives:
            state, self._state = self._state, {}
            await self._stage.restore(state)

    def _shared(self) -> Iterator[tuple[int, str]]:
        """The ranks on the other side, and the tensors that both hold."""
        own = self._places[self._world.rank][1]
        for rank, (cluster, place) in enumerate(self._places):
            first, end = max(own.first, place.first), min(own.end, place.end)
            if cluster in self._others and first < end:
                yield from ((rank, name) for layer in self._layers[first:end] for name in layer)

    async def _send(self, rank: int, name: str) -> None:
        keys = [key for key in self._state if key.rpartition("/")[0] == name]
        await self._world.send(rank, _address(name), *(self._state[key] for key in keys), note=keys)

    async def _receive(self, rank: int, name: str) -> None:
        message = await self._world.receive(rank, _address(name))
        for key, block in zip(message.note, message.blocks, strict=True):
            self._state[key] = block.torch()


def _address(name: str) -> tuple[str, str]:
    return "optimizer state", name
