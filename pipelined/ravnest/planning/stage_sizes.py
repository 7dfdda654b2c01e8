"""The bytes that a stage holds, and the number of microbatches alive in it, in closed form.

A stage of P parameters of 4 bytes holds 4 P (V + 1 + 2 + R) bytes: V versions of its weights, a gradient, two moments,
and R copies of a round (the snapshot and its sum), of what is saved, and of what is sent to others that join. Its
activations come on top: those of all K microbatches alive, or, where they are recomputed (`newest`), the inputs of K
and the activations of one. The inputs of as many more wait as may be alive in the stage before. What it reads of other
stages than that comes straight from there, and waits: as much as K of the first stage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

NUMBER_BYTES = 4
GRADIENT_AND_MOMENTS = 3
ROUND_COPIES, MOMENTS = 2, 2
STATE = 1 + MOMENTS
"""Numbers of a parameter with its moments."""
Weights = Literal["kept", "newest"]


@dataclass(frozen=True, slots=True)
class LayerSize:
    """One layer, for one microbatch.

    Args:
        parameters: numbers that it learns.
        activation_bytes: what its forward keeps for its backward.
        input_bytes: what it receives from the layer before.
        work: floating-point operations of its forward and backward.
        number_bytes: of a parameter.
        reads: outputs of earlier layers than the one before, (layer, bytes): from the last layer that read them, or
            else from the one that made them.
        keeps_input: whether a stage that begins with this layer keeps its input beside `activation_bytes`, because
            these have the output of each layer instead.
        waits: whether its input waits here for each microbatch that may be alive in the stage before and not here;
            that of the first layer does not.
    """

    parameters: int
    activation_bytes: int
    input_bytes: int
    work: float
    number_bytes: int = NUMBER_BYTES
    reads: tuple[tuple[int, int], ...] = ()
    keeps_input: bool = False
    waits: bool = False


@dataclass(frozen=True)
class StageRules:
    """How stages hold a model.

    Args:
        weights: kept: a version for every microbatch alive; newest: one, and the backward recomputes with it.
        rounds: whether rounds of averaging take place, so that their copies are held.
        ahead: microbatches alive in a cluster's first stage; None: as many as stages.
        blocking: whether a cluster drains for a round, so that the copies are not held beside its microbatches.
        saves: whether the nodes save: those of the first cluster, which each may become. Then a copy of the moments is
            held from a round's snapshot until it is written, beside the average; of a cluster alone with the values.
        sends_moments: whether a late cluster gets them in the opening round. A save of that round shares the copy.
        gives: whether a new backup gets the stage, of which a copy is held until it is sent.
        behind: microbatches by which a node of a place may be behind the other one.
        coded: bytes on a line per byte of what stages send, as a codec makes them.
    """

    weights: Weights = "kept"
    rounds: bool = False
    ahead: int | None = None
    blocking: bool = False
    saves: bool = False
    sends_moments: bool = False
    gives: bool = False
    behind: int = 0
    coded: float = 1.0

    def alive(self, stage: int, depth: int) -> int:
        """Microbatches alive: D - s, or with `ahead` K the like part of it, ⌈K (D - s) / D⌉."""
        return depth - stage if self.ahead is None else -(-self.ahead * (depth - stage) // depth)

    @property
    def forward_share(self) -> float:
        """The part of a microbatch's work that its forward is: a backward is two of them, and perhaps one more."""
        return 1 / (3 * self.passes)

    @property
    def passes(self) -> float:
        """The work of a microbatch as a multiple of one forward and one backward (of two forwards' work)."""
        return 4 / 3 if self.weights == "newest" else 1.0

    def copies(self, alive: int) -> int:
        """Numbers held for each parameter."""
        versions = alive if self.weights == "kept" else 1
        extra_copies = ROUND_COPIES + MOMENTS * (self.saves or self.sends_moments)
        if self.blocking or not self.rounds:
            extra_copies = STATE * self.saves
        return versions + GRADIENT_AND_MOMENTS + extra_copies + STATE * self.gives

    @property
    def drained_copies(self) -> int:
        """Numbers held for each parameter in a round for which the cluster has drained: nothing else is held then."""
        if not (self.blocking and self.rounds):
            return 0
        return 1 + GRADIENT_AND_MOMENTS + 1 + MOMENTS * (self.saves or self.sends_moments) + STATE * self.gives


