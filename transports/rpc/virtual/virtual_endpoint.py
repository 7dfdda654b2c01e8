"""One party's end of a virtual network. The one rule: it does all by its process, which may be frozen or dead."""

from transports.rpc.base import Party
from transports.rpc.common import CommonEndpoint
from transports.rpc.virtual.endpoint import SCHEME, Half, Map
from transports.rpc.virtual.process import Process


class VirtualEndpoint(CommonEndpoint):
    """See `VirtualNetwork.endpoint`.

    Args:
        network: finds others, and the ways to them.
        process: whose end this is; it dies and freezes with it.
    """

    def __init__(self, network: Map, process: Process, incarnation: int, most_under_way: int):
        super().__init__(f"{SCHEME}{process.name}", incarnation, most_under_way)
        self.network, self.process = network, process

    @property
    def party(self) -> Party:
        return Party(self.address, self.incarnation)

    async def close(self) -> None:
        self.closed = True
        for half in self.circle:
            half.hang_up("this end was closed")
        await self.desk.close()

    def die(self) -> None:
        """The process is gone, and nobody in it hears of anything."""
        self.closed = True
        self.circle.hear_nothing()
        for half in self.circle:
            half.die()

    def call(self, address: str) -> Half:
        half = Half(self, address)
        self.circle.join(half)
        half.knock()
        return half

    def let_in(self, theirs: Half) -> Half:
        """The other side has knocked: take up this side of the connection."""
        half = Half(self, theirs.endpoint.address)
        half.other = theirs
        self.circle.join(half)
        self.circle.know(half, theirs.endpoint.party)
        return half
