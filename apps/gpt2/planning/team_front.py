"""What a team of ranks moves, and a member holds, in every layout of the front at once. No torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.gpt2.planning.team_costs import KINDS, kept_by_tape, layers_by_kind
from apps.gpt2.planning.workload import WorkloadOptions
from pipelined.planner.planner_model import LayoutSizes
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.sharding.search.team_operator import MATRIX
from pipelined.sharding.search.teams import TeamChain


def moves_of_front(
    config: ModelConfig, plan: Plan, sequence: int, team: TeamChain, *, recompute: bool = False
) -> NDArray[np.float64]:
    """Seconds of the moves, (L, S, 2): layouts of the front, stages, and of a microbatch or of a step.

    Args:
        recompute: whether a backward runs its forward once more.
    """
    stages = layers_by_kind(config, plan, sequence)
    seconds = np.zeros((len(team.front), len(stages), 2))
    for kind in KINDS:
        forward, backward, step = (team.numbers_of_front(kind, name) for name in ("forward", "backward", "update"))
        layer_seconds = np.stack([(1 + recompute) * forward + backward, step], axis=1)  # (L, 2)
        count = np.array([layers[kind] for layers in stages])  # (S,)
        seconds += layer_seconds[:, None, :] * count[None, :, None]
    return seconds


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
    stages = layers_by_kind(config, plan, sequence)
    tokens = plan.microbatch_size * sequence
    counts = np.array([[layers[kind] for layers in stages] for kind in KINDS])  # (kinds, S)
    gathered_numbers, kept_numbers, numbers = (  # each (L, kinds)
        np.stack([team.numbers_of_front(kind, name) for kind in KINDS], axis=1)
        for name in ("gathered", "kept", "numbers")
    )
    itemsize = options.itemsize
    share = tokens * itemsize / plan.tensor
    tape = np.array([kept_by_tape(config, layers, options) * share for layers in stages])
    untied_counts = counts.copy()
    matrix = KINDS.index(MATRIX)
    untied_counts[matrix] *= not config.tied
    numbers_by_stage = (numbers @ untied_counts).T
    elements: dict[Stages, NDArray[np.float64]] = {(stage,): row for stage, row in enumerate(numbers_by_stage)}
    if config.tied:
        ends = tuple(sorted({0, len(stages) - 1}))
        elements[ends] = elements.get(ends, 0.0) + numbers[:, matrix]
    zeros = np.zeros(len(numbers))
    return LayoutSizes(
        np.ceil(np.stack([elements.get(group, zeros) for group in groups], axis=1)),
        np.ceil(tape + kept_numbers @ counts * itemsize * plan.stage_map.pieces),
        np.ceil(gathered_numbers @ counts) * itemsize,
    )
