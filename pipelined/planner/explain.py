"""The explanation of a result: a table of the best plans with the bottleneck of each, and the intervals of the costs.

All figures are those of the simulation and of the fit; nothing is calculated a second time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pipelined.planner.model_costs import FIELDS
from pipelined.planner.plan_file import PlanFile
from pipelined.planner.plan_search import SearchResult
from pipelined.planner.predicted_moves import predicted_moves
from pipelined.planner.recorded_programs import RecordedPrograms
from pipelined.planner.request import SimulatedCandidate
from pipelined.programs.plan import Plan

FULL_MEMORY = 0.9
"""Share of the memory limit; a plan that uses more has memory as its bottleneck."""
LARGE_SHARE = 0.1
"""Share of a step's time; what takes less, beside computing, is not its bottleneck."""
MIB = 1 << 20
LABEL = 26
"""Width of the column of schedules, in characters."""


def shares_of_step(outcome: SimulatedCandidate) -> dict[str, float]:
    """The parts of a training step on the busiest rank, as shares of its time.

    Returns: "computing"; "idle" in the pipeline, messages included; "sums" of gradients, exposed after the last
        backward; "ending", the sum of the step totals and the update.
    """
    simulated = outcome.simulated
    step_s = outcome.step_s
    computing = max(simulated.busy)
    sums = simulated.exposed_sums
    idle = max(0.0, simulated.makespan - computing)
    parts = {"computing": computing, "idle": idle, "sums": sums, "ending": step_s - computing - idle - sums}
    return {name: max(0.0, seconds) / step_s for name, seconds in parts.items()}


def bottleneck_of(outcome: SimulatedCandidate, memory_limit: float) -> str:
    """The bottleneck: memory if it is nearly full, else the largest share besides computing if it is over 10 %."""
    if outcome.memory > FULL_MEMORY * memory_limit:
        return "memory"
    share_by_part = shares_of_step(outcome)
    names = {"idle": "bubble", "sums": "gradient sums", "ending": "update"}
    largest = max(names, key=lambda part: share_by_part[part])
    return names[largest] if share_by_part[largest] > LARGE_SHARE else "computing"


def reason(result: SearchResult) -> str:
    """The reason for the chosen plan, in one line."""
    chosen = result.chosen
    text = f"predicted {chosen.step_s * 1e3:.1f} ms a step"
    if chosen.tried_s is not None:
        text = f"a step took {chosen.tried_s * 1e3:.1f} ms when it was tried, {text}"
    if not chosen.candidate.plan.flushes:
        text += ", without a flush: its gradients are those of older weights"
    baseline = result.baseline
    if baseline is None:
        return f"{text}; plain data parallelism cannot cut this batch"
    if baseline.memory > result.request.memory_limit:
        return f"{text}; plain data parallelism does not fit ({baseline.memory / MIB:,.0f} MiB a rank)"
    for outcome in result.best:
        if outcome.candidate == baseline.candidate:
            baseline = outcome  # it may have been tried
    ratio = baseline.step_s / chosen.step_s
    if chosen.tried_s is not None and baseline.tried_s is not None:
        ratio = baseline.tried_s / chosen.tried_s
    return f"{text}, {ratio:.2f} x as fast as plain data parallelism"


def plan_file_of(result: SearchResult, costs: dict[str, Any]) -> PlanFile:
    """The content of a plan file with the chosen plan.

    Args:
        costs: the costs of the search as JSON, measured or stated.
    """
    chosen = result.chosen
    plan = chosen.candidate.plan
    model = result.request.model
    return PlanFile(
        plan=plan,
        recompute=chosen.candidate.recompute,
        model=dict(model.identity),
        step_s=chosen.expected_s,
        memory=tuple(rank.total for rank in chosen.simulated.memory),
        why=reason(result),
        found=costs,
        moves=predicted_moves(model, plan, result.request.machine),
    )


def as_text(result: SearchResult, costs: dict[str, Any]) -> str:
    """The measured costs, the table of the best plans, and the reason for the chosen one."""
    request = result.request
    counts = f"{result.considered} candidates: {result.too_big} too big, {result.simulated} simulated, "
    not_simulated = result.considered - result.too_big - result.simulated
    why = f"with a bound above the best {len(result.best)}"
    if result.tolerance:
        why = f"left, as no plan is faster by more than {100 * result.tolerance:.1f} %, the error of the costs"
    rows = [_row(str(number), outcome, result) for number, outcome in enumerate(result.best, 1)]
    if result.baseline is not None:
        rows.append(_row("dp", result.baseline, result))
    tokens = request.model.sequence
    unit = "tokens" if tokens > 1 else "rows"
    sequences = f"sequences of {tokens} tokens" if tokens > 1 else "rows"
    title = f"{request.ranks} ranks, {request.model.batch} {sequences} a step"
    measured = cost_lines(costs, result.chosen.candidate.plan)
    candidates = f"{counts}{max(0, not_simulated)} {why}"
    chosen = f"chosen: {_arrangement(result.chosen)}; {reason(result)}"
    return "\n".join([title, *measured, candidates, "", _head(unit), *rows, "", chosen])


