"""Layouts that leave factors open, `auto`, `paper`, and some operators alone: searched with stated prices. No torch.

All ranks search alike: prices are those of `LINKS`, not measured ones, so that the same flags give the same layout.
"""

from dataclasses import replace

from apps.common.flags.run_flags import AUTO
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.layouts import OPERATORS, Factors, factors_of, states_of, written
from apps.gpt2.planning.operators import chain
from apps.gpt2.planning.team_costs import moves_of_front, team_chain
from collectives import Links
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.sharding.search.matmul import whole
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.pricing import PricedChain
from pipelined.sharding.search.report import ShardRequest, find_sharding
from pipelined.simulation import Machine

PAPER = "paper"
LINKS = Links()
"""The planner's links where none are measured."""


def is_searched(layout: str | None) -> bool:
    """Whether a layout leaves factors open."""
    if layout in (AUTO, PAPER):
        return True
    if layout is None or "=" not in layout:
        return False
    given = {word.partition("=")[0] for word in layout.split(",")}
    return bool(given) and given <= set(OPERATORS) and not given >= set(OPERATORS) - {"wte"}


def search_layout(
    layout: str, model: ModelConfig, plan: Plan, sequence: int, itemsize: int, *, recompute: bool = False
) -> str:
    """The layout that moves for the shortest time in a step, as `--layout` has it.

    Args:
        layout: `auto`; `paper`, by AutoDDL's own rule between two operators; or factors of some operators.
        plan: its teams and microbatches.
        itemsize: bytes of a number.
        recompute: whether a backward runs its forward once more.
    Raises:
        UsageError: no factors give each rank a sequence and a head, or those that are given are invalid.
    """
    if layout == PAPER:
        return _of_paper(model, plan, sequence, itemsize)
    given = {} if layout == AUTO else _given(layout, plan.tensor)
    states = states_of("data" if layout == AUTO else layout)
    team = team_chain(
        model, plan.tensor, plan.rows, sequence, Machine(LINKS), itemsize=itemsize, states=tuple(states.values())
    )
    team = replace(team, given=given)
    if not team.front:
        fact = f"no factors give each of {plan.tensor} ranks a sequence and a head (layout: {layout!r}"
        raise UsageError(f"{fact}, sequences: {plan.rows}, heads: {model.heads}); take a smaller --tensor")
    micro, update = moves_of_front(model, plan, sequence, team, recompute=recompute).sum(axis=1).T
    best = team.front[int((plan.microbatches * micro + update).argmin())]
    return written(dict(zip(OPERATORS, best, strict=True)), states)


def _of_paper(model: ModelConfig, plan: Plan, sequence: int, itemsize: int) -> str:
    rows = plan.rows * plan.microbatches
    whole_chain = chain(replace(model, tied=True), rows, sequence, plan.microbatches, itemsize)
    priced = PricedChain(whole_chain, (plan.tensor,), Network(LINKS, itemsize), plan.microbatches, False)
    found = find_sharding(ShardRequest(priced, PAPER)).best.rows
    return written({row.name: whole(row.option.split) for row in found}, dict.fromkeys(OPERATORS, "none"))


def _given(layout: str, ranks: int) -> dict[str, Factors]:
    """The factors that are given; the others are filled in only to have them checked."""
    words = [word.partition("=")[0] for word in layout.split(",")]
    filled = [f"{name}={ranks}.1.1" for name in OPERATORS if name not in words]
    found = factors_of(",".join([layout, *filled]), ranks)
    return {name: found[name] for name in words}
