"""What a peer that serves does about steps that were taken without it: it takes them where it is.

The one rule: it does not leave its place for them; one far away would be late again whenever it had come back. Knows
who has what was summed; it must not know how that was decided.
"""

from pipelined.membership.client import Asking
from pipelined.membership.view import MembershipView, NoLongerValid
from pipelined.state.manifest import TransferError
from pipelined.state.rendezvous import by_preference
from pipelined.state.steps import fetch_steps
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.records import Head
from transports.rpc import Rejected


async def catch_up(replica: Replica, head: Head, view: MembershipView, asking: Asking, limit: float) -> bool:
    """Take what another of the stage kept of the steps up to this head; whether that led to where the swarm is.

    Args:
        limit: seconds after which an answer is late.
    """
    had_part = [peer for peer in view.holding(replica.index) if head.was_taken_by(peer.name, replica.index)]
    others = by_preference(replica.name, had_part)
    try:
        while replica.step < head.step and others:
            await replica.apply_missed(await fetch_steps(asking, others[0], replica.version, replica.stage.sums, limit))
    except (NoLongerValid, Rejected, TransferError):
        return False
    return await replica.follow(view.head)


def late_and_on_time(replica: Replica, head: Head, view: MembershipView) -> tuple[set[str], set[str]]:
    """Addresses of the other peers of a stage: those that had no part in the last step, and those that had one."""
    late, on_time = set[str](), set[str]()
    for peer in [*view.joining(replica.index), *view.holding(replica.index)]:
        if peer.name != replica.name:
            (on_time if head.was_taken_by(peer.name, replica.index) else late).add(peer.address)
    return late, on_time
