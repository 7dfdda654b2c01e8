"""Turns over MPI: contenders take them in rounds, all ranks begin each together, and the slowest rank's time counts."""

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from time import perf_counter, sleep

from mpi4py import MPI

NAP_S = 50e-6
"""A rank that waits for the others between two turns leaves the core to them for so long at a time."""
Call = Callable[[], Awaitable[object]]


async def take_turns(
    comm: MPI.Comm,
    what: str,
    calls: Mapping[str, Call],
    *,
    rounds: int,
    seed: int,
    repeats: int = 1,
    before: Callable[[], object] = lambda: None,
    is_right: Callable[[str], bool] = lambda name: True,
) -> dict[str, list[float]]:
    """Seconds of each call by name, one number a round, the first of which is forgotten.

    All ranks call this together, with the names in one order.

    Args:
        what: is called, for errors.
        seed: of the order in each round.
        repeats: calls in one turn; the seconds are those of one.
        before: prepares a turn; it is not timed.
        is_right: whether the call of that name, which has just run, left what it should.
    Raises:
        RuntimeError: a result is wrong on some rank.
    """
    order, taken = Random(seed), {name: list[float]() for name in calls}
    for _ in range(rounds + 1):
        for name in order.sample(list(calls), len(calls)):
            before()
            meet(comm)
            comm.Barrier()
            start = perf_counter()
            for _ in range(repeats):
                await calls[name]()
            seconds = (perf_counter() - start) / repeats
            meet(comm)
            if not all(comm.allgather(is_right(name))):
                raise RuntimeError(f"{what} by {name}: the result is wrong")
            taken[name].append(max(comm.allgather(seconds)))
    return {name: seconds[1:] for name, seconds in taken.items()}


def meet(comm: MPI.Comm) -> None:
    """Wait for all ranks without keeping the core; MPI's own barrier would keep it."""
    met = comm.Ibarrier()
    while not met.Test():
        sleep(NAP_S)
