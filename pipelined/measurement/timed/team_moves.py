"""Timing of a team's moves through memory that its ranks share: no messages, but copies and waiting for one another.

Each move begins at a barrier, which ranks leave at different times. What a rank waits in the move for a later one, that
one saves: in the mean of the ranks both vanish.
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

ITEMSIZE, COLUMNS = 4, 256
"""Of the moved tensors, which are split by columns."""
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

    Returns: the fits, labelled for a reader, on rank 0; nothing on the others, and where the ranks share no memory.
    """
    progress(f"timing moves among {len(ranks)} ranks")
    moves = {kind.name: [_move(kind, len(ranks), nbytes) for nbytes in effort.sums] for kind in LAYOUTS}
    mine: dict[str, list[list[float]]] = {}
    if actor.rank in ranks:
        network = MeshGroups(actor.transport, MOVES_CHANNEL, ranks=ranks)
        if (await moves[AllGather.name][0].open(network)).is_shared:
            for name, every in moves.items():
                mine[name] = [await _times(network, clock, move, effort.repeats) for move in every]
    timed = list(filter(None, await gather_objects(actor.transport, f"moves {ranks}", mine)))
    fits: dict[str, LinkFit | None] = {}
    if timed:
        for name, every in moves.items():
            times_by_size = zip(*(times[name] for times in timed), strict=True)
            samples = [_sample(*of_size) for of_size in zip(every, times_by_size, strict=True)]
            fits[_label(name)] = as_links(fit(samples), 0.0)
    return fits


def memory_costs(links: Mapping[str, LinkFit | None]) -> MemoryCosts | None:
    """The prices of the moves among these fits; None: they were not measured."""
    fits = {kind.name: links.get(_label(kind.name)) for kind in LAYOUTS}
    costs = {name: (fitted.links.alpha, fitted.links.beta) for name, fitted in fits.items() if fitted is not None}
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
    taken = []
    for array in [torch.ones(move.source.shape(network.rank)) for _ in range(repeats)]:
        await barrier(network.along(move.source.mesh, move.axes))
        start = clock.now()
        await move.run(network, array)
        taken.append(clock.now() - start)
    return taken


def _sample(move: CollectiveMove, of_ranks: Sequence[Sequence[float]]) -> Sample:
    """A sample of alpha and beta.

    Args:
        of_ranks: seconds of each repetition, of each rank.
    """
    means = [statistics.mean(each) for each in zip(*of_ranks, strict=True)]
    return Sample((1.0, float(ITEMSIZE * move.longest)), tuple(means))
