"""Rounds between clusters: each slice of the model is averaged over the nodes that hold it, one of every cluster.

A round is whole or nothing: the rings leave every node with the average of its layers, then all confirm, then one
transaction commits the round, and only then is it applied. Where the generation ends first, it is never committed,
and no node applies it. A node that has, or gets, a slice of another length or with numbers that are not finite confirms
nothing: it refuses the round in the directory, and all train on.

Running statistics are averaged like parameters. Optimizer moments stay where they are, because a difference of second
moments could make one negative, and so do integers, such as the batches that a norm has counted. Imports torch.

Source: Ravnest, section 3.2 and Algorithm 2 (parallel multi-ring averaging).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from collectives.objects import gather_objects
from pipelined.actors.device.executor import Executor
from pipelined.ravnest.averaging.refusals import Senders, SliceRefused
from pipelined.ravnest.averaging.rings import Rings
from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.averaging.state_transfer import MomentsTransfer
from pipelined.ravnest.planning.ring_layout import rings_of, shares_of
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.progress import RoundEnd
from pipelined.ravnest.stage.held_stage import HeldState, averaged, flat_copy
from pipelined.ravnest.stage.orders import OrderRecorder
from pipelined.ravnest.stage.saving import StageSaver
from pipelined.training.job.check_model import persistent_buffers
from pipelined.training.job.model import Model
from transports import Nursery, Transport, TransportError
from transports.state import CHANNELS

CHANNEL = 0
"""The channel of the first ring."""


def state_by_layer(model: Model, dtype: torch.dtype) -> list[dict[str, torch.Tensor]]:
    """The parameters and persistent buffers of each layer, on the meta device. Cost: no memory, for any model."""
    layers = [model.build(range(layer, layer + 1), dtype, "meta", None) for layer in range(model.layers)]
    return [{**dict(layer.named_parameters()), **persistent_buffers(layer)} for layer in layers]


@dataclass(frozen=True, kw_only=True)
class RoundOutputs:
    """What a node's rounds leave beside the average in its tensors.

    Args:
        saver: saves averages; None: they are not saved.
        moments: what late clusters get of them in the first round; None: there are none.
        recorder: of this node's order, which it writes before it confirms a round; None: it is not recorded.
    """

    saver: StageSaver | None = None
    moments: MomentsTransfer | None = None
    recorder: OrderRecorder | None = None


class Rounds:
    """One node's part in the rounds of its generation.

    Args:
        rank: of this node among those of all clusters.
        world: opens the world of these nodes, while this node trains; None: this generation ends, and it never opened.
        layers: of the whole model, see `state_by_layer`.
        tensors: parameters and buffers of this node by name, in the order of its layers; they are replaced in place.

    Attributes:
        ended_round: the number of the last round that has ended.
        committed_round: the number of the last committed round.
    """

    def __init__(
        self,
        rank: int,
        world: "asyncio.Future[Transport | None]",
        generation: Generation,
        layers: Sequence[Mapping[str, torch.Tensor]],
        *,
        tensors: Mapping[str, torch.Tensor],
        executor: Executor,
        decisions: RoundDecisions,
        outputs: RoundOutputs = RoundOutputs(),
    ):
        self._saver, self._moments, self._recorder = outputs.saver, outputs.moments, outputs.recorder
        self._world, self._executor, self._decisions = world, executor, decisions
        self._tensors = averaged(tensors.values())
        sizes = [sum(tensor.numel() for tensor in averaged(layer.values())) for layer in layers]
        self._shares = shares_of(generation.clusters, sizes)
        self._senders = Senders(generation, self._shares, rank)
        self.ended_round = self.committed_round = self._averaged_round = self._refusals = 0

    async def average(self, weight: float | None = None) -> RoundEnd:
        """Take part in the next round, and wait for it: if it is committed, this node's tensors are the average.

        Every node of every cluster calls this the same number of times; nothing is computed meanwhile.

        Args:
            weight: of this cluster; None: all clusters have the same weight.
        Returns: how it ends; if it is not committed, nothing has changed.
        Cost: with C clusters 2(C-1)/C of its bytes are sent, and twice its bytes are held.
        """
        (average,) = await self.begin()
        end = await self.reduce(average, weight)
        if end is RoundEnd.COMMITTED:
            await self._replace(average)
            if self._moments is not None and self.ended_round == 1:
                await self._moments.load()
        return end

    async def begin(self, copies: int = 1) -> list[torch.Tensor]:
        """Begin the next round; returns copies of all that is averaged, flat, on the host.

        What is saved, or sent to late clusters, beside the average is copied at the same update.
        """
        state = await self._moments.copy() if self._moments is not None and self.ended_round == 0 else HeldState()
        if self._saver is not None:
            await self._saver.copy_moments(self.ended_round + 1, state)
        return [(await self._executor.run("snapshot", lambda: flat_copy(self._tensors)))[0] for _ in range(copies)]

    async def reduce(self, snapshot: torch.Tensor, weight: float | None = None) -> RoundEnd:
        """Take part in the round that `begin` began, with its copy, which becomes the average if it is committed."""
        if weight is not None:
            snapshot *= weight
        round_ = self.ended_round + 1
        op = "mean" if weight is None else "sum"
        end = await self._decisions.complete(
            round_, self._exchange(round_, snapshot, op), lambda: self._averaged_round == round_
        )
        if end is not RoundEnd.GENERATION_ENDS:
            self.ended_round = round_
        if end is RoundEnd.REFUSED:
            self._refusals += 1
            if self._recorder is not None:
                self._recorder.refused.append(round_)
        elif end is RoundEnd.COMMITTED:
            self.committed_round = round_
            if self._saver is not None:
                await self._saver.save(round_, snapshot)
        return end

    async def _exchange(self, round_: int, snapshot: torch.Tensor, op: str) -> None:
        """Average the snapshot, confirm that it is whole here, and on the first node commit the round; or refuse it.

        Raises:
            TransportError: a node of some cluster is lost, or failed; the world has aborted then. Or it never opened.
        """
        world = await asyncio.shield(self._world)
        if world is None:
            raise TransportError("the world of all clusters never opened here")
        try:
            try:
                await self._senders.check_own(snapshot)
                async with Nursery() as tasks:
                    tasks.create_task(self._senders.wait_for_rings(self._rings(world).all_reduce([snapshot], op)))
                    if self._moments is not None and round_ == 1:
                        tasks.create_task(self._moments.exchange(world, self._senders))
                await self._senders.check_average(snapshot)
            except SliceRefused as refused:
                await self._decisions.refuse(round_, refused.cluster, f"{refused}")
                return
            self._averaged_round = round_
            if self._recorder is not None:
                await self._recorder.write()
            await gather_objects(world, f"round {round_}", True)
            if world.rank == 0:
                await self._decisions.commit(round_)
        except TransportError as error:
            await world.abort(f"round {round_} failed: {error}")
            raise

    def _rings(self, world: Transport) -> Rings:
        """The rings of a round. After a refused one, which may have left bytes on its channels, they use others."""
        rings = len(rings_of(self._shares))
        return Rings(world, self._shares, CHANNEL + self._refusals % (CHANNELS // rings) * rings)

    async def _replace(self, average: torch.Tensor) -> None:
        """Set the tensors to the average."""
        await self._executor.run("average", lambda: self._change_tensors(average, torch.Tensor.copy_))

    async def add(self, average: torch.Tensor, snapshot: torch.Tensor) -> None:
        """Add the difference of an average and a snapshot to the tensors; the snapshot is used up."""
        await self._executor.run("average", lambda: self._change_tensors(snapshot.sub_(average), torch.Tensor.sub_))

    @torch.no_grad()
    def _change_tensors(self, flat: torch.Tensor, change: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        pieces = flat.split([tensor.numel() for tensor in self._tensors])
        for tensor, piece in zip(self._tensors, pieces, strict=True):
            change(tensor, piece.view_as(tensor).to(tensor.device))
