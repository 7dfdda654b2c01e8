"""One step of a whole job, simulated: `pipelined.simulate`, which `python -m pipelined simulate` calls."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipelined.api.laboratory.described import machine_of, plan_of, workload_of
from pipelined.api.laboratory.proof import Proof, prove
from pipelined.errors import UsageError, in_bytes, require_switch
from pipelined.programs.costs import PerStage
from pipelined.schedules import KnobValue, SomeSchedule
from pipelined.simulation import Simulated
from pipelined.simulation import simulate as simulate_plan
from pipelined.simulation.job import with_costs
from pipelined.traces.drawing.picture import Picture
from pipelined.traces.drawing.spans import spans_of
from pipelined.traces.file import Span

MAX_SHOWN = 16
"""Lines of a table of ranks or links."""


@dataclass(frozen=True, repr=False)
class Simulation(Simulated):
    """A simulated step. A notebook shows the picture; `print` shows the ranks and links.

    It is read from the simulation alone; no figure is calculated a second time. The `microbatch_size` of its `plan` is
    made up: a simulation knows costs of a microbatch, not its rows.
    """

    def to_dict(self) -> dict[str, Any]:
        """As JSON, in seconds and bytes; the same as `python -m pipelined simulate --json` prints."""
        excluded = ("microbatch", "costs")  # a simulation states the costs of a microbatch, not its size
        shape = {name: value for name, value in self.plan.to_dict().items() if name not in excluded}
        return {
            **shape,
            "ranks": self.plan.world_size,
            "step": self.step_s,
            "makespan": self.makespan,
            "exposed_sync": self.exposed_sums,
            "bubble_ratio": self.bubble_ratio,
            "idle": [self.step_s - busy for busy in self.busy],
            "peak_activations": self.peak_activations,
            "memory": [{**asdict(memory), "total": memory.total} for memory in self.memory],
            "links": [
                {"from": source, "to": target, "bytes": nbytes}
                for (source, target), nbytes in sorted(self.traffic.items())
            ],
            "sums": [
                {"stages": reduction.key, "ranks": reduction.ranks, "start": reduction.start, "end": reduction.end}
                for reduction in self.sums
            ],
        }

    @property
    def peak_activations(self) -> list[float]:
        """The most microbatches that each rank keeps activations of."""
        return self.per_rank([peak for group in self.groups for peak in group.peak_activations])

    def spans(self) -> Iterator[Span]:
        """Each rank's instructions, and the sums that it takes part in."""
        for group, timeline in enumerate(self.groups):
            yield from spans_of(timeline, self.plan.rank(group, 0), self.plan.tensor)
        for reduction in self.sums:
            start, end = reduction.start, reduction.end
            for rank in reduction.ranks:
                yield Span(rank=rank, category="all_reduce", name=reduction.name, start=start, end=end, step=0)

    def picture(self) -> Picture:
        """The timeline of every rank as a picture."""
        plan = self.plan
        title = f"{plan.schedule}, {self._size}: step {self.step_s:g} s, {self.bubble_ratio:.1%} idle"
        return Picture(list(self.spans()), [f"rank {rank}" for rank in range(plan.world_size)], title, "time (s)")

    def __repr__(self) -> str:
        plan, step = self.plan, self.step_s
        lines = [f"{plan.schedule}, {self._size}: {plan.world_size} ranks", f"step           {step:g} s"]
        if plan.flushes:
            idle = f"{self.bubble_ratio:.1%} of the ranks' time until then idle"
            lines.append(f"last backward  {self.makespan:g} s, {idle}")
            lines.append(f"gradient sums  {len(self.sums)}, exposed for {self.exposed_sums:g} s after it")
        else:
            lines.append(f"no flush       one of many steps, {self.bubble_ratio:.1%} of the ranks' time idle")
            lines.append(f"updates        {plan.updates_a_step} a step, by gradients of older weights: not exact")
        lines += ["", *_ranks(self)]
        return "\n".join([*lines, "", *_links(self)] if self.traffic else lines)

    @property
    def _size(self) -> str:
        plan = self.plan
        team = "" if plan.tensor == 1 else f", T = {plan.tensor}"
        return f"D = {plan.depth}, N = {plan.microbatches}, W = {plan.width}{team}"

    def _repr_svg_(self) -> str | None:
        return self.picture()._repr_svg_()


