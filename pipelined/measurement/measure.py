"""Measurement of a machine for the planner: stages first, then messages and sums, on all ranks together.

All ranks call these functions in the same order; rank 0 gets the result. With one rank, links cannot be measured; then
the stated ones are used.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from collectives.algorithms import may_share_memory
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor, TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.measurement.effort import THOROUGH, Effort
from pipelined.measurement.measured_costs import FittedStages, MeasuredCosts, SecondsByTiming
from pipelined.measurement.measured_model import MeasuredModel
from pipelined.measurement.timed.codec import measure_coding
from pipelined.measurement.timed.member import team_size
from pipelined.measurement.timed.messages_and_sums import Compute, LinkFit, measure_hops, measure_sums
from pipelined.measurement.timed.runtime import measure_call, measure_hand_over, measure_instruction
from pipelined.measurement.timed.stages import MeasuringRank, measure_stages
from pipelined.measurement.timed.team_moves import measure_moves, memory_costs
from pipelined.process.launch import Launch
from pipelined.programs.instructions import DELAYED_UPDATE, UPDATE
from pipelined.simulation import Machine
from pipelined.training.teams.team_model import TeamModel
from transports import Transport
from transports.shm.cores import own_cores


@dataclass(frozen=True)
class Measurement:
    """The results of timing stages, links and the runtime.

    Args:
        costs: the costs of stages.
        machine: links, nodes and cores.
        values: all with their margins, as JSON.
    """

    costs: MeasuredCosts
    machine: Machine
    values: dict[str, Any]


async def measure(
    transport: Transport,
    model: MeasuredModel,
    launch: Launch,
    *,
    sizes: Sequence[int],
    machine: Machine,
    ranks: int,
    progress: Callable[[str], None],
    effort: Effort = THOROUGH,
) -> Measurement | None:
    """Measure stages, runtime, codec and links; rank 0 gets the result, the others None.

    Args:
        sizes: microbatch sizes to time, in sequences, ascending.
        machine: gives the links if there is only one rank.
        ranks: the number of ranks to plan for; with one rank it determines the cores of each.
    Cost: some seconds for a small model: about a dozen stages, each of `sizes` for a quarter of a second.
    """
    hosts = await broadcast_object(transport, "hosts", await gather_objects(transport, "host", socket.gethostname()))
    ranks_here = len(transport.ranks_here) if transport.world_size > 1 else ranks
    cores = len(own_cores())
    numerics = model.numerics()
    executor = TorchExecutor.of_rank(
        transport, numerics.threads, ranks_sharing=ranks_here, share_devices=launch.share_devices
    )
    measuring = executor.device != "cpu" or hosts[: transport.rank].count(hosts[transport.rank]) < cores
    try:
        async with Actor(transport) as actor:
            rank = MeasuringRank(actor, model.build(), numerics, executor, model, measuring=measuring, effort=effort)
            member = model.build_member() if ranks > 1 and not numerics.compile else None
            cost_fits = await _fit_costs(rank, member, sizes, progress)
            links = await _fit_links(rank, member, progress)
    finally:
        executor.close()
    if cost_fits is None:
        return None
    computations = ranks_here * (1 + numerics.delayed_update)  # at once: a delayed update runs beside the next step
    shared_cores = cores if executor.device == "cpu" and computations > cores else 0
    job_machine = measured_machine(links, transport.nodes, machine, shared_cores * len(set(hosts)))
    counts = {"ranks": transport.world_size, "hosts": len(set(hosts))}
    link_fits = {name: _link_to_dict(link) for name, link in links.items() if link is not None}
    return Measurement(cost_fits.costs, job_machine, {**cost_fits.to_dict(), "links": link_fits, **counts})


@dataclass(frozen=True)
class _CostFits:
    """The costs of stages, and the fits behind them: of a rank alone, and of a team's member (None: no teams)."""

    costs: MeasuredCosts
    stages: FittedStages
    member_stages: FittedStages | None

    def to_dict(self) -> dict[str, Any]:
        """All values with their margins, as JSON."""
        return {
            "costs": self.stages.to_list(),
            "member_costs": [] if self.member_stages is None else self.member_stages.to_list(),
            **{name: getattr(self.costs, name) for name in ("runtime", "hand_over", "error")},
            "coding": self.costs.coding.to_dict(),
        }


