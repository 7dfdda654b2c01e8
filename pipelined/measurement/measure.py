"""Measurement of a machine for the planner: stages first, then messages and sums, on all ranks together.

All ranks call these functions in the same order; rank 0 gets the result. With one rank, links cannot be measured; then
the stated ones are used.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from collectives.algorithms import may_share_memory
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor, TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.measurement.effort import THOROUGH, Effort
from pipelined.measurement.fit import Fit
from pipelined.measurement.measured_costs import Kind, MeasuredCosts
from pipelined.measurement.measured_model import MeasuredModel
from pipelined.measurement.timed.codec import CodecCosts, measure_coding
from pipelined.measurement.timed.member import members
from pipelined.measurement.timed.messages_and_sums import Compute, LinkFit, measure_hops, measure_sums
from pipelined.measurement.timed.runtime import measure_call, measure_hand_over, measure_instruction
from pipelined.measurement.timed.stages import MeasuringRank, TimedStages, measure_stages
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
    stated: Machine,
    ranks: int,
    progress: Callable[[str], None],
    effort: Effort = THOROUGH,
) -> Measurement | None:
    """Measure stages, runtime, codec and links; rank 0 gets the result, the others None.

    Args:
        sizes: microbatch sizes to time, in sequences.
        stated: the machine that gives the links if there is only one rank.
        ranks: the number of ranks to plan for; with one rank it determines the cores of each.
    Cost: some seconds for a small model: about a dozen stages, each of `sizes` for a quarter of a second.
    """
    hosts = await broadcast_object(transport, "hosts", await gather_objects(transport, "host", socket.gethostname()))
    here = len(transport.ranks_here) if transport.world_size > 1 else ranks
    cores, numerics = len(own_cores()), model.numerics()
    executor = TorchExecutor.of_rank(
        transport, numerics.threads, ranks_sharing=here, share_devices=launch.share_devices
    )
    measuring = executor.device != "cpu" or hosts[: transport.rank].count(hosts[transport.rank]) < cores
    try:
        async with Actor(transport) as actor:
            rank = MeasuringRank(actor, model.build(), numerics, executor, model, measuring=measuring, effort=effort)
            timed = await _time_all(rank, ranks, sizes, progress)
    finally:
        executor.close()
    if timed.stages is None or timed.coding is None:
        return None
    costs, fits, order = timed.stages
    costs = replace(costs, runtime=timed.runtime, coding=timed.coding, hand_over=timed.hand_over)
    costs, member_fits = _with_member(costs, timed.member, timed.of_member)
    working = here * (1 + numerics.delayed_update)  # a delayed update is a computation of its own
    shared = cores if executor.device == "cpu" and working > cores else 0
    machine = measured_machine(timed.links, transport.nodes, stated, shared * len(set(hosts)))
    return Measurement(
        costs,
        machine,
        {
            "costs": _costs_to_list(fits, order),
            "member_costs": _costs_to_list(member_fits, order),
            "links": {name: _link_to_dict(link) for name, link in timed.links.items() if link is not None},
            "ranks": transport.world_size,
            "hosts": len(set(hosts)),
            **{name: getattr(costs, name) for name in ("runtime", "hand_over", "error")},
            "coding": timed.coding.to_dict(),
        },
    )


class _Timed(NamedTuple):
    """What all ranks time together; stages, the member's and the codec are None but on rank 0."""

    stages: TimedStages | None
    member: TeamModel | None
    of_member: TimedStages | None
    runtime: float
    hand_over: float
    coding: CodecCosts | None
    links: dict[str, LinkFit | None]


async def _time_all(rank: MeasuringRank, ranks: int, sizes: Sequence[int], progress: Callable[[str], None]) -> _Timed:
    actor, executor, model = rank.actor, rank.executor, rank.source
    stages = await measure_stages(rank, model.layer_costs, sizes, progress)
    member = model.build_member() if ranks > 1 and not rank.numerics.compile else None
    of_member = None if member is None else await _of_member(rank, member, sizes, progress)
    runtime = await measure_instruction(actor, executor) - await measure_call(actor, executor)
    hand_over = 0.0 if member is None else await measure_hand_over(actor, executor, computing(executor))
    coding = await measure_coding(actor, RealClock(), model.compress, progress, rank.effort)
    moves = member is not None and may_share_memory(model.all_reduce)
    links = await _links(actor, model.all_reduce, executor, moves=moves, progress=progress, effort=rank.effort)
    return _Timed(stages, member, of_member, max(0.0, runtime), max(0.0, hand_over), coding, links)


