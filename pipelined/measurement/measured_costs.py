"""Costs of stages, fitted to measurements: seconds of each operation, as a sum over the layers of the stage.

An instruction takes a fixed time plus the sum of its layers' times. Layers of the same kind have the same time; the
kinds are the first layer, the last layer, and the layers between by their floating-point operations. No torch.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pipelined.measurement.fit import Fit
from pipelined.measurement.timed.codec import CodecCosts
from pipelined.programs.instructions import DELAYED_UPDATE, RECOMPUTED_FORWARD, UPDATE

FIRST_INPUT = "first I"
"""The input half of a stage with the first layer, as it is timed: its weight half does the work of the backward."""
NO_CODEC = CodecCosts()
"""No codec: messages are sent unchanged."""


class TimedAs(NamedTuple):
    """The op that was timed in place of an op, and the share of its seconds; instructions take the runtime's, too."""

    op: str
    share: float = 1.0
    is_instruction: bool = True


ANY_STAGE: Mapping[str, TimedAs] = {
    **{op: TimedAs(op) for op in "FBIW"},
    RECOMPUTED_FORWARD: TimedAs("F", is_instruction=False),  # it runs inside of a backward
}
"""What stands for each op of a stage that sends a gradient to the stage before."""
FIRST_STAGE: Mapping[str, TimedAs] = {**ANY_STAGE, "I": TimedAs(FIRST_INPUT), "W": TimedAs("B")}
"""The same of the stage that sends no gradient: its weight half does the work of its whole backward."""
COMPILED_STAGE: Mapping[str, TimedAs] = {**ANY_STAGE, "I": TimedAs("B", 0.5), "W": TimedAs("B", 0.5)}
"""The same of compiled stages, whose halves are not timed: no plan that compiles stages splits backwards."""
HALVES = ("I", "W", FIRST_INPUT)
Kind = tuple[str, float]
SecondsByKind = Mapping[Kind | None, float]
"""Seconds by kind of layer; under None the fixed seconds of every instruction."""
SecondsByTiming = Mapping[tuple[str, int], SecondsByKind]
"""The same by timed op and microbatch size; the updates have only the size 0."""


def kinds_of(layer_costs: list[float]) -> list[Kind]:
    last = len(layer_costs) - 1
    names = {0: "first", last: "last"}
    return [(names.get(layer, "inner"), cost) for layer, cost in enumerate(layer_costs)]


@dataclass(frozen=True)
class FittedStages:
    """The fits to the times of stages, by op and microbatch size.

    Args:
        fits: an instruction's fixed seconds, then those of a layer of each kind, in the order of `kinds`.
        error: the relative standard error of the timed forwards and backwards.
    """

    fits: Mapping[tuple[str, int], Fit]
    kinds: Sequence[Kind]
    error: float

    @property
    def seconds(self) -> SecondsByTiming:
        return {key: dict(zip([None, *self.kinds], fit.values, strict=True)) for key, fit in self.fits.items()}

    def to_list(self) -> list[dict[str, Any]]:
        """The fits as JSON, a row for each op and microbatch size."""
        kinds = (f"{name}{index}" if name == "inner" else name for index, (name, _) in enumerate(self.kinds))
        names = ["instruction", *kinds]
        fits = sorted(self.fits.items())
        return [{"op": op, "microbatch": size, "seconds": fit.to_dict(*names)} for (op, size), fit in fits]


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs that were fitted to measurements.

    Args:
        layer_costs: floating-point operations of each layer of the model; they give the kinds of its layers.
        timed: the seconds of a rank alone.
        runtime: seconds of the runtime per instruction, besides the computing.
        coding: the effect of the codec on messages.
        member: the seconds of a team's member, with each update times the members; None: those of a rank alone.
        hand_over: seconds that a computation takes from the event loop to the device and back, if the loop awaits it.
        first_stage_sends_no_gradient: whether `FIRST_STAGE` holds for the stage with the first layer.
        error: relative standard error of the timed forwards and backwards.
    """

    layer_costs: list[float]
    timed: SecondsByTiming
    runtime: float = 0.0
    coding: CodecCosts = NO_CODEC
    member: SecondsByTiming | None = None
    hand_over: float = 0.0
    first_stage_sends_no_gradient: bool = True
    error: float = 0.0

    @property
    def member_costs(self) -> "MeasuredCosts":
        """The costs of a member of a team. Both halves of its backward compute on the first stage, too.

        Its instructions are not queued on the device: each is handed to it twice, to be begun and to run.
        """
        if self.member is None:
            return self
        runtime = self.runtime + 2 * self.hand_over
        return replace(self, timed=self.member, runtime=runtime, first_stage_sends_no_gradient=False)

    def seconds(self, op: str, layers: range, rows: float) -> float:
        """Seconds of an op of the stage with these layers, by the tables above.

        Args:
            rows: sequences of a microbatch; see `_interpolated_seconds`. An update does not depend on them.
        """
        if op in (UPDATE, DELAYED_UPDATE):
            return self._measured_seconds(op, 0, layers) if (op, 0) in self.timed else 0.0
        timed_as = self._timings(layers)[op]
        runtime = self.runtime if timed_as.is_instruction else 0.0
        return timed_as.share * (runtime + self._interpolated_seconds(timed_as.op, layers, rows))

    def _timings(self, layers: range) -> Mapping[str, TimedAs]:
        if not any(op in HALVES for op, _ in self.timed):
            return COMPILED_STAGE
        return FIRST_STAGE if 0 in layers and self.first_stage_sends_no_gradient else ANY_STAGE

    def _interpolated_seconds(self, op: str, layers: range, rows: float) -> float:
        """Linear between two timed sizes; above the largest in proportion, below the smallest those of the smallest."""
        sizes = sorted(size for name, size in self.timed if name == op)
        index = bisect_left(sizes, rows)  # of the first size that is not smaller
        if index == 0 or (index < len(sizes) and sizes[index] == rows):
            return self._measured_seconds(op, sizes[index], layers)
        if index == len(sizes):
            return self._measured_seconds(op, sizes[-1], layers) * rows / sizes[-1]
        low = sizes[index - 1]
        high = sizes[index]
        share = (rows - low) / (high - low)
        return (1 - share) * self._measured_seconds(op, low, layers) + share * self._measured_seconds(op, high, layers)

    def _measured_seconds(self, op: str, size: int, layers: range) -> float:
        kinds = kinds_of(self.layer_costs)
        seconds = self.timed[op, size]
        return seconds[None] + sum(seconds[kinds[layer]] for layer in layers)


def layer_counts(kinds: Iterable[Kind], order: list[Kind]) -> tuple[float, ...]:
    """The number of layers of each kind, in this order of kinds."""
    counts = Counter(kinds)
    return tuple(float(counts[kind]) for kind in order)
