"""Rendezvous hashing: each process tries the same peers in its own order, so many processes spread evenly over them.

Source: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates (1998), highest random weight.
"""

import hashlib
from collections.abc import Iterable

from pipelined.membership.records import Peer


def by_preference(asker: str, peers: Iterable[Peer]) -> list[Peer]:
    """The peers in the order in which the process named `asker` tries them; every process computes the same order.

    When a peer joins or leaves, the first choice changes only for the processes that prefer this peer.
    """
    return sorted(peers, key=lambda peer: _weight(asker, peer.name))


def _weight(asker: str, name: str) -> bytes:
    length = len(asker.encode()).to_bytes(4, "big")  # so that two pairs of names never join to the same text
    return hashlib.blake2b(length + asker.encode() + name.encode(), digest_size=8).digest()
