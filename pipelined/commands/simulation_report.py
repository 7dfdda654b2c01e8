"""A simulated step as text, as JSON and as the spans of a trace. The rule: it is read, never worked out again."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pipelined.api.laboratory.spans import spans_of
from pipelined.simulation.simulator import Simulated
from pipelined.traces.file import Span

MOST = 16
"""Lines of a table of ranks or links."""


def as_json(simulated: Simulated) -> dict[str, Any]:
    """The step for programs; seconds and bytes."""
    plan = simulated.plan
    shape = plan.plain()
    del shape["microbatch"]  # a simulation states the costs of a microbatch, not its size
    return {
        **shape,
        "ranks": plan.world_size,
        "step": simulated.step_seconds,
        "makespan": simulated.makespan,
        "exposed_sync": simulated.exposed_sync,
        "bubble_ratio": simulated.bubble_ratio,
        "idle": [simulated.step_seconds - busy for busy in simulated.busy],
        "peak_activations": [peak for group in simulated.groups for peak in group.peak_activations],
        "memory": [{**asdict(memory), "total": memory.total} for memory in simulated.memory],
        "links": [{"from": s, "to": t, "bytes": n} for (s, t), n in sorted(simulated.traffic.items())],
        "sums": [{"stages": s.what, "ranks": s.ranks, "start": s.start, "end": s.end} for s in simulated.sums],
    }


def as_text(simulated: Simulated) -> str:
    """The step for people."""
    plan, step = simulated.plan, simulated.step_seconds
    size = f"D = {plan.depth}, N = {plan.microbatches}, W = {plan.width}"
    lines = [f"{plan.schedule}, {size}: {plan.world_size} ranks", f"step           {step:g} s"]
    if plan.flushes:
        idle = f"{simulated.bubble_ratio:.1%} of the ranks' time until then idle"
        lines.append(f"last backward  {simulated.makespan:g} s, {idle}")
        lines.append(f"gradient sums  {len(simulated.sums)}, exposed for {simulated.exposed_sync:g} s after it")
    else:
        lines.append(f"no flush       one of many steps, {simulated.bubble_ratio:.1%} of the ranks' time idle")
        lines.append(f"updates        {plan.updates_a_step} a step, by gradients of older weights: not exact")
    lines += ["", *_ranks(simulated)]
    return "\n".join([*lines, "", *_links(simulated)] if simulated.traffic else lines)


def spans_of_ranks(simulated: Simulated) -> Iterator[Span]:
    """Each rank's instructions, and the sums that it takes part in."""
    for number, timeline in enumerate(simulated.groups):
        yield from spans_of(timeline, simulated.plan.rank(number, 0))
    for done in simulated.sums:
        for rank in done.ranks:
            yield Span(rank, "all_reduce", done.name, done.start, done.end, 0)


def _ranks(simulated: Simulated) -> Iterator[str]:
    plan = simulated.plan
    peaks = [peak for group in simulated.groups for peak in group.peak_activations]
    yield f"{'rank':>6}{'stages':>12}{'idle':>8}{'live':>6}{'state':>12}{'activations':>13}"
    for rank, (busy, live, memory) in enumerate(zip(simulated.busy, peaks, simulated.memory, strict=True)):
        if rank == MOST:
            yield f"… and {plan.world_size - MOST} more ranks; --json has them all"
            break
        stages, idle = ",".join(map(str, plan.stages_of(rank))), 1 - busy / simulated.step_seconds
        yield f"{rank:>6}{stages:>12}{idle:>8.1%}{live:>6g}{_bytes(memory.state):>12}{_bytes(memory.activations):>13}"


def _links(simulated: Simulated) -> Iterator[str]:
    busiest = sorted(simulated.traffic.items(), key=lambda link: (-link[1], link[0]))
    yield f"links: {len(busiest)}, {_bytes(sum(simulated.traffic.values()))} in all; the busiest"
    for (source, target), nbytes in busiest[:MOST]:
        yield f"{source:>6} -> {target:<6}{_bytes(nbytes):>12}"


def _bytes(number: float) -> str:
    """In the largest unit that leaves at least one."""
    power = min(3, max(0, (int(number).bit_length() - 1) // 10))
    return f"{number / (1 << 10 * power):,.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
