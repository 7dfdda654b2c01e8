"""Who of a stage goes where not all can reach one another: from what each says whom it reaches.

The one rule: whoever is told the same decides the same, and a stage is never left without one that serves it. It is
a cut that is to go, not a culprit: the fewest go that leave peers who all reach one another, as far as a look at one
after another finds them. Knows peers and what they said; it must not know how that is asked, nor how anybody goes.
"""

from collections.abc import Mapping, Sequence, Set

from pipelined.membership.view import WORKING
from pipelined.swarm.records import Peer


def who_goes(peers: Sequence[Peer], said: Mapping[str, Set[str]], before: Mapping[str, int]) -> list[Peer]:
    """Those to be struck from the directory, in this order; none, where nobody who serves could be reached.

    A cut is a cut whichever side tells of it. First go those who could not be reached by whoever asks, then one after
    another who is cut from the most of the others; of equals the one that failed with the most others before, then
    one that leaves anyhow, and then the youngest. So a member that accuses everybody goes first itself, also where it
    accuses one at a time.

    Args:
        peers: of one stage, that hold its state.
        said: by name, the others that this one cannot reach; who is missing could not be reached itself.
        before: by name, with how many others each failed so far, these cuts counted; see `History.partners`.
    """
    left = [peer for peer in peers if peer.name in said]
    if not any(peer.phase in WORKING for peer in left):
        return []
    gone = [peer for peer in peers if peer.name not in said]
    while cuts := _cuts(left, said):
        can_go = [each for each in left if any(other.phase in WORKING for other in left if other is not each)]
        degree = lambda peer, cuts=cuts: sum(peer.name in cut for cut in cuts)  # noqa: E731
        rank = lambda peer, of=degree: (  # noqa: E731
            of(peer),
            before.get(peer.name, 0),
            peer.phase not in WORKING,
            peer.incarnation,
        )
        last = max(can_go, key=rank)
        if not degree(last):
            break
        left.remove(last)
        gone.append(last)
    return gone


def _cuts(peers: Sequence[Peer], said: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    names = {peer.name for peer in peers}
    return {frozenset((one, other)) for one in names for other in said[one] & names if one != other}
