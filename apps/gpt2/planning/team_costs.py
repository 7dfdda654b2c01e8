"""The costs of a team of ranks for a GPT-2 in a plan: its moves, and what a member holds. No torch."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs
from apps.common.lm.sharded.layouts import OPERATORS, divides, factors_of, states_of, written
from apps.gpt2.planning.operators import chain
from apps.gpt2.planning.workload import DEFAULT, WorkloadOptions, workload
from pipelined.planner.model_to_plan import LayoutSizes, StageMoves
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.team_operator import EMBEDDING, MATRIX, LayerCosts
from pipelined.sharding.search.teams import TeamChain, TeamLayout
from pipelined.simulation import Machine, Workload

BLOCK, HEAD = "block", "head"
KINDS = (BLOCK, HEAD, EMBEDDING, MATRIX)
Costs = Mapping[str, LayerCosts]
"""By kind of layer."""
EVEN: Costs = dict.fromkeys(KINDS, LayerCosts())
"""Of no layout: nothing is moved, and nothing is held twice."""


def team_chain(
    config: ModelConfig,
    ranks: int,
    rows: int,
    sequence: int,
    machine: Machine,
    *,
    itemsize: int,
    states: Sequence[str] = (),
    product: int = 0,
) -> TeamChain:
    """The multiplications of a microbatch on a team. Embedding and head have one layout, tied or not.

    Args:
        product: bytes of a number as autocast has it in products; 0: there is no autocast.
    """
    return TeamChain(
        chain=chain(replace(config, tied=True), rows, sequence, 1, itemsize),
        ranks=ranks,
        network=Network(machine.sum_links, itemsize),
        node=machine.node,
        kinds=(*[BLOCK] * 4, HEAD),
        states=states,
        cast=product / itemsize,
    )


def text_of(layout: TeamLayout, states: Mapping[str, str]) -> str:
    """A layout as `--layout` has it."""
    return written(dict(zip(OPERATORS, layout, strict=True)), states)


def layout_of(plan: Plan) -> TeamLayout:
    """The factors of every operator in the plan's layout."""
    return tuple(factors_of(plan.layout, plan.tensor).values())


def costs_of(team: TeamChain, plan: Plan) -> Costs:
    """The costs of the plan's layout."""
    return team.costs(layout_of(plan))


def rank_workload(config: ModelConfig, plan: Plan, sequence: int, options: WorkloadOptions = DEFAULT) -> Workload:
    """The workload of a rank, as `workload`; of a team that of its fullest member."""
    if plan.tensor == 1:
        return workload(config, plan, sequence, options)
    states = tuple(states_of(plan.layout).values())
    sizes = {"itemsize": options.itemsize, "product": options.product}
    team = team_chain(config, plan.tensor, plan.rows, sequence, Machine(), states=states, **sizes)
    return team_workload(config, plan, sequence, costs_of(team, plan), options)


def stage_moves(config: ModelConfig, plan: Plan, sequence: int, costs: Costs) -> list[StageMoves]:
    """Seconds of the moves of each stage."""
    stages = _layers_by_kind(config, plan, sequence)
    return [StageMoves(*(_sum(costs, layers, name) for name in StageMoves._fields)) for layers in stages]


def moves_of_front(
    config: ModelConfig, plan: Plan, sequence: int, team: TeamChain, *, recompute: bool = False
) -> NDArray[np.float64]:
    """Seconds of the moves, (L, S, 2): layouts of the front, stages, and of a microbatch or of a step.

    Args:
        recompute: whether a backward runs its forward once more.
    """
    stages = _layers_by_kind(config, plan, sequence)
    found = np.zeros((len(team.front), len(stages), 2))
    for kind in KINDS:
        forward, backward, step = (team.numbers_of_front(kind, name) for name in ("forward", "backward", "update"))
        a_layer = np.stack([(1 + recompute) * forward + backward, step], axis=1)  # (L, 2)
        count = np.array([layers[kind] for layers in stages])  # (S,)
        found += a_layer[:, None, :] * count[None, :, None]
    return found


