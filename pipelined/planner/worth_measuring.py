"""The choice whether to measure: the work of a measurement against the work of the run. No torch."""

from pipelined.errors import UsageError
from pipelined.measurement.effort import Effort
from pipelined.measurement.measured_costs import kinds_of
from pipelined.measurement.timed.probes import probes
from pipelined.planner.memory_limit import share_of_memory, sizes_that_fit
from pipelined.planner.planner_model import PlannerModel
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan

MAX_SHARE = 0.03
"""The largest share of a run's computing that measuring may take."""
MAX_RANKS_A_CORE = 4
"""The most ranks per core; with more, a measurement would mostly show how they wait for the core."""
FORWARDS_A_ROUND = 6
"""The work of a round of measuring, in forwards: two forwards, a backward (2), and its two halves (2)."""


def reason_not_to_measure(
    model: PlannerModel, launch: Launch, default: Plan, *, cores: int, steps: int, effort: Effort
) -> str | None:
    """The reason why measuring would not save time, in a clause; None if it may."""
    ranks = default.world_size
    ranks_here = launch.count_ranks_here(ranks)
    if ranks == 1:
        return "nothing to plan on one rank"
    if model.fixed.get("compile"):
        return "not planned, as compiling the stages that would be timed takes longer than planning saves"
    if ranks_here > MAX_RANKS_A_CORE * cores:
        return f"not planned, as {ranks_here} ranks on {cores} cores are too many to measure reliably"
    try:
        sizes = sizes_to_time(sizes_that_fit(model, ranks, share_of_memory(ranks_here)), default)
    except UsageError:
        return "not planned, as no other arrangement uses all ranks for this batch, or none fits the memory"
    speedup = ranks * min(1.0, cores / ranks_here)
    if measuring_work(model, sizes, effort) > MAX_SHARE * training_work(model, steps) / speedup:
        return f"not planned, as measuring takes more than {MAX_SHARE:.0%} of what {steps} steps do"
    return None


def sizes_to_time(sizes: list[int], default: Plan) -> list[int]:
    """The smallest microbatch size and the largest up to twice the rule's; sizes between are interpolated."""
    return sorted({sizes[0], max([size for size in sizes if size <= 2 * default.rows], default=sizes[0])})


def measuring_work(model: PlannerModel, sizes: list[int], effort: Effort) -> float:
    """Floating-point operations that one rank spends on timing these microbatch sizes."""
    costs = model.layer_costs
    token_work = sum(costs[layer] for stage in probes(kinds_of(costs), effort) for layer in stage)
    return effort.rounds * FORWARDS_A_ROUND * token_work * sum(sizes) * model.sequence


def training_work(model: PlannerModel, steps: int) -> float:
    """Floating-point operations of `steps` training steps: a forward, and a backward of twice its work."""
    return 3 * sum(model.layer_costs) * model.batch * model.sequence * steps
