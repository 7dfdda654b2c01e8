"""What one message costs between two ranks that have done nothing for a while, all others being alive and waiting.

A hop is timed as the planner times it, but no rank computes after it has sent.
"""

import statistics
from collections.abc import Sequence

from collectives import Links
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.aio.clock import Clock
from pipelined.measurement.timed import messages_and_sums as links


async def hop(actor: Actor, clock: Clock, nbytes: int, number: int) -> float:
    """Send a message to a neighbour and back; returns the seconds of one way on rank 0, and 0 elsewhere.

    Args:
        number: which hop, not used before; the pairs of neighbours take turns. All ranks call this together.
    """
    first = number % (actor.transport.world_size - 1)
    seconds = await links.hop(actor, clock, (first, first + 1), size=nbytes, number=number, compute=_nothing)
    everyone = await gather_objects(actor.transport, f"hop {number}", seconds)
    await broadcast_object(actor.transport, f"hop {number} is over", True)
    return sum(everyone)


def fitted(empty: Sequence[float], full: Sequence[float], nbytes: int) -> Links:
    """Alpha and beta of the median hop without a body and with one of so many bytes."""
    alpha = statistics.median(empty)
    return Links(alpha, max(0.0, statistics.median(full) - alpha) / nbytes, 0.0)


async def _nothing(seconds: float) -> None:
    """What a rank computes that only waits for the answer."""
