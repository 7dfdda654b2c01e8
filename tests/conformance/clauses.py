"""What every transport promises, as small named clauses, and how to hold one to them.

A clause is a coroutine that every rank of a world runs at once with its own end, like a program under mpirun; its
docstring or name is the promise. So the same clause serves ranks that share a loop and ranks that are processes:

    await hold(ends, clause)        # all ends of a world on this loop (local, tcp, virtual)
    await hold([end], clause)       # this process's end; the other ranks do the same (mpi)

To put a new transport under the suite, write a function or coroutine in `tests/conformance/worlds.py` that returns
the ends of all ranks on the running loop, and name it in `tests/unit/test_every_transport.py`. A transport with ranks
that must be processes has a test of its own like `tests/mpi/test_mpi_transport.py`.

`EVERYWHERE` holds for all; `WHERE_RANKS_DIE` for transports of which one end can be killed (`worlds.kill`).
Clauses work at any world size from 2 up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.conformance import addressed, bare, cancelling, deaths, endings
from transports import Transport

Clause = Callable[[Transport], Awaitable[None]]


def clauses_of(module) -> dict[str, Clause]:
    """The clauses that a module defines, by name: its public coroutine functions."""
    names = [name for name in vars(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names if asyncio.iscoroutinefunction(getattr(module, name))}
    return {name: clause for name, clause in found.items() if clause.__module__ == module.__name__}


EVERYWHERE = {
    name: clause for module in (addressed, bare, cancelling, endings) for name, clause in clauses_of(module).items()
}
WHERE_RANKS_DIE = clauses_of(deaths)


async def hold(ends: Sequence[Transport], clause: Clause, seconds: float = 60) -> None:
    """Run the clause on these ends, and close them; a clause that waits for ever fails."""
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for end in ends:
                group.create_task(clause(end))
    finally:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(end.close() for end in ends))
