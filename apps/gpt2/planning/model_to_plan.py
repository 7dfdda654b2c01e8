"""GPT-2 for the planner: its sizes, and the model itself where it is measured. No torch until `build` is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.common.flags.run_flags import AUTO
from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs
from apps.common.lm.sharded.layouts import STATES, divides, factors_of, resolve_layout, states_of
from apps.common.run.checks import check_delayed
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import BATCH, model_config, sequence_of
from apps.gpt2.planning.open_layout import is_searched
from apps.gpt2.planning.operators import chain
from apps.gpt2.planning.plan_file import given_arrangement, identity
from apps.gpt2.planning.team import flags_of_one_rank, split_text
from apps.gpt2.planning.team_costs import EVEN, costs_of, layout_of, stage_moves, team_chain, team_layout_text
from apps.gpt2.planning.team_front import moves_of_front, sizes_of_front
from apps.gpt2.planning.team_workload import team_workload
from apps.gpt2.planning.workload import workload
from collectives.algorithms import ALL_REDUCE
from pipelined.errors import UsageError
from pipelined.planner.planner_model import LayoutSizes, StageMoves, is_open
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.schedules import SCALE
from pipelined.sharding.search.chain import Chain
from pipelined.sharding.search.teams import TeamChain
from pipelined.simulation import Machine, Workload
from pipelined.training.exchange.compression import check_codec
from pipelined.training.sums.all_reduce_halves import require_divisible


@dataclass(frozen=True)
class GPT2ToPlan:
    """See `pipelined.planner.planner_model.PlannerModel`.

    Args:
        config: the flags.
        model: its sizes.
        sequence: tokens a sequence.
        batch: sequences a step.
        runs: whether the plan is run with these flags, so that teams must be those that train with them.
    """

    config: GPT2Flags
    model: ModelConfig
    sequence: int
    batch: int
    runs: bool = False
    _teams: dict[tuple[Any, ...], TeamChain] = field(default_factory=dict, compare=False, repr=False)
    _texts: dict[tuple[Any, ...], list[str]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def identity(self) -> Mapping[str, Any]:
        return identity(self.model, self.sequence)

    @property
    def fixed(self) -> Mapping[str, Any]:
        exact = {SCALE.name: "direct"} if self.config.exact_sums else {}  # other sizes of microbatches are refused
        return {**exact, **given_arrangement(self.config), **({"compile": True} if self.config.compile else {})}

    @property
    def all_reduce(self) -> str:
        """As the planner prices it. It cannot price a choice by size, so it uses auto for that."""
        return self.config.all_reduce if self.config.all_reduce in ALL_REDUCE.names else "auto"

    @property
    def compress(self) -> str:
        return self.config.compress

    @property
    def has_masters(self) -> bool:
        return self.config.master_itemsize > 0

    @cached_property
    def layer_costs(self) -> list[float]:
        return layer_costs(self.model, self.sequence)

    def workload(self, plan: Plan) -> Workload:
        return workload(self.model, plan, self.sequence, self.config.workload_options)

    def can_split(self, plan: Plan) -> bool:
        """See `PlannerModel`; a plan that runs has no teams where a flag is only of workers of one rank."""
        if self.runs and flags_of_one_rank(self.config):
            return False
        team = self._team(plan, Machine())
        return team.possible if is_open(plan) else team.fits(layout_of(plan))

    def layouts(self, plan: Plan, machine: Machine) -> tuple[Sequence[str], NDArray[np.float64]]:
        team = self._team(plan, machine)
        key = (plan.tensor, plan.rows, machine, plan.layout)
        if key not in self._texts:
            self._texts[key] = [team_layout_text(layout, states_of(plan.layout)) for layout in team.front]
        return self._texts[key], moves_of_front(self.model, plan, self.sequence, team)

    def layout_sizes(self, plan: Plan, machine: Machine, groups: Sequence[Stages]) -> LayoutSizes:
        team = self._team(plan, machine)
        return sizes_of_front(self.model, plan, self.sequence, team, groups, options=self.config.workload_options)

    def in_next_zero_state(self, plan: Plan) -> Plan | None:
        state, *_ = states_of(plan.layout).values()
        following = (*STATES, None)[("none", *STATES).index(state)]
        if self.config.layout is not None or following is None:
            return None
        try:
            require_divisible(plan, self.all_reduce)
        except UsageError:
            return None
        return replace(plan, layout=f"+{following}")

    def team_workload(self, plan: Plan, machine: Machine) -> tuple[Workload, Sequence[StageMoves]]:
        costs = EVEN if is_open(plan) else costs_of(self._team(plan, machine), plan)
        sizes = team_workload(self.model, plan, self.sequence, costs, self.config.workload_options)
        return sizes, stage_moves(self.model, plan, self.sequence, costs)

    def _team(self, plan: Plan, machine: Machine) -> TeamChain:
        states = tuple(states_of(plan.layout).values())
        key = plan.tensor, plan.rows, machine, states
        if key not in self._teams:
            sizes = {"itemsize": self.config.itemsize, "product": self.config.product_itemsize}
            self._teams[key] = team_chain(
                self.model, plan.tensor, plan.rows, self.sequence, machine, states=states, **sizes
            )
        return self._teams[key]

    def chain(self, microbatches: int) -> Chain:
        """The model's multiplications, for the search over ways to split them; see `apps.gpt2.planning.operators`."""
        return chain(self.model, self.batch, self.sequence, microbatches, itemsize=self.config.itemsize)

    def build(self) -> Any:
        from apps.common.lm.models.gpt2 import GPT2

        return GPT2(self.model)

    def build_member(self) -> Any:
        ranks = 2 if self.config.tensor == AUTO else self.config.team_size
        plan = Plan("gpipe", 1, 1, ranks, 1, tensor=ranks, layout=split_text(self.config.layout, ranks))
        return self.build_split(plan) if ranks > 1 and self.can_split(plan) else None

    def divides(self, plan: Plan) -> bool:
        return divides(plan.layout)

    def build_split(self, plan: Plan) -> Any:
        from apps.common.lm.sharded.gpt2 import ShardedGPT2

        factors = factors_of(plan.layout, plan.tensor)
        states = states_of(plan.layout)
        return ShardedGPT2(self.model, factors, states, recompute_attention=self.config.recompute_attention)

    def numerics(self) -> Any:
        from apps.common.run.numerics import numerics

        return numerics(self.config)

    def optimizer(self) -> Any:
        from pipelined.training.optimizer import OptimizerConfig

        return OptimizerConfig(lr=1e-4, steps=1 << 20)

    def feed(self, rows: int) -> Any:
        from pipelined.planner.trial import RandomTokens

        return RandomTokens(self.model.vocab, (rows, self.sequence))

    def random_input(self, layer: int, rows: int) -> Any:
        from torch import randn

        return randn((rows, self.sequence, self.model.d_model), dtype=self.numerics().dtype)


def planned_model_of(config: GPT2Flags, batch: int | None = None) -> GPT2ToPlan:
    """What a configuration asks to be planned.

    Args:
        batch: sequences a step, instead of the configuration's.
    Raises:
        UsageError: the model or the sequence is impossible, or there is no such codec or delayed update.
    """
    check_codec(config.compress, "--compress")
    check_delayed(config)
    model = model_config(config)
    if config.layout is not None:  # the planner searches what auto leaves open
        config = replace(config, layout=None if config.layout == AUTO else resolve_layout(config.layout))
        if config.layout is not None and is_searched(config.layout):
            fact = f"a planner searches the factors of all operators or of none (--layout {config.layout})"
            raise UsageError(f"{fact}; give --layout auto, or the factors of every operator")
    return GPT2ToPlan(config, model, sequence_of(config, model), batch or config.batch or BATCH)