def simulate(
    schedule: SomeSchedule,
    *,
    depth: int | None = None,
    microbatches: int | None = None,
    width: int = 1,
    tensor: int = 1,
    costs: Mapping[str, PerStage] | None = None,
    memory: Mapping[str, PerStage] | None = None,
    links: Mapping[str, float] | None = None,
    far: Mapping[str, float] | None = None,
    node: int = 0,
    cores: int = 0,
    interference: float = 0.0,
    recompute: bool = False,
    sync: str = "gap",
    all_reduce: str = "rabenseifner",
    **knobs: KnobValue,
) -> Simulation:
    """Simulate one step of a whole job on a machine of your choice; nothing is trained.

    Args:
        schedule: a name, the path of a .py file or .csv table, or a class, function or module of your own.
        depth: the stages of a pipeline; a table knows its own.
        microbatches: microbatches a step; a table knows its own.
        width: pipeline groups side by side.
        tensor: ranks of a worker; `costs` are then seconds of a worker, its moves included, and `memory` bytes of a
            rank.
        costs: seconds a stage: forward (1), backward (2), backward_input (default: half of the backward),
            backward_weight (default: the rest of it) and update (0); a list has one number for each stage.
        memory: bytes a stage: message (sent on for a microbatch), activation (kept of it), pending (kept between the
            halves of its backward), boundary (kept with `recompute`) and parameters; 0 where not given.
        links: links between ranks: alpha (seconds a message), beta (seconds a byte), gamma (seconds to add up a byte).
        far: links between nodes, if they differ.
        node: ranks a node; 0: all on one.
        cores: cores that the ranks share; 0: one each.
        interference: share of computing lost while a sum is under way.
        recompute: run each forward again before its backward.
        sync: begin a gradient sum at once ("eager"), only before a gap ("gap"), or at the end ("after"); elsewhere
            named `sums_start`, as `exposed_sync` of the JSON is `exposed_sums` here.
        all_reduce: the algorithm of the sums, or several by size, as `train` takes them.
        knobs: further settings that the schedule declares, such as `pipes=4`.
    Raises:
        UsageError: a setting is impossible; the message names those that are possible.
    """
    require_switch("recompute", recompute)
    plan = plan_of(schedule, depth, microbatches, width=width, tensor=tensor, knobs=knobs)
    workload = workload_of(costs or {}, memory or {}, plan.depth)
    machine = machine_of(links, far, node=node, cores=cores, interference=interference)
    plan = with_costs(plan, workload, machine, recompute)
    simulated = simulate_plan(plan, workload, machine, sums_start=sync, recompute=recompute, all_reduce=all_reduce)
    return simulation_of(simulated)


def simulation_of(simulated: Simulated) -> Simulation:
    """A simulated step with its report and its picture."""
    return Simulation(*(getattr(simulated, field.name) for field in fields(simulated)))


def draw(what: SomeSchedule | Proof | Simulation, **settings: Any) -> Picture:
    """The picture of a proof or a simulation, or of a schedule that is proved first; it needs matplotlib.

    Args:
        settings: for a schedule, those of `prove`: depth, microbatches, costs, ...
    Raises:
        UsageError: as `prove`.
    """
    if isinstance(what, Proof | Simulation):
        if settings:
            fact = f"draw takes no settings beside a {type(what).__name__} (given: {', '.join(settings)})"
            raise UsageError(f"{fact}; give them to `prove` or `simulate`")
        return what.picture()
    return prove(what, **settings).picture()


def _ranks(simulated: Simulation) -> Iterator[str]:
    plan = simulated.plan
    yield f"{'rank':>6}{'stages':>12}{'idle':>8}{'live':>6}{'state':>12}{'activations':>13}"
    figures = zip(simulated.busy, simulated.peak_activations, simulated.memory, strict=True)
    for rank, (busy, live, memory) in enumerate(figures):
        if rank == MAX_SHOWN:
            yield f"… and {plan.world_size - MAX_SHOWN} more ranks; as JSON they are all there"
            break
        stages = ",".join(map(str, plan.stages_of(rank)))
        idle = 1 - busy / simulated.step_s
        state, activations = in_bytes(memory.state), in_bytes(memory.activations)
        yield f"{rank:>6}{stages:>12}{idle:>8.1%}{live:>6g}{state:>12}{activations:>13}"


def _links(simulated: Simulation) -> Iterator[str]:
    busiest = sorted(simulated.traffic.items(), key=lambda link: (-link[1], link[0]))
    yield f"links: {len(busiest)}, {in_bytes(sum(simulated.traffic.values()))} in all; the busiest"
    for (source, target), nbytes in busiest[:MAX_SHOWN]:
        yield f"{source:>6} -> {target:<6}{in_bytes(nbytes):>12}"