async def _of_member(
    rank: MeasuringRank, model: TeamModel, sizes: Sequence[int], progress: Callable[[str], None]
) -> TimedStages | None:
    """As `measure_stages`, of a team's member; its microbatch is a member's share of a team's."""
    sized = [size for size in sizes if size * members(model) <= max(sizes)] or [min(sizes)]
    return await measure_stages(replace(rank, model=model), rank.source.layer_costs, sized, progress)


def _with_member(
    costs: MeasuredCosts, model: TeamModel | None, timed: TimedStages | None
) -> tuple[MeasuredCosts, dict[tuple[str, int], Fit]]:
    """The costs with the seconds of a member, and of all members' updates together; and the member's fits."""
    if model is None or timed is None:
        return costs, {}
    (of_member, fits, _) = timed
    ranks = members(model)
    updates = {key: seconds for key, seconds in of_member.timed.items() if key[0] in (UPDATE, DELAYED_UPDATE)}
    together = {key: {kind: ranks * each for kind, each in seconds.items()} for key, seconds in updates.items()}
    error = max(costs.error, of_member.error)
    return replace(costs, member={**of_member.timed, **together}, error=error), fits


def gpu_bytes() -> list[int]:
    """Bytes of memory of each of this machine's GPUs."""
    return [torch.cuda.get_device_properties(device).total_memory for device in range(torch.cuda.device_count())]


async def _links(
    actor: Actor, all_reduce: str, executor: Executor, *, moves: bool, progress: Callable[[str], None], effort: Effort
) -> dict[str, LinkFit | None]:
    """The fit of each kind of link that this job has, and with `moves` of each move through memory, by name."""
    clock = RealClock()
    nodes = actor.transport.nodes
    hops = partial(measure_hops, actor, clock, compute=computing(executor), progress=progress, effort=effort)
    sums = partial(measure_sums, actor, clock, algorithm=all_reduce, progress=progress, effort=effort)
    node = tuple(rank for rank, of_node in enumerate(nodes) if of_node == nodes[0])
    leaders = tuple(dict.fromkeys(nodes))
    fits: dict[str, LinkFit | None] = {}
    if len(node) > 1:
        fits["messages on a node"] = await hops(list(dict.fromkeys([(node[0], node[1]), (node[-2], node[-1])])))
        fits["sums on a node"] = await sums(node)
        fits |= await measure_moves(actor, clock, node, progress=progress, effort=effort) if moves else {}
    if len(leaders) > 1:
        fits["messages between nodes"] = await hops([(leaders[0], leaders[1])])
        fits["sums between nodes"] = await sums(leaders)
    return fits


def computing(executor: Executor) -> Compute:
    """A function that keeps the executor busy for some seconds, with products large enough to release the GIL."""
    matrix = torch.ones(256, 256)

    def work(seconds: float) -> None:
        end = executor.clock.now() + seconds
        while executor.clock.now() < end:
            torch.mm(matrix, matrix)

    return lambda seconds: executor.run("forward", partial(work, seconds))


def measured_machine(links: dict[str, LinkFit | None], nodes: Sequence[int], stated: Machine, cores: int) -> Machine:
    """The machine with the measured links.

    If the ranks do not fill the nodes in equal blocks of consecutive ranks, all links count as links between nodes.
    """
    links_by_name = {name: link.links for name, link in links.items() if link is not None}
    node = nodes.count(nodes[0])
    even = all(of_node == rank - rank % node for rank, of_node in enumerate(nodes)) and len(nodes) % node == 0
    far, far_sums = links_by_name.get("messages between nodes"), links_by_name.get("sums between nodes")
    near = (links_by_name.get("messages on a node") if even else None) or far
    machine = replace(stated, cores=cores or stated.cores)
    if near is None:
        return machine
    sums = (links_by_name.get("sums on a node") if even else None) or far_sums
    sums = sums and replace(sums, memory=memory_costs(links) if even else None)
    return replace(machine, near=near, far=far, near_sums=sums, far_sums=far_sums, node=node if far else 0)


def _costs_to_list(fits: dict[tuple[str, int], Fit], order: list[Kind]) -> list[dict[str, Any]]:
    inner = (f"{kind}{index}" if kind == "inner" else kind for index, (kind, _) in enumerate(order))
    names = ["instruction", *inner]
    return [{"op": op, "microbatch": size, "seconds": fit.to_dict(*names)} for (op, size), fit in sorted(fits.items())]


def _link_to_dict(link: LinkFit) -> dict[str, Any]:
    return {**link.fit.to_dict("alpha", "beta"), "gamma": [link.links.gamma, None]}
