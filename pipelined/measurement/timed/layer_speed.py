"""A device's speed on the very layers of a model: floating-point operations a second, with a training's microbatch.

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

    async def flops(self, work: Sequence[float], fitting: Sequence[bool]) -> float:
        """Operations a second; 0: no layer fits.

        Args:
            work: floating-point operations of each layer's forward and backward of a microbatch.
            fitting: whether each layer fits this machine; others are not built.
        Cost: a second or so; the bytes of one layer at a time.
        """
        kinds = kinds_of([*work])
        seconds = dict[Kind, float]()
        for layer, kind in reversed([*enumerate(kinds)]):  # the head and the blocks first: they are most of the work
            if fitting[layer] and kind not in seconds and self.executor.busy < ENOUGH_S:
                seconds[kind] = await self._seconds(layer)
        return speed(work, kinds, seconds)

    async def _seconds(self, layer: int) -> float:
        """The median of forward and backward of one layer; the first one is not counted."""
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
        _, start, middle = await self.executor.run("forward", partial(stage.forward, key, x, random, targets))
        gradient = None if stage.is_last else tree_map_only(torch.Tensor, torch.ones_like, stage.alive[key][1])
        work = partial(stage.backward, key, gradient, 1.0, random, targets)
        _, resumed, end = await self.executor.run("backward", work)
        return middle - start + end - resumed

    def _build_stage(self, layer: int) -> tuple[Stage, Tree]:
        """One layer as a stage, and its input."""
        device = torch.device(self.executor.device)
        index = int(layer > 0)
        depth = index + (1 if layer == self.model.layers - 1 else 2)
        module = self._layer(layer, self.executor.device)
        stage = Stage(self.model, module, index, depth, device, autocast=self.numerics.autocast)
        return stage, self._entering(layer)

    def _layer(self, layer: int, device: str) -> torch.nn.Module:
        return self.model.build(range(layer, layer + 1), self.numerics.dtype, torch.device(device), 0)

    @torch.no_grad()
    def _entering(self, layer: int) -> Tree:
        """A layer's input: of the first the feed's, of others random numbers of the shapes that enter it.

        Shapes are found on the meta device, so that no layer before this one takes memory. Only a layer that refuses
        tensors without values makes those before this one be built, one at a time.
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
        """What the layers before this one make of these inputs, on this device."""
        x = tree_map_only(torch.Tensor, lambda x: x.to(device), x)
        for before in range(layer):
            x = self._layer(before, device)(x)
        return x


def speed(work: Sequence[float], kinds: Sequence[Kind], seconds: Mapping[Kind, float]) -> float:
    """Operations a second of the layers of which the seconds are known; 0: none is known, or they take no time."""
    known = Counter(kind for kind in kinds if kind in seconds)
    done = sum(operations for operations, kind in zip(work, kinds, strict=True) if kind in seconds)
    taken = sum(count * seconds[kind] for kind, count in known.items())
    return done / taken if taken else 0.0
