"""A device's speed on the layers of a model: floating-point operations a second, with a microbatch of training.

One layer of each kind is timed, forward and backward. The speed is the work of the timed kinds over their seconds, each
kind as often as the model has it, so that it predicts the seconds of the whole model. Imports torch.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils._pytree import tree_map_only

from pipelined.actors.device.executor import Executor
from pipelined.measurement.effort import THOROUGH, Effort
from pipelined.measurement.measured_costs import Kind, kinds_of
from pipelined.random.keyed_random import KeyedRandom
from pipelined.training.exchange.parcels import Tree, random_values
from pipelined.training.job.model import LanguageModel, Model
from pipelined.training.job.numerics import Numerics
from pipelined.training.job.rank_context import MicrobatchSource
from pipelined.training.stages.stage import Stage

ENOUGH_S = 2.0
"""Seconds of computing after which no further kind of layer is timed."""


@dataclass(frozen=True)
class SpeedProbe:
    """The layers that are timed, and their device.

    Args:
        feed: gives the first layer's inputs and the last one's targets.
        shape: sequences of a microbatch, and tokens of a sequence.
    """

    model: Model
    feed: MicrobatchSource
    shape: tuple[int, int]
    numerics: Numerics
    executor: Executor
    effort: Effort = THOROUGH

    async def flops(self, work: Sequence[float], fits: Sequence[bool]) -> float:
        """Operations a second; 0: no layer fits.

        Args:
            work: floating-point operations of each layer's forward and backward of a microbatch.
            fits: whether each layer fits this machine; other layers are not built.
        Cost: a second or so; the bytes of one layer at a time.
        """
        kinds = kinds_of([*work])
        seconds = dict[Kind, float]()
        for layer, kind in reversed([*enumerate(kinds)]):  # the head and the blocks first: they are most of the work
            if fits[layer] and kind not in seconds and self.executor.busy < ENOUGH_S:
                seconds[kind] = await self._seconds(layer)
        return speed(work, kinds, seconds)

    async def _seconds(self, layer: int) -> float:
        """The median of forward and backward of one layer; the first round is not counted."""
        (stage, x), _, _ = await self.executor.run("build", partial(self._build_stage, layer))
        rounds = list[float]()
        effort = self.effort
        while len(rounds) <= effort.min_rounds or (
            len(rounds) <= effort.max_rounds and sum(rounds) < effort.max_seconds
        ):
            rounds.append(await self._round(stage, x))
        return statistics.median(rounds[1:])

    async def _round(self, stage: Stage, x: Tree) -> float:
        key = (0, 0)
        random = KeyedRandom(0, 0, 0)
        targets = self.feed.targets(0, 0) if stage.is_last else None
        _, forward_start, forward_end = await self.executor.run(
            "forward", partial(stage.forward, key, x, random, targets)
        )
        gradient = None if stage.is_last else tree_map_only(torch.Tensor, torch.ones_like, stage.alive[key][1])
        backward = partial(stage.backward, key, gradient, 1.0, random, targets)
        _, backward_start, backward_end = await self.executor.run("backward", backward)
        return forward_end - forward_start + backward_end - backward_start

    def _build_stage(self, layer: int) -> tuple[Stage, Tree]:
        """One layer as a stage, and its input."""
        device = torch.device(self.executor.device)
        index = int(layer > 0)
        depth = index + (1 if layer == self.model.layers - 1 else 2)
        module = self._layer(layer, self.executor.device)
        stage = Stage(self.model, module, index, depth, device, autocast=self.numerics.autocast)
        return stage, self._layer_input(layer)

    def _layer(self, layer: int, device: str) -> torch.nn.Module:
        return self.model.build(range(layer, layer + 1), self.numerics.dtype, torch.device(device), 0)

    @torch.no_grad()
    def _layer_input(self, layer: int) -> Tree:
        """A layer's input: the feed's for the first layer, else random numbers of the shapes that enter it.

        The layers before it run on the meta device, so that they take no memory. Only if one of them refuses tensors
        without values, they are built, one at a time.
        """
        x = self.feed.inputs(0, 0)
        device = self.executor.device
        if layer and isinstance(self.model, LanguageModel):
            x = torch.randn(self.model.shape_of(layer, *self.shape), dtype=self.numerics.dtype)
        elif layer:
            try:
                x = random_values(self._run_layers_before(layer, x, "meta"), self.numerics.dtype)
            except Exception:  # as a layer raises it that needs values
                x = self._run_layers_before(layer, x, device)
        return tree_map_only(torch.Tensor, lambda x: x.to(device), x)

    def _run_layers_before(self, layer: int, x: Tree, device: str) -> Tree:
        """The output, on this device, of the layers before this one."""
        x = tree_map_only(torch.Tensor, lambda x: x.to(device), x)
        for previous in range(layer):
            x = self._layer(previous, device)(x)
        return x


def speed(work: Sequence[float], kinds: Sequence[Kind], seconds: Mapping[Kind, float]) -> float:
    """Operations a second of the layers of timed kinds; 0: no kind was timed, or these layers take no time."""
    counts = Counter(kind for kind in kinds if kind in seconds)
    timed_work = sum(operations for operations, kind in zip(work, kinds, strict=True) if kind in seconds)
    timed_seconds = sum(count * seconds[kind] for kind, count in counts.items())
    return timed_work / timed_seconds if timed_seconds else 0.0
