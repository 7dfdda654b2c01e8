"""The description of a simulated step, with its checks: plan, workload, machine, start of sums, all-reduce."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from collectives.algorithms import ALL_REDUCE, AUTO, names_in
from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.instructions import OP_NAMES, Instruction
from pipelined.programs.overlap import SUM_STARTS
from pipelined.programs.plan import Plan
from pipelined.programs.updates.step_totals import STEP_TOTALS
from pipelined.simulation.machine import Machine
from pipelined.simulation.traffic import totals_bytes
from pipelined.simulation.virtual_links import VirtualLinks
from pipelined.simulation.workload import Workload


@dataclass(frozen=True)
class SimulatedJob:
    """A step to simulate; the arguments are those of `simulator.simulate`.

    The members of a team do the same at the same time, so the first of them stands for all. Costs are for one
    member.

    Its gradient sums stand where the plan's own costs have gaps. `costs` are those that the job itself would give.

    Raises:
        UsageError: an unknown name, an algorithm without a closed form, or costs for another number of stages.
    """

    plan: Plan
    workload: Workload
    machine: Machine
    sums_start: str
    recompute: bool
    all_reduce: str

    def __post_init__(self) -> None:
        if self.sums_start not in SUM_STARTS:
            raise UsageError(f"unknown sync {self.sums_start!r}; known: {', '.join(SUM_STARTS)}")
        if len(self.workload.stages) != self.plan.depth:
            fact = f"costs for another number of stages (costs: {len(self.workload.stages)}, depth: {self.plan.depth})"
            raise UsageError(f"{fact}; give each stage its own")
        try:
            for name in names_in(str(self.all_reduce)) - {AUTO}:
                ALL_REDUCE.forms(name)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def seconds(self, instruction: Instruction) -> float:
        """Seconds of an instruction on a core of its own."""
        costs = self.workload.stages[instruction.stage]
        return costs.seconds(instruction.op, self.recompute) / self.plan.stage_map.pieces

    def message_bytes(self, stage: int) -> float:
        """Bytes of an activation to the next stage, and of its gradient, of one of the schedule's microbatches."""
        return self.workload.stages[stage].message_bytes / self.plan.stage_map.pieces

    def coding_seconds(self, stage: int) -> float:
        """Seconds that such a message spends in its codec."""
        return self.workload.stages[stage].coding / self.plan.stage_map.pieces

    def sums(self, steps: int = 1) -> dict[Hashable, tuple[tuple[int, ...], float]]:
        """The all-reduces of a segment: their ranks, and their seconds if these ranks do nothing else.

        Args:
            steps: steps of the segment.
        Returns: (ranks, seconds) by name: for parameters the stages that hold them, without a flush (these stages, the
            number of the update); for the step totals `STEP_TOTALS`. The ranks are the first members of teams.
        """
        plan = self.plan
        sums = dict[Hashable, tuple[tuple[int, ...], float]]()
        for bucket in self.workload.parameters:
            seconds = max(
                self.machine.sum_seconds(self.all_reduce, plan.holders(*bucket.stages, member=member), bucket.sum_bytes)
                for member in self.members
            )
            updates = [(bucket.stages, update) for update in range(steps * plan.updates_a_step)]
            names = [bucket.stages] if plan.flushes else updates
            sums |= dict.fromkeys(names, (plan.holders(*bucket.stages), seconds))
        all_ranks = tuple(range(plan.world_size))
        seconds = self.machine.sum_seconds("auto", all_ranks, totals_bytes(plan, self.workload))
        sums[STEP_TOTALS] = all_ranks[:: plan.tensor], seconds
        return sums

    @property
    def members(self) -> range:
        """The members with links that may differ: only the first where no node cuts a team, or no team a node."""
        node, team = self.machine.node, self.plan.tensor
        return range(team if node and node % team and team % node else 1)

    @property
    def costs(self) -> Costs:
        """The seconds of each instruction, and those of the longest message between neighbours."""
        stages, recompute = self.workload.stages, self.recompute
        seconds = {name: [stage.seconds(op, recompute) for stage in stages] for op, name in OP_NAMES.items()}
        return Costs(**seconds, p2p=max(self._message_seconds(), default=0.0))

    def _message_seconds(self) -> Iterator[float]:
        """The seconds of a message over each boundary between two ranks of a group."""
        plan = self.plan
        links = VirtualLinks(self.machine, self.members)
        for pipe in range(plan.stage_map.pipes):
            for stage in range(plan.depth - 1):
                end_ranks = plan.holder(0, pipe, stage), plan.holder(0, pipe, stage + 1)
                if end_ranks[0] != end_ranks[1]:
                    yield self.coding_seconds(stage) + links.travel(*end_ranks, self.message_bytes(stage))


def with_costs(plan: Plan, workload: Workload, machine: Machine, recompute: bool = False) -> Plan:
    """The plan with the costs of this workload on this machine, by which it then places its gradient sums."""
    if not plan.flushes:
        return plan
    return replace(plan, costs=SimulatedJob(plan, workload, machine, "gap", recompute, all_reduce="auto").costs)
