"""Costs of stages that were fitted to measurements: seconds of each operation, as a sum over the layers of the stage.

An instruction takes a fixed time plus the sum of its layers' times. Layers of the same kind have the same time; the
kinds are the first layer, the last layer, and the layers between by their floating-point operations. No torch.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pipelined.measurement.timed.codec import CodecCosts
from pipelined.programs.instructions import DELAYED_UPDATE, RECOMPUTED_FORWARD, UPDATE

FIRST_INPUT = "first I"
"""The timed operation after the input half of a stage with the first layer; the weight half does its work there."""

PLAIN = CodecCosts()
"""No codec: messages are sent unchanged."""

Kind = tuple[str, float]
SecondsByKind = Mapping[Kind | None, float]
"""Seconds by kind of layer; under None the fixed seconds of every instruction."""


def kinds_of(layer_costs: list[float]) -> list[Kind]:
    last = len(layer_costs) - 1
    names = {0: "first", last: "last"}
    return [(names.get(layer, "inner"), cost) for layer, cost in enumerate(layer_costs)]


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs that were fitted to measurements.

    Args:
        layer_costs: floating-point operations of each layer of the model; they give the kinds of its layers.
        timed: the seconds for each operation and each measured microbatch size; an update, and what
            of a delayed one runs beside the next step, have only the size 0.
        runtime: seconds of the runtime per instruction, besides the computing.
        coding: the effect of the codec on messages.
        member: the seconds of a team's member as `timed`, of an update those of all members; None: as of a rank alone.
        hand_over: seconds from the event loop to the device and back, of a computation that the loop awaits.
        first_stage_sends_no_gradient: it is timed so: its weight half does the work of its whole backward.
        error: relative standard error of the timed forwards and backwards.
    """

    layer_costs: list[float]
    timed: Mapping[tuple[str, int], SecondsByKind]
    runtime: float = 0.0
    coding: CodecCosts = PLAIN
    member: Mapping[tuple[str, int], SecondsByKind] | None = None
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
        """Seconds, interpolated between measured sizes; above the largest in proportion, below the smallest as there.

        Compiled stages have no halves: of these no plan has more than the backward's.
        """
        if op in (UPDATE, DELAYED_UPDATE):
            return self._measured_seconds(op, 0, layers) if (op, 0) in self.timed else 0.0
        if op == RECOMPUTED_FORWARD:
            return self._interpolated_seconds("F", layers, rows)
        if op in "IW" and not {op, FIRST_INPUT} & {name for name, _ in self.timed}:
            return self.seconds("B", layers, rows) / 2
        own = {"I": FIRST_INPUT, "W": "B"}.get(op, op) if 0 in layers and self.first_stage_sends_no_gradient else op
        return self.runtime + self._interpolated_seconds(own, layers, rows)

    def _interpolated_seconds(self, op: str, layers: range, rows: float) -> float:
        sizes = sorted(size for name, size in self.timed if name == op)
        above = bisect_left(sizes, rows)
        if above == 0 or (above < len(sizes) and sizes[above] == rows):
            return self._measured_seconds(op, sizes[above], layers)
        if above == len(sizes):
            return self._measured_seconds(op, sizes[-1], layers) * rows / sizes[-1]
        low = sizes[above - 1]
        high = sizes[above]
        share = (rows - low) / (high - low)
        return (1 - share) * self._measured_seconds(op, low, layers) + share * self._measured_seconds(op, high, layers)

    def _measured_seconds(self, op: str, size: int, layers: range) -> float:
        kinds = kinds_of(self.layer_costs)
        seconds = self.timed[op, size]
        return seconds[None] + sum(seconds[kinds[layer]] for layer in layers)


def counted(kinds: Iterable[Kind], order: list[Kind]) -> tuple[float, ...]:
    """The number of layers of each kind, in the given order."""
    counts = Counter(kinds)
    return tuple(float(counts[kind]) for kind in order)