class LayerSpan(Protocol):
    """A place: it holds the layers [first, end), with so many microbatches alive."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def alive(self) -> int: ...


class StageSizes:
    """Bytes and work of every stage [first, end) that a row of layers can be cut into.

    Shapes: matrices (L + 1, L + 1), by first and end; a stage that is not first < end has infinity.
    """

    def __init__(self, layers: Sequence[LayerSize], rules: StageRules):
        self.layers, self.rules = layers, rules
        self._copy = _sums([layer.parameters * layer.number_bytes for layer in layers])
        self._activations = _sums([layer.activation_bytes for layer in layers])
        self._inputs = np.array([*(float(layer.input_bytes) for layer in layers), 0.0])[:, None]
        self._kept_inputs = self._inputs * np.array([*(layer.keeps_input for layer in layers), False])[:, None]
        self.work = _sums([layer.work for layer in layers]) * rules.passes
        self._waiting_inputs = self._inputs * np.array([*(layer.waits for layer in layers), False])[:, None]
        self._skip_bytes = _skip_bytes(layers)
        self.has_skips = bool(self._skip_bytes.any())
        self._bytes: dict[tuple[int, int, int], NDArray[np.float64]] = {}

    def bytes(self, alive: int, first_alive: int, alive_before: int = 0) -> NDArray[np.float64]:
        """Bytes of every stage with this many microbatches alive in it, in the first stage, and in the one before."""
        key = alive, first_alive, max(0, alive_before - alive)
        if key not in self._bytes:
            activations = alive * (self._activations + self._kept_inputs)
            if self.rules.weights == "newest":
                activations = alive * self._inputs + self._activations
            activations = activations + first_alive * self._skip_bytes + key[-1] * self._waiting_inputs
            self._bytes[key] = self.rules.copies(alive) * self._copy + activations
            if self.rules.drained_copies:
                self._bytes[key] = np.maximum(self._bytes[key], self.rules.drained_copies * self._copy)
        return self._bytes[key]

    def of_cut(self, cut: Sequence[range], alive: Sequence[int]) -> list[int]:
        """Bytes of each stage of a cluster, by its layers and its microbatches alive."""
        stages = zip(cut, alive, [0, *alive], strict=False)
        return [
            int(self.bytes(count, alive[0], alive_before)[layers.start, layers.stop])
            for layers, count, alive_before in stages
        ]

    def of_stages(self, stages: Sequence[LayerSpan]) -> list[int]:
        """Bytes of each place of a cluster."""
        return self.of_cut([range(place.first, place.end) for place in stages], [place.alive for place in stages])

    def with_backup(self, first: int, end: int, stage_bytes: int) -> int:
        """Bytes of a node of a stage that two nodes hold, where one alone holds `stage_bytes`."""
        return stage_bytes + self.rules.behind * self.waiting(first, end)

    def waiting(self, first: int, end: int) -> int:
        """Bytes of all messages that a stage gets for one microbatch: its inputs, and the gradients of its outputs."""
        inputs = [self.layers[first].input_bytes] if first else []
        inputs += [nbytes for layer in self.layers[first:end] for source, nbytes in layer.reads if source < first]
        gradients = [self.layers[end].input_bytes] if end < len(self.layers) else []
        gradients += [nbytes for layer in self.layers[end:] for source, nbytes in layer.reads if first <= source < end]
        return sum(inputs) + sum(gradients)

    def receiving(self, first: int, end: int) -> int:
        """Bytes of a new backup that has got its whole state, beside the parameters and gradients it began with."""
        return int(self._copy[first, end]) * (STATE + 2)

    @property
    def least(self) -> int:
        """Bytes of the whole model on one node with one microbatch alive; no cut holds less in all its stages."""
        return int(self.bytes(1, 1)[0, len(self.layers)])

    def of_layer(self, index: int) -> int:
        """Bytes of one layer with one microbatch alive."""
        return int(self.bytes(1, 1)[index, index + 1])


def littles_law(seconds: Sequence[float], ways: Sequence[float], slowest: float | None = None) -> list[int]:
    """Microbatches alive that keep each stage busy: K_s = ⌈(the rest's compute + 2 its lines) / slowest stage⌉.

    Args:
        seconds: forward and backward of a microbatch, for each of the D stages.
        ways: seconds of one message from each stage to the next, its delay included, D - 1.
        slowest: seconds from one microbatch to the next; None: those of the slowest stage.
    Source: Little's law: the round trip of a microbatch from stage s and back, over the time between two of them.
    """
    return [max(1, math.ceil(trip / (slowest or max(seconds)) - 1e-9)) for trip in round_trips(seconds, ways)]


def round_trips(seconds: Sequence[float], ways: Sequence[float]) -> list[float]:
    """Seconds from a microbatch's entry into each stage to the end of its backward there, where nothing waits."""
    stage_seconds = [stage + 2 * way for stage, way in zip(seconds, [*ways, 0.0], strict=True)]
    return [*accumulate(reversed(stage_seconds))][::-1]


def line_seconds(layers: Sequence[LayerSize], cut: Sequence[range], lines: Sequence[float]) -> list[float]:
    """Seconds for which a microbatch's messages occupy the line from each stage to the next, without its delay.

    What goes straight to a later stage takes its time on the lines of both its ends, and none between.

    Args:
        cut: the layers of each stage.
        lines: bytes a second of each stage's node.
    """
    sent_bytes = [0] * len(cut)
    received_bytes = [0] * len(cut)
    stage_of = dict[int, int]()
    for stage, stage_layers in enumerate(cut):
        stage_of |= dict.fromkeys(stage_layers, stage)
        messages = [(stage - 1, layers[stage_layers.start].input_bytes)] if stage else []
        messages += [(stage_of[layer], nbytes) for index in stage_layers for layer, nbytes in layers[index].reads]
        for sender, nbytes in messages:
            if sender != stage:
                sent_bytes[sender] += nbytes
                received_bytes[stage] += nbytes
    seconds = [nbytes / line for nbytes, line in zip(sent_bytes, lines, strict=True)]
    return [max(seconds[stage], received_bytes[stage + 1] / lines[stage + 1]) for stage in range(len(cut) - 1)]


def _skip_bytes(layers: Sequence[LayerSize]) -> NDArray[np.float64]:
    """Bytes that every stage [first, end) takes straight from others, for one microbatch."""
    skip_bytes = np.zeros((len(layers) + 1, len(layers) + 1))
    for index, layer in enumerate(layers):
        for source, nbytes in layer.reads:
            skip_bytes[source + 1 : index + 1, index + 1 :] += nbytes
    return skip_bytes


def _sums(values: Sequence[float]) -> NDArray[np.float64]:
    total = np.array([0.0, *accumulate(values)])
    first, end = np.triu_indices(len(total), k=1)
    sums = np.full((len(total), len(total)), np.inf)
    sums[first, end] = total[end] - total[first]
    return sums
