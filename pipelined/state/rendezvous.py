"""Rendezvous hashing: each asker has its own order of the same peers, so many askers spread evenly over them.

Source: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates (1998), highest random weight.
"""

import hashlib
from collections.abc import Iterable

from pipelined.swarm.records import Peer


def by_preference(asker: str, peers: Iterable[Peer]) -> list[Peer]:
    """The peers in the order in which this asker tries them, the same in every process.

    A peer that comes or goes changes the first choice of the askers that prefer it alone.
    """
    return sorted(peers, key=lambda peer: _weight(asker, peer.name))


def _weight(asker: str, name: str) -> bytes:
    length = len(asker.encode()).to_bytes(4, "big")  # two pairs of names are never one text
    return hashlib.blake2b(length + asker.encode() + name.encode(), digest_size=8).digest()
