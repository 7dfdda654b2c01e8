"""What one message costs between two ranks that have done nothing for a while, all others being alive and waiting.

The rule: a hop is half of a way there and back, less what the far end slept between, so no two clocks are compared.
"""

import statistics
from collections.abc import Sequence

import numpy as np

from collectives import Links
from pipelined.actor import Actor
from pipelined.clock import Clock
from pipelined.exchange import gather, share

IDLE_S = 0.012
"""How long both ends have done nothing before a message leaves."""


async def hop(actor: Actor, clock: Clock, nbytes: int, number: int) -> float:
    """Send a message to a neighbour and back; returns the seconds of one way on rank 0, and 0 elsewhere.

    Args:
        number: which hop, not used before; the pairs of neighbours take turns. All ranks call this together.
    """
    first = number % (actor.transport.world_size - 1)
    body, seconds = np.zeros(nbytes, np.uint8), 0.0
    if actor.rank == first:
        seconds = await _there_and_back(actor, clock, first + 1, number, body)
    elif actor.rank == first + 1:
        await _answer(actor, clock, first, number, body)
    everyone = await gather(actor.transport, f"hop {number}", seconds)
    await share(actor.transport, f"hop {number} is over", True)
    return sum(everyone)


def fitted(empty: Sequence[float], full: Sequence[float], nbytes: int) -> Links:
    """Alpha and beta of the median hop without a body and with one of so many bytes."""
    alpha = statistics.median(empty)
    return Links(alpha, max(0.0, statistics.median(full) - alpha) / nbytes, 0.0)


async def _there_and_back(actor: Actor, clock: Clock, peer: int, number: int, body: np.ndarray) -> float:
    back = actor.start(actor.receive(peer, ("back", number)))
    await clock.sleep(IDLE_S)
    start = clock.now()
    actor.tell(peer, ("there", number), body)
    frame = await back
    return (clock.now() - start - frame.note) / 2


async def _answer(actor: Actor, clock: Clock, peer: int, number: int, body: np.ndarray) -> None:
    await actor.receive(peer, ("there", number))
    came = clock.now()
    await clock.sleep(IDLE_S)
    actor.tell(peer, ("back", number), body, note=clock.now() - came)
