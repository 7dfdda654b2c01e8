"""The fastest arrangement of a model: measure, search, try. Behind `pipelined.plan` and `python -m pipelined plan`."""

from collections.abc import Mapping
from dataclasses import replace

from pipelined.api.laboratory.cost_names import require_mapping, require_names
from pipelined.api.planning.planned import Planned
from pipelined.errors import UsageError, refuse_below
from pipelined.measurement.timed.codec import CodecCosts, ratio_of
from pipelined.planner import PlannerModel, SearchRequest, StatedCosts, search
from pipelined.planner.explain import plan_file_of
from pipelined.planner.measured_search import find_measured
from pipelined.planner.request import PlanRequest
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say
from pipelined.process.run import run_or_raise
from pipelined.training.graph.compiled import require_alone, require_compiler
from transports import Transport

SPEED = ("flops", "overhead", "coding")
"""Floating-point operations a second, seconds an instruction, and seconds a byte of a message in the codec."""


def stated_costs(costs: Mapping[str, float], operations: list[float], sequence: int, compress: str) -> StatedCosts:
    """Costs by the names of `SPEED`.

    Args:
        operations: floating-point operations of each layer's forward per token.
        sequence: tokens in a sequence.
        compress: the codec of messages.
    """
    require_mapping("costs", costs, "{'flops': 1e10}")
    require_names("costs", costs, SPEED, "1e10")
    for name, number in costs.items():
        refuse_below(0, f"`costs=`: {name}", number)
    if not costs.get("flops"):
        raise UsageError(f"`costs=` needs a speed (flops={costs.get('flops', 0):g}); write it as flops=1e10")
    coding = CodecCosts(ratio_of(compress), per_byte=costs.get("coding", 0.0))
    return StatedCosts(operations, sequence, costs["flops"], costs.get("overhead", 0.0), coding)


def run_planner(model: PlannerModel, launch: Launch, request: PlanRequest, progress: Say, command: str) -> Planned:
    """The fastest plan; under a launcher all ranks call this together, and all get the same.

    Args:
        progress: called on rank 0 with a line as the work goes on.
        command: prefix of the message when a rank fails.
    Raises:
        UsageError: no plan fits, or none can be compiled. JobFailed: a rank failed; it has printed why.
    """
    compiles = model.fixed.get("compile", False)
    if compiles:
        numerics = model.numerics()
        require_alone(exact=numerics.exact_sums, attention=numerics.recompute_attention)
    started_ranks = launch.world_size or 1
    request.trials_on(started_ranks)  # refuse tries that cannot be made before ranks start
    request = replace(request, without_flush=request.without_flush and not model.has_masters)
    if request.costs is not None:
        search_request = SearchRequest(
            model,
            request.costs,
            request.machine,
            request.ranks,
            memory_limit=request.memory_limit_on(launch),
            without_flush=request.without_flush,
        )
        result = search(search_request, progress)
        return Planned(plan_file_of(result, request.costs.to_dict()), result)
    if compiles:
        require_compiler()
    results = list[Planned]()

    async def rank(transport: Transport) -> None:
        results.append(Planned(*await find_measured(transport, model, launch, request, progress)))

    run_or_raise(launch, started_ranks, rank, command=command)
    return results[0]
