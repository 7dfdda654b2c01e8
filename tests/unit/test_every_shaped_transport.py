"""Over slow links a transport keeps every clause that it keeps without them; on the virtual clock, so nobody waits."""

import pytest

from pipelined.clock import run_virtual
from tests.conformance.clauses import EVERYWHERE, WHERE_RANKS_DIE, hold
from transports._shape import split_shape
from transports._shaped import Shaped
from transports.local import world

CLAUSES = {**EVERYWHERE, **WHERE_RANKS_DIE}
QUERIES = ["delay=5ms", "delay=50ms&jitter=50ms&rate=500mbit&loss=0.1&seed=3"]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("clause", CLAUSES)
def test_clause(clause, query):
    shape, _ = split_shape(query)

    async def main():
        await hold([Shaped(end, shape) for end in world(3)], CLAUSES[clause], seconds=1e4)

    run_virtual(main())
