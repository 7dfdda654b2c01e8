"""Ranks over endpoints: parties that agreed on an order of addresses send messages as over any other transport."""

from transports.rpc.world.transport import RankHolder, RpcTransport
from transports.rpc.world.worlds import Worlds, abort_reason

__all__ = ["RankHolder", "RpcTransport", "Worlds", "abort_reason"]
