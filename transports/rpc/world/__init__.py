"""Ranks over endpoints: parties that agreed on an order of addresses send messages as over any other transport.

party     a process of the open network: an address, and an incarnation
rank      a number in the world; a peer is another rank, as in every transport
holder    a party's number in the world: it holds one rank, which has one holder or two
twin      the other holder of the same rank
"""

from transports.rpc.world.transport import RankHolder, RpcTransport
from transports.rpc.world.worlds import Worlds, abort_reason

__all__ = ["RankHolder", "RpcTransport", "Worlds", "abort_reason"]
