"""The multiplications of a GPT-2 on a team of ranks, and the costs of a layout of them. No torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs
from apps.common.lm.sharded.layouts import OPERATORS, factors_of, layout_text
from apps.gpt2.planning.operators import chain
from apps.gpt2.planning.workload import WorkloadOptions
from pipelined.planner.planner_model import StageMoves
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.team_operator import EMBEDDING, MATRIX, LayerCosts
from pipelined.sharding.search.teams import TeamChain, TeamLayout
from pipelined.simulation import Machine

BLOCK, HEAD = "block", "head"
KINDS = (BLOCK, HEAD, EMBEDDING, MATRIX)
Costs = Mapping[str, LayerCosts]
"""By kind of layer."""
EVEN: Costs = dict.fromkeys(KINDS, LayerCosts())
"""The costs of no layout: nothing is moved, and nothing is held twice."""


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


def team_layout_text(layout: TeamLayout, states: Mapping[str, str]) -> str:
    """A layout as `--layout` has it."""
    return layout_text(dict(zip(OPERATORS, layout, strict=True)), states)


def layout_of(plan: Plan) -> TeamLayout:
    """The factors of every operator in the plan's layout."""
    return tuple(factors_of(plan.layout, plan.tensor).values())


def costs_of(team: TeamChain, plan: Plan) -> Costs:
    """The costs of the plan's layout."""
    return team.costs(layout_of(plan))


def stage_moves(config: ModelConfig, plan: Plan, sequence: int, costs: Costs) -> list[StageMoves]:
    """Seconds of the moves of each stage."""
    stages = layers_by_kind(config, plan, sequence)
    return [StageMoves(*(sum_costs(costs, layers, name) for name in StageMoves._fields)) for layers in stages]


def sum_costs(costs: Costs, layers: Mapping[str, int], name: str) -> float:
    """One field of the costs, over a stage's layers by kind."""
    return sum(getattr(costs[kind], name) * count for kind, count in layers.items())


def kept_by_tape(config: ModelConfig, layers: Counter[str], options: WorkloadOptions) -> float:
    """Numbers a token that the tapes of all members keep of a stage, besides what moves copy; without dropout.

    A block keeps each result that a computation leaves to the next, and what autograd saves of the norms and of GELU;
    with autocast also query, key, value and result of the attention's core in its dtype. A test compares this with what
    is recorded.
    """
    width = config.d_model
    core = 0 if options.recompute_attention else config.heads + 4 * width * options.product / options.itemsize
    numbers_by_kind = {BLOCK: 33 * width + 14 + core, EMBEDDING: 2 * width + 2, HEAD: 2 * width + 3 * config.vocab + 14}
    return sum(numbers * layers[kind] for kind, numbers in numbers_by_kind.items())


def layers_by_kind(config: ModelConfig, plan: Plan, sequence: int) -> list[Counter[str]]:
    """How many layers of each kind a stage has; the matrix of a tied head once."""
    head = config.layers + 1
    counts = []
    for layers in partition(layer_costs(config, sequence), plan.depth):
        ends = [kind for layer, kind in ((0, EMBEDDING), (head, HEAD)) if layer in layers]
        matrices = min(len(ends), 1) if config.tied else len(ends)
        counts.append(Counter({BLOCK: len(layers) - len(ends), MATRIX: matrices}) + Counter(ends))
    return counts
