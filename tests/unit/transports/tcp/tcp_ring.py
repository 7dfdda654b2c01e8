"""A program for ranks that are processes: pass a message round, or lose a rank on the way. Not a test by itself.

python tcp_ring.py URL [DYING_RANK]
"""

import asyncio
import os
import signal
import sys
import time

import numpy as np

from transports import PeerLost, TransportError, open_transport

LATE_S = 12.0  # it takes milliseconds on an idle machine; a probe for lost machines would take 15 s


async def ring(end):
    """The sum of all ranks, passed round once; every rank ends with it."""
    left, right = (end.rank - 1) % end.world_size, (end.rank + 1) % end.world_size
    total = mine = np.full(1 << 18, float(end.rank))
    for step in range(end.world_size - 1):
        sending = asyncio.ensure_future(end.send(right, ("part", step), mine))
        mine = (await end.receive(left, ("part", step))).blocks[0].numpy()
        await sending
        total = total + mine
    assert (total == total[0]).all()
    return int(total[0])


async def lose(end, dying):
    """Hear of microbatch 5 from a rank that dies before microbatch 6; returns what is known of it then."""
    if end.rank == dying:
        for peer in set(range(end.world_size)) - {dying}:
            await end.send(peer, ("microbatch", 5), note=time.time())
        os.kill(os.getpid(), signal.SIGKILL)
    died = (await end.receive(dying, ("microbatch", 5))).note
    try:
        await end.receive(dying, ("microbatch", 6))
    except PeerLost as error:
        return f"{error}; last heard: {end.last_key(dying)}; late: {time.time() - died > LATE_S}"


async def main(url, dying=None):
    async with await open_transport(url) as end:
        said = await ring(end) if dying is None else await lose(end, int(dying))
        sys.stdout.write(f"rank {end.rank} of {end.world_size}: {said}\n")  # in one piece, as all share one terminal


try:
    asyncio.run(main(*sys.argv[1:]))
except TransportError as failure:
    sys.exit(f"{type(failure).__name__}: {failure}")
