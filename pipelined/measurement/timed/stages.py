"""Timing of stages: forward, backward, its halves and the update of a few stages, for each microbatch size.

The stage and the device are those of training. As many ranks as have a core measure at once, because they share the
machine's memory bandwidth; the slowest one counts, because a step waits for it. Data that a pipeline would not find in
its caches is evicted here too. The costs of the stages of any plan are fitted to these times.
"""

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.measurement.effort import Effort
from pipelined.measurement.fit import Fit, Sample, fit
from pipelined.measurement.measured_costs import FIRST_INPUT, Kind, MeasuredCosts, counted, kinds_of
from pipelined.measurement.measured_model import MeasuredModel
from pipelined.measurement.timed.member import MemberStage, members
from pipelined.measurement.timed.probes import probes
from pipelined.measurement.timed.update import TimedUpdate
from pipelined.random.keyed_random import KeyedRandom
from pipelined.training.job.model import Model
from pipelined.training.job.numerics import Numerics
from pipelined.training.stages.stage import Stage
from pipelined.training.teams.team_model import TeamModel

SecondsByOp = dict[str, list[float]]
"""Seconds of each round, by op."""
TimedStages = tuple[MeasuredCosts, dict[tuple[str, int], Fit], list[Kind]]
"""What `measure_stages` returns."""
LONG_S = 30.0
"""Seconds of a stage at one size above which no larger one is timed; of all stages above which most are left out."""
LONG_STAGE_S = 5.0
"""Seconds of the last stage above which one of two layers is left out then, if both were timed before."""
ROUNDS_S = 10.0
"""Seconds of all rounds at one size; two rounds may take longer."""
LONG_FORWARD_S = 1.0
"""Seconds of a forward that itself evicts what it has written first."""
SWEPT = 64 << 20
"""Bytes that are written before an update, to evict the caches as a step's activations do."""


@dataclass(frozen=True)
class MeasuringRank:
    """The actor, model and executor of a measuring rank.

    Args:
        model: what is timed; of a split one the first member, whose microbatch is a share of the team's.
        source: gives data, and values between layers.
        measuring: whether this rank computes, or only waits for the ranks that do.
        effort: the sizes and the number of repetitions.
    """

    actor: Actor
    model: Model
    numerics: Numerics
    executor: Executor
    source: MeasuredModel
    measuring: bool
    effort: Effort


async def measure_stages(
    rank: MeasuringRank, layer_costs: list[float], sizes: Sequence[int], progress: Callable[[str], None]
) -> TimedStages | None:
    """Time stages and fit costs of layers; all ranks call this together.

    Args:
        layer_costs: floating-point operations of each layer; they determine the kinds of layers.
        sizes: microbatch sizes, in sequences, ascending; those that would take too long in a stage are left out.
    Returns: on rank 0 the costs, their fits by (op, microbatch size), and the kinds of layers in the order of each
        fit's numbers from the second on; None on the others.
    """
    times = _StageTimes(rank, kinds_of(layer_costs), sizes, progress)
    for index, layers in enumerate(times.ranges):
        if not await times.leaves_out(index, layers):
            await times.time_range(index, layers)
    if rank.actor.rank:
        return None
    timed = {key: samples for key, samples in times.samples.items() if key[1] in (0, *times.sizes)}
    fits = {key: fit(without_fixed_seconds_if_unknown(samples)) for key, samples in timed.items()}
    seconds_by_kind = {key: dict(zip([None, *times.order], fit.values, strict=True)) for key, fit in fits.items()}
    return MeasuredCosts(layer_costs, seconds_by_kind, error=error_of(timed, times.sizes[0])), fits, times.order