async def _fit_costs(
    rank: MeasuringRank, member: TeamModel | None, sizes: Sequence[int], progress: Callable[[str], None]
) -> _CostFits | None:
    """Time stages, runtime and codec; all ranks call this together, and rank 0 gets the fits."""
    actor = rank.actor
    executor = rank.executor
    layer_costs = rank.measured_model.layer_costs
    stages = await measure_stages(rank, layer_costs, sizes, progress)
    member_stages = None if member is None else await _measure_member(rank, member, sizes, progress)
    runtime = await measure_instruction(actor, executor) - await measure_call(actor, executor)
    hand_over = 0.0 if member is None else await measure_hand_over(actor, executor, compute_on(executor))
    coding = await measure_coding(actor, RealClock(), rank.measured_model.compress, progress, rank.effort)
    if stages is None or coding is None:  # on all ranks but rank 0
        return None
    costs = MeasuredCosts(layer_costs, stages.seconds, max(0.0, runtime), coding, error=stages.error)
    if member is not None and member_stages is not None:
        seconds = _with_all_updates(member_stages.seconds, team_size(member))
        error = max(stages.error, member_stages.error)
        costs = replace(costs, member=seconds, hand_over=max(0.0, hand_over), error=error)
    return _CostFits(costs, stages, member_stages)


async def _measure_member(
    rank: MeasuringRank, member: TeamModel, sizes: Sequence[int], progress: Callable[[str], None]
) -> FittedStages | None:
    """As `measure_stages`, for the first member of a team; its microbatch is its share of the team's."""
    shares = [size for size in sizes if size * team_size(member) <= max(sizes)] or [min(sizes)]
    return await measure_stages(replace(rank, model=member), rank.measured_model.layer_costs, shares, progress)


def _with_all_updates(timed: SecondsByTiming, members: int) -> SecondsByTiming:
    """The seconds of a member, with an update's times the members: its price is a member's share of all parameters."""
    updates = {key: seconds for key, seconds in timed.items() if key[0] in (UPDATE, DELAYED_UPDATE)}
    all_updates = {
        key: {kind: members * number for kind, number in seconds.items()} for key, seconds in updates.items()
    }
    return {**timed, **all_updates}


def gpu_bytes() -> list[int]:
    """Bytes of memory of each of this machine's GPUs."""
    return [torch.cuda.get_device_properties(device).total_memory for device in range(torch.cuda.device_count())]


async def _fit_links(
    rank: MeasuringRank, member: TeamModel | None, progress: Callable[[str], None]
) -> dict[str, LinkFit | None]:
    """The fit of each kind of link that this job has, and for teams that of each move through memory, by name."""
    actor = rank.actor
    nodes = actor.transport.nodes
    clock = RealClock()
    all_reduce = rank.measured_model.all_reduce
    effort = rank.effort
    hops = partial(measure_hops, actor, clock, compute=compute_on(rank.executor), progress=progress, effort=effort)
    sums = partial(measure_sums, actor, clock, algorithm=all_reduce, progress=progress, effort=effort)
    node = tuple(number for number, lowest in enumerate(nodes) if lowest == nodes[0])
    leaders = tuple(dict.fromkeys(nodes))
    fits: dict[str, LinkFit | None] = {}
    if len(node) > 1:
        fits["messages on a node"] = await hops(list(dict.fromkeys([(node[0], node[1]), (node[-2], node[-1])])))
        fits["sums on a node"] = await sums(node)
        if member is not None and may_share_memory(all_reduce):
            fits |= await measure_moves(actor, clock, node, progress=progress, effort=effort)
    if len(leaders) > 1:
        fits["messages between nodes"] = await hops([(leaders[0], leaders[1])])
        fits["sums between nodes"] = await sums(leaders)
    return fits


def compute_on(executor: Executor) -> Compute:
    """A function that keeps the executor busy for some seconds, with products large enough to release the GIL."""
    matrix = torch.ones(256, 256)

    def work(seconds: float) -> None:
        end = executor.clock.now() + seconds
        while executor.clock.now() < end:
            torch.mm(matrix, matrix)

    return lambda seconds: executor.run("forward", partial(work, seconds))


def measured_machine(links: dict[str, LinkFit | None], nodes: Sequence[int], stated: Machine, cores: int) -> Machine:
    """The stated machine with the measured links.

    If the ranks do not fill the nodes in equal blocks of consecutive ranks, all links count as links between nodes.
    """
    links_by_name = {name: link.links for name, link in links.items() if link is not None}
    ranks_a_node = nodes.count(nodes[0])
    are_equal_blocks = len(nodes) % ranks_a_node == 0 and all(
        lowest == rank - rank % ranks_a_node for rank, lowest in enumerate(nodes)
    )
    far = links_by_name.get("messages between nodes")
    far_sums = links_by_name.get("sums between nodes")
    near = (links_by_name.get("messages on a node") if are_equal_blocks else None) or far
    machine = replace(stated, cores=cores or stated.cores)
    if near is None:
        return machine
    sums = (links_by_name.get("sums on a node") if are_equal_blocks else None) or far_sums
    sums = sums and replace(sums, memory=memory_costs(links) if are_equal_blocks else None)
    return replace(machine, near=near, far=far, near_sums=sums, far_sums=far_sums, node=ranks_a_node if far else 0)


def _link_to_dict(link: LinkFit) -> dict[str, Any]:
    return {**link.fit.to_dict("alpha", "beta"), "gamma": [link.links.gamma, None]}
