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
from pipelined.measurement.fit import Sample, fit
from pipelined.measurement.measured_costs import FIRST_INPUT, FittedStages, Kind, kinds_of, layer_counts
from pipelined.measurement.measured_model import MeasuredModel
from pipelined.measurement.timed.member import MemberStage, team_size
from pipelined.measurement.timed.probes import probes
from pipelined.measurement.timed.update import TimedUpdate
from pipelined.random.keyed_random import KeyedRandom
from pipelined.training.job.model import Model
from pipelined.training.job.numerics import Numerics
from pipelined.training.stages.stage import Stage
from pipelined.training.teams.team_model import TeamModel

SecondsByOp = dict[str, list[float]]
"""Seconds of each round, by op."""
LONG_S = 30.0
"""Seconds of a stage at one size above which no larger size is timed; of all stages above which most are skipped."""
LONG_STAGE_S = 5.0
"""Seconds of the last stage above which a stage of two layers is then skipped, too, if both were timed before."""
ROUNDS_S = 10.0
"""Seconds of all rounds at one size; two rounds may take longer."""
LONG_FORWARD_S = 1.0
"""Seconds of a forward that itself evicts from the caches what it has written first."""
SWEPT_BYTES = 64 << 20
"""Bytes that are written before an update, to evict the caches as a step's activations do."""


@dataclass(frozen=True)
class MeasuringRank:
    """The actor, model and executor of a measuring rank.

    Args:
        model: the timed model; of a split model the first member, whose microbatch is a share of the team's.
        measured_model: gives data, and values between layers.
        measuring: whether this rank computes, or only waits for the ranks that do.
        effort: the sizes and the number of repetitions.
    """

    actor: Actor
    model: Model
    numerics: Numerics
    executor: Executor
    measured_model: MeasuredModel
    measuring: bool
    effort: Effort


async def measure_stages(
    rank: MeasuringRank, layer_costs: list[float], sizes: Sequence[int], progress: Callable[[str], None]
) -> FittedStages | None:
    """Time stages and fit costs of layers; all ranks call this together.

    Args:
        layer_costs: floating-point operations of each layer; they determine the kinds of layers.
        sizes: microbatch sizes, in sequences, ascending; sizes that would take too long in a stage are left out.
    Returns: the fits on rank 0, None on the others.
    """
    times = _StageTimes(rank, kinds_of(layer_costs), sizes, progress)
    for index, layers in enumerate(times.ranges):
        if not await times.leaves_out(index, layers):
            await times.time_range(index, layers)
    if rank.actor.rank:
        return None
    samples = {key: timed for key, timed in times.samples.items() if key[1] in (0, *times.sizes)}
    fits = {key: fit(without_fixed_seconds_if_unknown(timed)) for key, timed in samples.items()}
    return FittedStages(fits, times.kinds, error_of(samples, times.sizes[0]))


