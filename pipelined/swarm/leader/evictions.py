"""Chooses the peers of a stage to evict when some of them cannot reach each other.

The input is each peer's report of the peers that it cannot reach. The same reports give the same choice in every
process, and at least one serving peer always stays. A broken link does not show which of its two ends failed. So the
goal is to evict few peers such that the remaining ones all reach each other; a greedy search chooses them.
"""

from collections.abc import Mapping, Sequence, Set

from pipelined.swarm.records.members import WORKING, Peer


def choose_evictions(
    peers: Sequence[Peer], unreachable: Mapping[str, Set[str]], failed_partners: Mapping[str, int]
) -> list[Peer]:
    """The peers to evict, in this order; empty if no serving peer sent a report.

    A link counts as broken if either end reports it. First go the peers without a report, which the leader could not
    reach. Then, one at a time, goes the peer with the most broken links to the remaining peers; among equals the one
    that failed with the most partners before, then one that is leaving anyway, then the youngest. So a peer that
    reports every other peer is evicted first itself, even if it reports them one at a time.

    Args:
        peers: of one stage, that hold its state.
        unreachable: by name, the peers that this peer cannot reach; a peer without an entry sent no report.
        failed_partners: by name, the number of partners with which each peer failed so far, including these broken
            links; see `History.partners`.
    """
    left = [peer for peer in peers if peer.name in unreachable]
    if not any(peer.phase in WORKING for peer in left):
        return []
    gone = [peer for peer in peers if peer.name not in unreachable]
    while broken := _broken_links(left, unreachable):
        can_go = [each for each in left if any(other.phase in WORKING for other in left if other is not each)]
        degree = lambda peer, broken=broken: sum(peer.name in link for link in broken)  # noqa: E731
        rank = lambda peer, of=degree: (  # noqa: E731
            of(peer),
            failed_partners.get(peer.name, 0),
            peer.phase not in WORKING,
            peer.incarnation,
        )
        last = max(can_go, key=rank)
        if not degree(last):
            break
        left.remove(last)
        gone.append(last)
    return gone


def _broken_links(peers: Sequence[Peer], unreachable: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    names = {peer.name for peer in peers}
    return {frozenset((one, other)) for one in names for other in unreachable[one] & names if one != other}
