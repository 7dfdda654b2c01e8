"""A member's share of a GPT-2 in a plan: what it computes, sends and holds in one layout. No torch."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.layouts import divides, states_of
from apps.gpt2.planning.team_costs import EVEN, Costs, costs_of, kept_by_tape, layers_by_kind, sum_costs, team_chain
from apps.gpt2.planning.workload import DEFAULT, WorkloadOptions, workload
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.sharding.search.team_operator import MATRIX
from pipelined.simulation import Machine, Workload


def rank_workload(config: ModelConfig, plan: Plan, sequence: int, options: WorkloadOptions = DEFAULT) -> Workload:
    """The workload of a rank, as `workload`; of a team that of its fullest member."""
    if plan.tensor == 1:
        return workload(config, plan, sequence, options)
    states = tuple(states_of(plan.layout).values())
    sizes = {"itemsize": options.itemsize, "product": options.product}
    team = team_chain(config, plan.tensor, plan.rows, sequence, Machine(), states=states, **sizes)
    return team_workload(config, plan, sequence, costs_of(team, plan), options)


def team_workload(config: ModelConfig, plan: Plan, sequence: int, costs: Costs, options: WorkloadOptions) -> Workload:
    """A member's share of the model: of activations and messages a T-th, and what it keeps besides.

    Args:
        costs: of its layout; `EVEN` divides everything evenly.

    A weight or a panel that is gathered for a use (zero3) is not counted.
    """
    itemsize = options.itemsize
    members = plan.tensor
    base = workload(config, replace(plan, tensor=1), sequence, replace(options, divided=False))
    if options.divided or divides(plan.layout):
        base = base.with_divided_updates(plan)
    by_stage = layers_by_kind(config, plan, sequence)
    tokens = plan.microbatch_size * sequence
    stages = []
    for stage, layers in zip(base.stages, by_stage, strict=True):
        gathered_numbers = ceil(sum_costs(costs, layers, "gathered"))
        kept_bytes = sum_costs(costs, layers, "kept") * itemsize * plan.stage_map.pieces
        tape = kept_by_tape(config, layers, options)
        stages.append(
            replace(
                stage,
                forward=stage.forward / members,
                backward=stage.backward / members,
                message_bytes=ceil(stage.message_bytes / members),
                activation_bytes=ceil(tape * tokens * itemsize / members + kept_bytes),
                pending_bytes=None,
                boundary_bytes=ceil(stage.boundary_bytes / members),
                frozen_bytes=stage.frozen_bytes + gathered_numbers * itemsize,
            )
        )
    if costs is EVEN:
        return Workload(stages, [replace(group, elements=group.elements // members) for group in base.parameters])
    numbers = _numbers(config, by_stage, costs)
    parameters = [replace(group, elements=ceil(numbers[group.stages])) for group in base.parameters]
    return Workload(stages, parameters)


def _numbers(config: ModelConfig, stages: Sequence[Counter[str]], costs: Costs) -> Mapping[Stages, float]:
    """Numbers of a member's parameters, by the stages that hold them."""
    numbers = defaultdict[Stages, float](float)
    for stage, layers in enumerate(stages):
        numbers[stage,] += sum_costs(costs, {**layers, MATRIX: 0 if config.tied else layers[MATRIX]}, "numbers")
    if config.tied:
        numbers[tuple(sorted({0, len(stages) - 1}))] += costs[MATRIX].numbers
    return numbers
