"""What two pipelines are to train alike: the model, its data, the optimizer, and the ways to cut it.

Everything that decides the work of a step is here, and neither contender may change it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs
from pipelined.programs.plan import Plan
from pipelined.random.keyed_random import keyed_generator
from pipelined.training.optimizer import OptimizerConfig

Ends = tuple[int, ...]
"""A cut: where each stage ends, the last at the number of layers."""

STAGES_A_RANK = {
    "gpipe": 1,
    "one_f_one_b": 1,
    "interleaved": 2,
    "zb_v": 2,
    "chimera": 1,
    "zb_h1": 1,
    "chimera_w": 1,
}
"""How many stages the model is cut into, for each rank, by schedule; Chimera's ranks hold two of them, one a pipe."""
SLACK = 1.35
"""A cut is worth trying if its largest stage costs at most so many times the least possible."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One model on one batch a step, float32, one thread a rank, no dropout, and no tied weights or clipping.

    Args:
        sequence: tokens, T.
        batch: sequences a microbatch, B.
        microbatches: a step, N.
        warm_up: steps before those that are timed.
        steps: steps timed, one after another. One more follows, untimed, for its gradient norm.
    """

    layers: int = 8
    d_model: int = 256
    heads: int = 4
    vocab: int = 1024
    sequence: int = 64
    batch: int = 4
    microbatches: int = 8
    warm_up: int = 1
    steps: int = 4
    seed: int = 0

    @property
    def config(self) -> ModelConfig:
        sizes = (self.layers, self.d_model, self.heads, self.vocab, self.sequence)
        return ModelConfig(*sizes, dropout=0.0, tied=False)

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.batch * self.microbatches * self.sequence

    @property
    def before(self) -> range:
        """The steps that are not timed."""
        return range(self.warm_up)

    @property
    def timed(self) -> range:
        """The steps between the two barriers."""
        return range(self.warm_up, self.last)

    @property
    def last(self) -> int:
        """The step after them, untimed, of which both contenders tell the gradient norm."""
        return self.warm_up + self.steps

    def plan(self, schedule: str, ends: Ends) -> Plan:
        """This project's arrangement of a schedule on a cut, one pipeline group."""
        chunks = STAGES_A_RANK[schedule] if schedule == "interleaved" else 1
        return Plan(schedule, len(ends), 1, self.batch, self.microbatches, {"chunks": chunks})

    @property
    def optimizer_settings(self) -> OptimizerConfig:
        return OptimizerConfig(lr=1e-3, steps=1000, clip=0.0)

    def to_dict(self) -> dict[str, int]:
        """As JSON can hold it."""
        return asdict(self)

    def rows(self, step: int) -> torch.Tensor:
        """The ids of a step and the ones that follow each, (N·B, T+1)."""
        shape = (self.microbatches * self.batch, self.sequence + 1)
        return torch.randint(self.vocab, shape, generator=keyed_generator(self.seed, f"step {step}"))

    def cuts(self, depth: int, most: int) -> list[Ends]:
        """The cuts worth trying, those with the cheapest largest stage first."""
        costs = layer_costs(self.config, self.sequence)
        ranked = sorted((_largest(costs, ends), ends) for ends in _ends(len(costs), depth))
        return [ends for largest, ends in ranked if largest <= SLACK * ranked[0][0]][:most]


@dataclass
class TokenRows:
    """The contest's data as a pipeline's feed; a step's rows are drawn once, as the other contender draws them."""

    contest: Contest
    drawn: tuple[int, torch.Tensor] | None = None

    def inputs(self, step: int, microbatch: int) -> torch.Tensor:
        """Ids (B, T)."""
        return self._rows(step, microbatch)[:, :-1]

    def targets(self, step: int, microbatch: int) -> torch.Tensor:
        """The ids that follow, (B, T)."""
        return self._rows(step, microbatch)[:, 1:]

    def _rows(self, step: int, microbatch: int) -> torch.Tensor:
        if self.drawn is None or self.drawn[0] != step:
            self.drawn = step, self.contest.rows(step)
        return self.drawn[1][microbatch * self.contest.batch :][: self.contest.batch]


class CutGPT2(GPT2):
    """A GPT-2 that is cut where one says: each layer costs its share of its stage, so every stage costs 1."""

    def __init__(self, config: ModelConfig, ends: Ends):
        super().__init__(config)
        self._ends = ends

    def costs(self, sequence: int) -> list[Any]:
        return [Fraction(1, len(stage)) for stage in stages(self._ends) for _ in stage]


def stages(ends: Ends) -> list[range]:
    """The layers of each stage."""
    return [range(start, end) for start, end in pairwise((0, *ends))]


def _ends(layers: int, depth: int) -> Iterator[Ends]:
    return ((*inner, layers) for inner in combinations(range(1, layers), depth - 1))


def _largest(costs: Sequence[float], ends: Ends) -> float:
    return max(sum(costs[layer] for layer in stage) for stage in stages(ends))
