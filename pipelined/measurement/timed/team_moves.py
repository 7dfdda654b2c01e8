"""Timing of a team's moves through memory that its ranks share: no messages, but copies and waiting for one another.

Each move begins at a barrier, which ranks leave at different times. A rank that leaves it early waits in the move for a
later rank, which saves as much: the mean over the ranks has neither.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from collectives import barrier
from collectives.cost_model import MemoryCosts
from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.aio.clock import Clock
from pipelined.measurement.effort import THOROUGH, Effort
from pipelined.measurement.fit import Sample, fit
from pipelined.measurement.timed.channels import MOVES_CHANNEL
from pipelined.measurement.timed.messages_and_sums import LinkFit, as_links
from pipelined.sharding import Mesh, MeshGroups, Shards
from pipelined.sharding.collective_moves import AllGather, AllToAll, CollectiveMove, ReduceScatter, ReduceToAll

ITEMSIZE = 4
COLUMNS = 256
"""The columns of the moved tensors, by which they are split."""
LAYOUTS: Mapping[type[CollectiveMove], tuple[str, str]] = {
    AllGather: ("S1:team", "B"),
    ReduceScatter: ("P:team", "S1:team"),
    ReduceToAll: ("P:team", "B"),
    AllToAll: ("S1:team", "S0:team"),
}
"""The timed moves, with the layouts before and after each."""


async def measure_moves(
    actor: Actor, clock: Clock, ranks: tuple[int, ...], *, progress: Callable[[str], None], effort: Effort = THOROUGH
) -> dict[str, LinkFit | None]:
    """Alpha and beta of each move among these ranks of one node; all ranks call this together.

    Returns: the fits, labelled for a reader, on rank 0; no fits on other ranks, or if the ranks share no memory.
    """
    progress(f"timing moves among {len(ranks)} ranks")
    moves = {kind.name: [_move(kind, len(ranks), nbytes) for nbytes in effort.sum_sizes] for kind in LAYOUTS}
    times = dict[str, list[list[float]]]()
    if actor.rank in ranks:
        network = MeshGroups(actor.transport, MOVES_CHANNEL, ranks=ranks)
        if (await moves[AllGather.name][0].open(network)).is_shared:
            for name, moves_by_size in moves.items():
                times[name] = [await _times(network, clock, move, effort.repeats) for move in moves_by_size]
    times_by_rank = list(filter(None, await gather_objects(actor.transport, f"moves {ranks}", times)))
    fits: dict[str, LinkFit | None] = {}
    if times_by_rank:
        for name, moves_by_size in moves.items():
            times_by_size = zip(*(rank_times[name] for rank_times in times_by_rank), strict=True)
            samples = [_sample(*row) for row in zip(moves_by_size, times_by_size, strict=True)]
            fits[_label(name)] = as_links(fit(samples), 0.0)
    return fits


def memory_costs(links: Mapping[str, LinkFit | None]) -> MemoryCosts | None:
    """The prices of the moves among these links; None: they were not measured."""
    links_by_move = {kind.name: links.get(_label(kind.name)) for kind in LAYOUTS}
    costs = {name: (link.links.alpha, link.links.beta) for name, link in links_by_move.items() if link is not None}
    return MemoryCosts(**costs) if costs else None


def _label(name: str) -> str:
    return f"{name} in shared memory"


def _move(kind: type[CollectiveMove], ranks: int, nbytes: int) -> CollectiveMove:
    """The move of a tensor of `nbytes`."""
    mesh = Mesh(f"team={ranks}")
    shape = (nbytes // (ITEMSIZE * COLUMNS), COLUMNS)
    source, target = (Shards(mesh, shape, layout) for layout in LAYOUTS[kind])
    return kind(("team",), source, target)


async def _times(network: MeshGroups, clock: Clock, move: CollectiveMove, repeats: int) -> list[float]:
    """Seconds of repetitions of a move on this rank, each from a barrier on, of arrays that were written before."""
    times = []
    for array in [torch.ones(move.source.shape(network.rank)) for _ in range(repeats)]:
        await barrier(network.along(move.source.mesh, move.axes))
        start = clock.now()
        await move.run(network, array)
        times.append(clock.now() - start)
    return times


def _sample(move: CollectiveMove, times_of_ranks: Sequence[Sequence[float]]) -> Sample:
    """A sample of alpha and beta: the mean over the ranks of each repetition."""
    means = [statistics.mean(repetition) for repetition in zip(*times_of_ranks, strict=True)]
    return Sample((1.0, float(ITEMSIZE * move.longest)), tuple(means))