class _StageTimes:
    """The times of stages, and the stages and sizes still to time, on which all ranks agree.

    Attributes:
        samples: the times so far, by op and microbatch size; size 0 is the end of a training step.
        sizes: the microbatch sizes to time.
        kinds: the kinds of layers, in the order of the samples' regressors.
        ranges: the layers of each stage; the stages that separate the kinds of layers come first.
    """

    def __init__(
        self, rank: MeasuringRank, kinds: Sequence[Kind], sizes: Sequence[int], progress: Callable[[str], None]
    ):
        self._rank = rank
        self._layer_kinds = kinds
        self._progress = progress
        self._now = rank.executor.clock.now
        self.samples = defaultdict[tuple[str, int], list[Sample]](list)
        self.sizes = sizes
        self.kinds = list(dict.fromkeys(kinds))
        self._timed_kinds = set[Kind]()
        self._needed = probes(kinds, rank.effort.few_stages())
        stages = [] if rank.numerics.compile else probes(kinds, rank.effort)
        self.ranges = [*self._needed, *(layers for layers in stages if layers not in self._needed)]
        self._start = self._now()
        self._last_s = 0.0
        self._swept = torch.ones(SWEPT_BYTES // 4 if rank.measuring else 0, device=torch.device(rank.executor.device))
        self._probe: _Probe | None = None

    async def leaves_out(self, index: int, layers: range) -> bool:
        """Whether this stage is not timed, as the stages before it took long."""
        is_late = self._now() - self._start > LONG_S
        if index < len(self._needed):  # layers that take long alone need no stage of two to tell their fixed seconds
            is_timed = self._timed_kinds.issuperset(self._layer_kinds[layer] for layer in layers)
            is_late = is_late and is_timed and self._last_s > LONG_STAGE_S and not self._rank.numerics.compile
        return await broadcast_object(self._rank.actor.transport, f"enough {index}", is_late)

    async def time_range(self, index: int, layers: range) -> None:
        """Time one stage at each size, and the end of its step; larger sizes are left out once they would take long."""
        stage_start = self._now()
        self._timed_kinds |= {self._layer_kinds[layer] for layer in layers}
        self._probe = None  # two stages at once may not fit the memory
        self._probe = probe = _Probe(self._rank, layers, self._swept) if self._rank.measuring else None
        for size, larger in zip_longest(self.sizes, self.sizes[1:]):
            stage = f"timing stage {index + 1} of {len(self.ranges)} ({len(layers)} layers)"
            self._progress(f"{stage}, {size} sequences a microbatch (sizes: {len(self.sizes)})")
            start = self._now()
            passes = partial(probe.passes, size) if probe else None
            self._add(layers, size, await _time_on_all_ranks(self._rank, passes, f"{index} {size}"))
            is_long = larger is not None and (self._now() - start) * larger / size > LONG_S
            if await broadcast_object(self._rank.actor.transport, f"long {index} {size}", is_long):
                self.sizes = [shorter for shorter in self.sizes if shorter <= size]
                break
        self._add(layers, 0, await _time_on_all_ranks(self._rank, probe.ending if probe else None, f"{index} ending"))
        self._last_s = self._now() - stage_start

    def _add(self, layers: range, size: int, times: SecondsByOp) -> None:
        regressors = (1.0, *layer_counts((self._layer_kinds[layer] for layer in layers), self.kinds))
        is_first = layers.start == 0 and not isinstance(self._rank.model, TeamModel)
        for op, seconds in times.items():
            name = FIRST_INPUT if is_first and op == "I" else op
            if not (is_first and op == "W"):  # the whole backward, which B has timed
                self.samples[name, size].append(Sample(regressors, tuple(seconds)))


def error_of(samples: Mapping[tuple[str, int], Sequence[Sample]], size: int) -> float:
    """The relative standard error of all timed forwards and backwards together, if the errors of all agree."""
    passes = [(sample.error, sample.median) for op in "FB" for sample in samples[op, size]]
    return sum(error for error, _ in passes) / sum(median for _, median in passes)


def without_fixed_seconds_if_unknown(samples: list[Sample]) -> list[Sample]:
    """The samples; without fixed seconds if each is of one layer, as these cannot tell them from the layer's."""
    if any(sum(sample.regressors[1:]) > 1 for sample in samples):
        return samples
    return [replace(sample, regressors=(0.0, *sample.regressors[1:])) for sample in samples]


class _Rounds(NamedTuple):
    """The rounds after the first: those to warm up, those that count, and whether the first counts, too."""

    warmup: int
    counted: int
    first_counts: bool

    @classmethod
    def that_fit(cls, effort: Effort, seconds: float) -> "_Rounds":
        """The rounds of the effort at these seconds a round; fewer if they would take over `ROUNDS_S`."""
        counted = min(effort.max_rounds, max(effort.min_rounds, int(effort.max_seconds / max(1e-6, seconds))))
        if (effort.warmup_rounds + counted) * seconds <= ROUNDS_S:
            return cls(effort.warmup_rounds, counted, False)
        return cls(0, max(1, int(ROUNDS_S / seconds) - 1), True)


async def _time_on_all_ranks(
    rank: MeasuringRank, time_round: Callable[[], Awaitable[SecondsByOp]] | None, name: str
) -> SecondsByOp:
    """Time rounds of some work on all measuring ranks at once; on rank 0 the slowest rank's seconds, else {}.

    Args:
        time_round: does the work once; None: this rank does not measure.
    """
    transport = rank.actor.transport
    for _ in range(1 + rank.numerics.compile):
        first_times = await time_round() if time_round else {}
    proposed = _Rounds.that_fit(rank.effort, sum(map(sum, first_times.values())))
    rounds = _Rounds(*await broadcast_object(transport, f"rounds {name}", list(proposed)))
    times: SecondsByOp = defaultdict(list, first_times if rounds.first_counts else {})
    if time_round:
        for round_ in range(rounds.warmup + rounds.counted):
            for op, seconds in (await time_round()).items():
                times[op] += seconds if round_ >= rounds.warmup else []
    times_by_rank = list(filter(None, await gather_objects(transport, f"taken {name}", dict(times))))
    ops = times_by_rank[0] if times_by_rank else ()
    return {op: max((rank_times[op] for rank_times in times_by_rank), key=statistics.median) for op in ops}


def _stage(rank: MeasuringRank, layers: range, device: torch.device) -> Stage | MemberStage:
    """These layers of the model, or of a member of the team that splits it."""
    model = rank.model
    numerics = rank.numerics
    if isinstance(model, TeamModel):
        return MemberStage(model, layers, numerics, device, rank.actor.transport)
    index = 0 if layers.start == 0 else 1
    depth = index + (1 if layers.stop == model.layers else 2)
    module = model.build(layers, numerics.dtype, device, seed=0)
    settings = {name: getattr(numerics, name) for name in ("autocast", "recompute_attention", "compile")}
    return Stage(model, module, index, depth, device, **settings)


class _Probe:
    """A stage, and two microbatches through it."""

    def __init__(self, rank: MeasuringRank, layers: range, swept: torch.Tensor):
        self._rank = rank
        self._layers = layers
        self._swept = swept
        self._stage = _stage(rank, layers, torch.device(rank.executor.device))
        parameters = dict(self._stage.module.named_parameters())
        self._update = TimedUpdate(parameters, rank.measured_model.optimizer(), rank.numerics)
        self._arrivals: tuple[int, list[tuple[Any, Any, Any]]] | None = None  # of two microbatches of a size

    async def passes(self, size: int) -> SecondsByOp:
        """Time the forwards of two microbatches, the backward of the first, and both halves of the second's.

        The second forward runs between the first and its backward, as in a pipeline. If a forward takes long it runs
        after that backward: the caches hold nothing of its beginning, and two microbatches may not fit the memory. In a
        compiled stage both backwards are whole, and the first round at a size compiles it.
        """
        stage = self._stage
        random = KeyedRandom(0, 0, 0)
        if self._arrivals is None or self._arrivals[0] != size:
            self._arrivals = size, [self._make_arrivals(size) for _ in range(2)]
        without_gradients = tree_map_only(torch.Tensor, torch.Tensor.detach, self._arrivals[1])  # of earlier rounds
        x, gradient, targets = zip(*without_gradients, strict=True)
        forward = [("F", partial(stage.forward, (0, m), x[m], random, targets[m])) for m in range(2)]
        arguments = [((0, m), gradient[m], 1.0, random, targets[m]) for m in range(2)]
        backward = [("B", partial(stage.backward, *arguments[m])) for m in range(2)]
        input_half = ("I", partial(stage.backward_input, *arguments[1]))
        weight_half = ("W", partial(stage.backward_weight, (0, 1)))
        second_backward = [backward[1]] if self._rank.numerics.compile else [input_half, weight_half]
        times = await self._time_pieces(forward[0])
        is_long = times["F"][0] > LONG_FORWARD_S
        middle = [backward[0], forward[1]] if is_long else [forward[1], backward[0]]
        later_times = await self._time_pieces(*middle, *second_backward)
        return {**later_times, "F": times["F"] + later_times["F"]}

    async def ending(self) -> SecondsByOp:
        """Time the end of a training step, the same for all sizes of a microbatch, after other memory was written."""
        await self._rank.executor.run("", lambda: self._swept.add_(1.0))
        return await self._time_pieces(*self._update.pieces())

    async def _time_pieces(self, *pieces: tuple[str, Callable[[], object]]) -> SecondsByOp:
        times: SecondsByOp = defaultdict(list)
        for op, work in pieces:
            _, start, end = await self._rank.executor.run(op, work)
            times[op].append(end - start)
            await asyncio.sleep(0)
        return times

    def _make_arrivals(self, size: int) -> tuple[Any, Any, Any]:
        """The stage's input, the gradient of its output (None for the last stage), and the targets (only there)."""
        measured_model = self._rank.measured_model
        stage = self._stage
        model = self._rank.model
        rows = size * team_size(model) if isinstance(model, TeamModel) else size
        feed = measured_model.feed(rows)
        member = stage if isinstance(stage, MemberStage) else None
        x = feed.inputs(0, 0) if stage.is_first else measured_model.random_input(self._layers.start, rows)
        arrival = member.message(x) if member and not stage.is_first else x
        if stage.is_last:
            return arrival, None, feed.targets(0, 0)
        gradient = measured_model.random_input(self._layers.stop, rows)
        return arrival, member.piece(gradient) if member else gradient, None
