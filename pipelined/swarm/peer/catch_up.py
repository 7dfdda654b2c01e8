"""How a serving peer catches up with steps that were committed without it: it applies them and stays a member.

It does not leave and join again for them: a peer with a slow link would be late again after each return.
"""

from pipelined.membership.client import PeerClient
from pipelined.membership.view import NoLongerValid
from pipelined.state.fetch import by_preference
from pipelined.state.manifest import TransferError
from pipelined.state.steps import fetch_steps
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.records import Commit
from pipelined.swarm.view import SwarmView
from transports.rpc import Rejected


async def catch_up(replica: Replica, head: Commit, view: SwarmView, client: PeerClient, limit: float) -> bool:
    """Fetch the steps up to this head from another peer of the stage, and apply them. Returns whether it caught up.

    Args:
        limit: seconds after which a reply is late.
    """
    had_part = [peer for peer in view.holding(replica.index) if head.had_member(peer.name, replica.index)]
    others = by_preference(replica.name, had_part)
    try:
        while replica.step < head.step and others:
            await replica.apply_missed(await fetch_steps(client, others[0], replica.version, replica.stage.sums, limit))
    except (NoLongerValid, Rejected, TransferError):
        return False
    return await replica.follow(view.head)


def split_by_last_step(replica: Replica, head: Commit, view: SwarmView) -> tuple[set[str], set[str]]:
    """Addresses of the other peers of a stage: those without a part in the last step, and those with one."""
    late, on_time = set[str](), set[str]()
    for peer in [*view.joining(replica.index), *view.holding(replica.index)]:
        if peer.name != replica.name:
            (on_time if head.had_member(peer.name, replica.index) else late).add(peer.address)
    return late, on_time