def result_to_dict(result: SearchResult, costs: dict[str, Any]) -> dict[str, Any]:
    """The result as JSON; times in seconds, sizes in bytes."""
    return {
        **plan_file_of(result, costs).to_dict(),
        "candidates": result.considered,
        "too_big": result.too_big,
        "simulated": result.simulated,
        "tolerance": result.tolerance,
        "best": [_outcome_to_dict(outcome, result) for outcome in result.best],
        "data_parallel": result.baseline and _outcome_to_dict(result.baseline, result),
    }


def _outcome_to_dict(outcome: SimulatedCandidate, result: SearchResult) -> dict[str, Any]:
    return {
        **outcome.candidate.plan.to_dict(),
        "recompute": outcome.candidate.recompute,
        "step_s": outcome.step_s,
        "tried_s": outcome.tried_s,
        "tokens_per_s": _rate(outcome, result),
        "memory": outcome.memory,
        "shares": shares_of_step(outcome),
        "limit": bottleneck_of(outcome, result.request.memory_limit),
    }


def _head(unit: str) -> str:
    return (
        f"{'':>3} {'schedule':<{LABEL}}{'D':>4}{'W':>5}{'B':>5}{'N':>5}{'recompute':>10}{'step ms':>10}"
        f"{unit + '/s':>12}{'compute':>9}{'idle':>7}{'sums':>7}{'MiB':>9}  limit"
    )


def _row(name: str, outcome: SimulatedCandidate, result: SearchResult) -> str:
    plan = outcome.candidate.plan
    share_by_part = shares_of_step(outcome)
    computing, idle, sums = (share_by_part[part] for part in ("computing", "idle", "sums"))
    sizes = f"{plan.depth:>4}{plan.width:>5}{plan.microbatch_size:>5}{plan.microbatches:>5}"
    recompute = "yes" if outcome.candidate.recompute else "no"
    times = f"{outcome.step_s * 1e3:>10.1f}{_rate(outcome, result):>12,.0f}"
    parts = f"{computing:>9.0%}{idle:>7.0%}{sums:>7.0%}{outcome.memory / MIB:>9,.0f}"
    bottleneck = bottleneck_of(outcome, result.request.memory_limit)
    if outcome.tried_s is not None:
        bottleneck += f"; tried: {outcome.tried_s * 1e3:.1f} ms"
    return f"{name:>3} {outcome.candidate.label:<{LABEL}}{sizes}{recompute:>10}{times}{parts}  {bottleneck}"


def _rate(outcome: SimulatedCandidate, result: SearchResult) -> float:
    model = result.request.model
    return model.batch * model.sequence / outcome.step_s


def _arrangement(outcome: SimulatedCandidate) -> str:
    plan = outcome.candidate.plan
    recomputing = ", recomputing" if outcome.candidate.recompute else ""
    sizes = f"depth {plan.depth} x width {plan.width}, microbatches of {plan.microbatch_size} x {plan.microbatches}"
    sizes += f", teams of {plan.tensor} ranks with layout {plan.layout}" if plan.tensor > 1 else ""
    return f"{outcome.candidate.label}, {sizes}{recomputing}"


def cost_lines(costs: dict[str, Any], plan: Plan) -> Iterator[str]:
    """The measured costs with their intervals: a line per kind of link, and one per operation of the chosen plan."""
    for name, link in costs.get("links", {}).items():
        alpha = _estimate("alpha", link["alpha"], 1e-6, "us")
        beta = _estimate("beta", link["beta"], 1e-9, "ns/byte")
        yield f"  {name}: {alpha}, {beta}"
    if "runtime" in costs:
        seconds = costs["runtime"] + (2 * costs["hand_over"] if plan.tensor > 1 else 0.0)
        yield f"  an instruction beside its computing: {seconds * 1e6:.0f} us"
    if "coding" in costs and costs["coding"]["ratio"] != 1.0:
        coding = costs["coding"]
        in_codec = f"{coding['fixed'] * 1e6:.0f} us and {coding['per_byte'] * 1e9:.3g} ns/byte in the codec"
        yield f"  a message: {coding['ratio']:.1%} of its bytes travel, after {in_codec}"
    yield from _operation_lines(costs, plan)


def _operation_lines(costs: dict[str, Any], plan: Plan) -> Iterator[str]:
    """A line per operation of the plan; for a team those of a member, at its share of a microbatch."""
    rows = costs.get("costs", []) if plan.tensor == 1 else costs.get("member_costs", [])
    operations = list("FIWUD" if RecordedPrograms().splits_backward(plan) else "FBUD")
    any_size = 0  # an update does not depend on the microbatch
    for row in rows:
        if row["op"] in operations and row["microbatch"] in (any_size, plan.rows / plan.tensor):
            terms = ", ".join(_estimate(kind, pair, 1e-3, "ms") for kind, pair in row["seconds"].items())
            yield f"  {FIELDS[row['op']].replace('_', ' ')}: {terms}"


def _estimate(name: str, pair: Sequence[float | None], unit: float, symbol: str) -> str:
    """A fitted number, [value, margin], with its 95 % interval, which too few timings do not give."""
    value, margin = pair
    assert value is not None  # only a margin may be unknown
    if margin is None:
        return f"{name} {value / unit:.4g} {symbol} (too few timings for an interval)"
    return f"{name} {value / unit:.4g} ± {margin / unit:.3g} {symbol}"
