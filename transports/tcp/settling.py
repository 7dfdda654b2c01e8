"""What the ranks of one machine arrange when all have met: whose cores they share, and by which sockets they talk.

The one rule: letters on the sockets they have met on, in one order on all of them; whoever leaves meanwhile is named.
"""

import asyncio

from transports.errors import RendezvousError, TransportError
from transports.tcp.config import Place
from transports.tcp.cores import cores_together
from transports.tcp.join.rendezvous import Peers
from transports.tcp.same_host import shortcuts


async def settle_in(place: Place, peers: Peers) -> int:
    """Put faster sockets in the place of those to ranks of this machine; all ranks call this.

    Returns: the cores that the ranks of this machine may run on, together.
    Raises:
        RendezvousError: one of them left, fell silent for `place.wait` seconds, or said what makes no sense.
    Cost: three small letters there and back with each rank of this machine.
    """
    here = {rank: sock for rank, sock in peers.items() if peers.nodes[rank] == peers.nodes[place.rank]}
    try:
        async with asyncio.timeout(place.wait):
            cores = await cores_together(here.values())
            if place.unix:
                peers.update(await shortcuts(place.rank, here))
    except TimeoutError as error:
        raise _left(f"it said nothing in {place.wait:g} s") from error
    except (TransportError, OSError) as error:
        raise _left(error) from error
    return cores


def _left(why: object) -> RendezvousError:
    return RendezvousError(f"a rank of this machine left before all had met ({why}); see its own words")
