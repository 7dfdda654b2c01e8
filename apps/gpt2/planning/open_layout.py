"""Layouts that leave factors open, `auto`, `paper`, and some operators alone: searched with stated prices. No torch.

All ranks search alike: prices are those of `LINKS`, not measured ones, so that the same flags give the same layout.
"""

import os
from dataclasses import replace
from typing import Any

from apps.common.flags.run_flags import AUTO
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.layouts import OPERATORS, Factors, factors_of, layout_text, states_of
from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.operators import chain
from apps.gpt2.planning.team_costs import team_chain, team_layout_text
from apps.gpt2.planning.team_front import moves_of_front
from apps.gpt2.planning.team_workload import rank_workload
from collectives import Links
from pipelined.errors import UsageError
from pipelined.planner.memory_limit import share_of_memory
from pipelined.programs.plan import Plan
from pipelined.sharding.search.matmul import whole
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.pricing import PricedChain
from pipelined.sharding.search.report import ShardRequest, find_sharding
from pipelined.simulation import Machine
from pipelined.simulation.memory import planned_memory

PAPER = "paper"
LINKS = Links()
"""The planner's links where none are measured."""
GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""The drivers' files, of which there is one where torch may find a GPU."""


def is_searched(layout: str | None) -> bool:
    """Whether a layout leaves factors open."""
    if layout in (None, AUTO, PAPER):
        return True
    if "=" not in layout:
        return False
    operators = {word.partition("=")[0] for word in layout.split(",")}
    return bool(operators) and operators <= set(OPERATORS) and not operators >= set(OPERATORS) - {"wte"}


def search_layout(config: GPT2Flags, model: ModelConfig, plan: Plan, sequence: int, limit: float) -> str:
    """The layout that moves for the shortest time in a step, of those that fit the memory, as `--layout` has it.

    Args:
        config: its layout is open or `auto`; `paper`, by AutoDDL's own rule between two operators; or factors of some
            operators.
        plan: its teams and microbatches.
        limit: bytes of a rank. Where every layout takes more, the result is the one that takes the fewest.
    Raises:
        UsageError: no factors give each rank a sequence and a head, or those that are given are invalid.
    """
    layout = config.layout or AUTO
    if layout == PAPER:
        return _paper_layout(model, plan, sequence, config.itemsize)
    given_factors = {} if layout == AUTO else _given_factors(layout, plan.tensor)
    states = states_of("data" if layout == AUTO else layout)
    sizes: dict[str, Any] = {"itemsize": config.itemsize, "states": tuple(states.values())}
    team = replace(
        team_chain(model, plan.tensor, plan.rows, sequence, Machine(LINKS), **sizes), fixed_factors=given_factors
    )
    if not team.front:
        fact = f"no factors give each of {plan.tensor} ranks a sequence and a head (layout: {layout!r}"
        raise UsageError(f"{fact}, sequences: {plan.rows}, heads: {model.heads}); take a smaller --tensor")
    moves = moves_of_front(model, plan, sequence, team, recompute=config.recompute)
    microbatch_s, update_s = moves.sum(axis=1).T
    bytes_of = dict[str, float]()
    for index in (plan.microbatches * microbatch_s + update_s).argsort(kind="stable").tolist():
        text = team_layout_text(team.front[index], states)
        workload = rank_workload(model, replace(plan, layout=text), sequence, config.workload_options)
        bytes_of[text] = max(worker.total for worker in planned_memory(plan, workload, config.recompute))
        if bytes_of[text] <= limit:
            return text
    return min(bytes_of, key=bytes_of.__getitem__)


def memory_of_a_rank(ranks: int) -> float:
    """Bytes for each of `ranks` ranks on this machine; torch is asked where there may be a GPU.

    All ranks must find one layout, so machines of unequal memory may need `--layout`: `agree_on_flags` says so.
    """
    if not any(map(os.path.exists, GPUS)):
        return share_of_memory(ranks)
    from pipelined.measurement.measure import gpu_bytes

    return share_of_memory(ranks, gpu_bytes())


def _paper_layout(model: ModelConfig, plan: Plan, sequence: int, itemsize: int) -> str:
    rows = plan.rows * plan.microbatches
    whole_chain = chain(replace(model, tied=True), rows, sequence, plan.microbatches, itemsize)
    priced_chain = PricedChain(whole_chain, (plan.tensor,), Network(LINKS, itemsize), plan.microbatches, False)
    strategy = find_sharding(ShardRequest(priced_chain, PAPER)).best.rows
    return layout_text({row.name: whole(row.option.split) for row in strategy}, dict.fromkeys(OPERATORS, "none"))


def _given_factors(layout: str, ranks: int) -> dict[str, Factors]:
    """The factors that are given; the others are filled in only to have them checked."""
    names = [word.partition("=")[0] for word in layout.split(",")]
    other_words = [f"{name}={ranks}.1.1" for name in OPERATORS if name not in names]
    factors = factors_of(",".join([layout, *other_words]), ranks)
    return {name: factors[name] for name in names}