class _StageTimes:
    """The times of stages, and what is still timed, on which all ranks agree.

    Attributes:
        samples: the times so far, by op and microbatch size; size 0 is the end of a step.
        ranges: the layers of each stage; those that separate the kinds of layers first.
    """

    def __init__(
        self, rank: MeasuringRank, kinds: Sequence[Kind], sizes: Sequence[int], progress: Callable[[str], None]
    ):
        self._rank = rank
        self._kinds = kinds
        self._progress = progress
        self._now = rank.executor.clock.now
        self.samples = defaultdict[tuple[str, int], list[Sample]](list)
        self.sizes = sizes
        self.order = list(dict.fromkeys(kinds))
        self._known = set[Kind]()
        self._needed, every = (probes(kinds, effort) for effort in (rank.effort.few_stages(), rank.effort))
        others = [] if rank.numerics.compile else [layers for layers in every if layers not in self._needed]
        self.ranges = [*self._needed, *others]
        self._started = self._now()
        self._last_s = 0.0
        self._swept = torch.ones(SWEPT // 4 if rank.measuring else 0, device=torch.device(rank.executor.device))
        self._probe: _Probe | None = None

    async def leaves_out(self, index: int, layers: range) -> bool:
        """Whether this stage is not timed, as those before it took long."""
        enough = self._now() - self._started > LONG_S
        if index < len(self._needed):  # layers that take long alone need no stage of two to tell their fixed seconds
            is_known = self._known.issuperset(self._kinds[layer] for layer in layers)
            enough = enough and is_known and self._last_s > LONG_STAGE_S and not self._rank.numerics.compile
        return await broadcast_object(self._rank.actor.transport, f"enough {index}", enough)

    async def time_range(self, index: int, layers: range) -> None:
        """Time one stage at each size, and the end of its step; larger sizes are left out once they would take long."""
        began = self._now()
        self._known |= {self._kinds[layer] for layer in layers}
        self._probe = None  # two stages at once may not fit the memory
        self._probe = probe = _Probe(self._rank, layers, self._swept) if self._rank.measuring else None
        for size, larger in zip_longest(self.sizes, self.sizes[1:]):
            stage = f"timing stage {index + 1} of {len(self.ranges)} ({len(layers)} layers)"
            self._progress(f"{stage}, {size} sequences a microbatch (sizes: {len(self.sizes)})")
            start = self._now()
            passes = partial(probe.passes, size) if probe else None
            self._add(layers, size, await _on_all_ranks(self._rank, passes, f"{index} {size}"))
            is_long = larger is not None and (self._now() - start) * larger / size > LONG_S
            if await broadcast_object(self._rank.actor.transport, f"long {index} {size}", is_long):
                self.sizes = [timed for timed in self.sizes if timed <= size]
                break
        self._add(layers, 0, await _on_all_ranks(self._rank, probe.ending if probe else None, f"{index} ending"))
        self._last_s = self._now() - began

    def _add(self, layers: range, size: int, taken: SecondsByOp) -> None:
        regressors = (1.0, *counted((self._kinds[layer] for layer in layers), self.order))
        is_first = layers.start == 0 and not isinstance(self._rank.model, TeamModel)
        for op, seconds in taken.items():
            name = FIRST_INPUT if is_first and op == "I" else op
            if not (is_first and op == "W"):  # the whole backward, which B has timed
                self.samples[name, size].append(Sample(regressors, tuple(seconds)))


def error_of(samples: Mapping[tuple[str, int], Sequence[Sample]], size: int) -> float:
    """The relative standard error of all timed forwards and backwards together, if the errors of all agree."""
    passes = [(sample.error, sample.middle) for op in "FB" for sample in samples[op, size]]
    return sum(error for error, _ in passes) / sum(middle for _, middle in passes)


def without_fixed_seconds_if_unknown(samples: list[Sample]) -> list[Sample]:
    """The samples; without fixed seconds where there is only one a kind of layer, which cannot tell them apart."""
    layers = [sample.regressors[1:] for sample in samples]
    if any(sum(counts) > 1 for counts in layers):
        return samples
    return [replace(sample, regressors=(0.0, *counts)) for sample, counts in zip(samples, layers, strict=True)]


class _Rounds(NamedTuple):
    """How often one thing is timed again, first to warm up, and whether the seconds of its first round count, too."""

    warmup: int
    counted: int
    first_counts: bool

    @classmethod
    def that_fit(cls, effort: Effort, seconds: float) -> "_Rounds":
        """Those of the effort at these seconds a round; where they would take over `ROUNDS_S`, fewer."""
        counted = min(effort.max_rounds, max(effort.min_rounds, int(effort.max_seconds / max(1e-6, seconds))))
        if (effort.warmup_rounds + counted) * seconds <= ROUNDS_S:
            return cls(effort.warmup_rounds, counted, False)
        return cls(0, max(1, int(ROUNDS_S / seconds) - 1), True)


async def _on_all_ranks(
    rank: MeasuringRank, timed: Callable[[], Awaitable[SecondsByOp]] | None, name: str
) -> SecondsByOp:
    """Time rounds of one thing on all measuring ranks at once; on rank 0 the slowest rank's seconds, else {}.

    Args:
        timed: a round; None: this rank does not measure.
    """
    transport = rank.actor.transport
    for _ in range(1 + rank.numerics.compile):
        first = await timed() if timed else {}
    own = _Rounds.that_fit(rank.effort, sum(map(sum, first.values())))
    rounds = _Rounds(*await broadcast_object(transport, f"rounds {name}", list(own)))
    taken: SecondsByOp = defaultdict(list, first if rounds.first_counts else {})
    if timed:
        for round_ in range(rounds.warmup + rounds.counted):
            for op, seconds in (await timed()).items():
                taken[op] += seconds if round_ >= rounds.warmup else []
    everyone = [of_rank for of_rank in await gather_objects(transport, f"taken {name}", dict(taken)) if of_rank]
    ops = everyone[0] if everyone else ()
    return {op: max((of_rank[op] for of_rank in everyone), key=statistics.median) for op in ops}


def _stage(rank: MeasuringRank, layers: range, device: torch.device) -> Stage | MemberStage:
    """These layers of the model, or of a member of the team that splits it."""
    model, numerics = rank.model, rank.numerics
    if isinstance(model, TeamModel):
        return MemberStage(model, layers, numerics, device, rank.actor.transport)
    index = 0 if layers.start == 0 else 1
    depth = index + (1 if layers.stop == model.layers else 2)
    module = model.build(layers, numerics.dtype, device, seed=0)
    again = numerics.recompute_attention
    autocast, compile = numerics.autocast, numerics.compile
    return Stage(model, module, index, depth, device, autocast=autocast, recompute_attention=again, compile=compile)


class _Probe:
    """A stage, and two microbatches through it."""

    def __init__(self, rank: MeasuringRank, layers: range, swept: torch.Tensor):
        self._rank, self._layers, self._swept = rank, layers, swept
        self._stage = _stage(rank, layers, torch.device(rank.executor.device))
        parameters = dict(self._stage.module.named_parameters())
        self._update = TimedUpdate(parameters, rank.source.optimizer(), rank.numerics)
        self._given: tuple[int, list[tuple[Any, Any, Any]]] | None = None

    async def passes(self, size: int) -> SecondsByOp:
        """Time the forwards of two microbatches, the backward of one, and both halves of the other's.

        The second forward runs between the first and its backward, as in a pipeline. Where a forward takes long it runs
        after that backward: the caches hold nothing of its beginning, and two microbatches may not fit the memory. Of a
        compiled stage both backwards are whole, and the first round at a size compiles it.
        """
        stage = self._stage
        random = KeyedRandom(0, 0, 0)
        if self._given is None or self._given[0] != size:
            self._given = size, [self._arrivals(size) for _ in range(2)]
        without_gradients = tree_map_only(torch.Tensor, torch.Tensor.detach, self._given[1])  # of earlier rounds
        x, gradient, targets = zip(*without_gradients, strict=True)
        forward = [partial(stage.forward, (0, m), x[m], random, targets[m]) for m in range(2)]
        back = [((0, m), gradient[m], 1.0, random, targets[m]) for m in range(2)]
        first = ("B", lambda: stage.backward(*back[0]))
        whole = ("B", lambda: stage.backward(*back[1]))
        halves = ("I", lambda: stage.backward_input(*back[1])), ("W", lambda: stage.backward_weight((0, 1)))
        second = (whole,) if self._rank.numerics.compile else halves
        taken = await self._time_pieces(("F", forward[0]))
        between = ("F", forward[1])
        two = (first, between) if taken["F"][0] > LONG_FORWARD_S else (between, first)
        rest = await self._time_pieces(*two, *second)
        return {**rest, "F": taken["F"] + rest["F"]}

    async def ending(self) -> SecondsByOp:
        """Time the end of a step, which no size of a microbatch changes, after other memory has been written."""
        await self._rank.executor.run("", lambda: self._swept.add_(1.0))
        return await self._time_pieces(*self._update.pieces())

    async def _time_pieces(self, *pieces: tuple[str, Callable[[], object]]) -> SecondsByOp:
        taken: SecondsByOp = defaultdict(list)
        for op, work in pieces:
            _, start, end = await self._rank.executor.run(op, work)
            taken[op].append(end - start)
            await asyncio.sleep(0)
        return taken

    def _arrivals(self, size: int) -> tuple[Any, Any, Any]:
        """The stage's input, the gradient of its output (None for the last stage), and the targets (only there)."""
        source, stage, layers, model = self._rank.source, self._stage, self._layers, self._rank.model
        rows = size * members(model) if isinstance(model, TeamModel) else size
        feed = source.feed(rows)
        member = stage if isinstance(stage, MemberStage) else None
        x = feed.inputs(0, 0) if stage.is_first else source.between(layers.start, rows)
        given = member.message(x) if member and not stage.is_first else x
        if stage.is_last:
            return given, None, feed.targets(0, 0)
        gradient = source.between(layers.stop, rows)
        return given, member.piece(gradient) if member else gradient, None