def sizes_of_front(
    config: ModelConfig,
    plan: Plan,
    sequence: int,
    team: TeamChain,
    groups: Sequence[Stages],
    *,
    options: WorkloadOptions,
) -> LayoutSizes:
    """What a member holds in each layout of the front, as `team_workload` has it for one.

    Args:
        groups: the stages of each entry of the workload's parameters.
    """
    stages = _layers_by_kind(config, plan, sequence)
    tokens = plan.microbatch_size * sequence
    counts = np.array([[layers[kind] for layers in stages] for kind in KINDS])  # (kinds, S)
    gathered, kept, numbers = (  # each (L, kinds)
        np.stack([team.numbers_of_front(kind, name) for kind in KINDS], axis=1)
        for name in ("gathered", "kept", "numbers")
    )
    itemsize = options.itemsize
    share = tokens * itemsize / plan.tensor
    tape = np.array([_kept_by_tape(config, layers, options) * share for layers in stages])
    own = counts.copy()
    matrix = KINDS.index(MATRIX)
    own[matrix] *= not config.tied
    elements: dict[Stages, NDArray[np.float64]] = {(stage,): held for stage, held in enumerate((numbers @ own).T)}
    if config.tied:
        ends = tuple(sorted({0, len(stages) - 1}))
        elements[ends] = elements.get(ends, 0.0) + numbers[:, matrix]
    none = np.zeros(len(numbers))
    return LayoutSizes(
        np.ceil(np.stack([elements.get(group, none) for group in groups], axis=1)),
        np.ceil(tape + kept @ counts * itemsize * plan.stage_map.pieces),
        np.ceil(gathered @ counts) * itemsize,
    )


def team_workload(config: ModelConfig, plan: Plan, sequence: int, costs: Costs, options: WorkloadOptions) -> Workload:
    """A member's share of the model: of activations and messages a T-th, and what it keeps besides.

    Args:
        costs: of its layout; `EVEN` divides everything evenly.

    A weight or a panel that is gathered for a use (zero3) is not counted.
    """
    itemsize = options.itemsize
    single = replace(plan, tensor=1)
    members = plan.tensor
    alone = workload(config, single, sequence, replace(options, divided=False))
    alone = alone.divided(plan) if options.divided or divides(plan.layout) else alone
    by_stage = _layers_by_kind(config, plan, sequence)
    tokens = plan.microbatch_size * sequence
    stages = []
    for stage, layers in zip(alone.stages, by_stage, strict=True):
        gathered = ceil(_sum(costs, layers, "gathered"))
        besides = _sum(costs, layers, "kept") * itemsize * plan.stage_map.pieces
        tape = _kept_by_tape(config, layers, options)
        stages.append(
            replace(
                stage,
                forward=stage.forward / members,
                backward=stage.backward / members,
                message_bytes=ceil(stage.message_bytes / members),
                activation_bytes=ceil(tape * tokens * itemsize / members + besides),
                pending_bytes=None,
                boundary_bytes=ceil(stage.boundary_bytes / members),
                frozen_bytes=stage.frozen_bytes + gathered * itemsize,
            )
        )
    if costs is EVEN:
        return Workload(stages, [replace(group, elements=group.elements // members) for group in alone.parameters])
    numbers = _numbers(config, by_stage, costs)
    parameters = [replace(group, elements=ceil(numbers[group.stages])) for group in alone.parameters]
    return Workload(stages, parameters)


def _sum(costs: Costs, layers: Mapping[str, int], name: str) -> float:
    """One field of the costs, over a stage's layers by kind."""
    return sum(getattr(costs[kind], name) * count for kind, count in layers.items())


def _numbers(config: ModelConfig, stages: Sequence[Counter[str]], costs: Costs) -> Mapping[Stages, float]:
    """Numbers of a member's parameters, by the stages that hold them."""
    found = defaultdict[Stages, float](float)
    for stage, layers in enumerate(stages):
        found[stage,] += _sum(costs, {**layers, MATRIX: 0 if config.tied else layers[MATRIX]}, "numbers")
    if config.tied:
        found[tuple(sorted({0, len(stages) - 1}))] += costs[MATRIX].numbers
    return found


def _kept_by_tape(config: ModelConfig, layers: Counter[str], options: WorkloadOptions) -> float:
    """Numbers a token that the tapes of all members keep of a stage, besides what moves copy; without dropout.

    Of a block each result that a computation leaves to the next, and what autograd saves of the norms and of GELU; with
    autocast also query, key, value and result of the attention's core as it has them. A test holds it to the record.
    """
    width = config.d_model
    core = 0 if options.recompute_attention else config.heads + 4 * width * options.product / options.itemsize
    kept = {BLOCK: 33 * width + 14 + core, EMBEDDING: 2 * width + 2, HEAD: 2 * width + 3 * config.vocab + 14}
    return sum(numbers * layers[kind] for kind, numbers in kept.items())


def _layers_by_kind(config: ModelConfig, plan: Plan, sequence: int) -> list[Counter[str]]:
    """How many layers of each kind a stage has; the matrix of a tied head once."""
    last = config.layers + 1
    found = []
    for layers in partition(layer_costs(config, sequence), plan.depth):
        ends = [kind for layer, kind in ((0, EMBEDDING), (last, HEAD)) if layer in layers]
        matrices = min(len(ends), 1) if config.tied else len(ends)
        found.append(Counter({BLOCK: len(layers) - len(ends), MATRIX: matrices}) + Counter(ends))
    return found
