"""The peers of a swarm by stage, updated with each record, so that a change costs the same in a swarm of any size."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipelined.membership.records import Peer, Phase

STAY = Phase.JOINING, Phase.SERVING
"""Phases of a peer that stays at its stage."""


class Census:
    """The peers of each stage, and how many of them stay.

    A new peer counts at the stage to which the leader sent it, until its own record names its stage.

    Cost: O(1) per change. `at` sorts the peers of a stage once after each change of one of them.
    """

    def __init__(self) -> None:
        self._peers, self._stages = dict[str, Peer](), dict[int, dict[str, Peer]]()
        self._ordered, self._held, self._changes = dict[int, list[Peer]](), Counter[int](), Counter[int]()
        self._sent, self._counted, self._there = dict[str, int](), dict[str, int](), Counter[int]()
        self._departures = dict[int, list[Peer]]()

    def put(self, name: str, peer: Peer | None) -> None:
        """Set the record of the peer of this name; None: the record was deleted."""
        before = self._peers.pop(name, None)
        if before is not None:
            self._changed(before.stage)
            del self._stages[before.stage][name]
            self._held[before.stage] -= before.phase != Phase.JOINING
        if peer is not None:
            self._changed(peer.stage)
            self._peers[name] = self._stages.setdefault(peer.stage, {})[name] = peer
            self._held[peer.stage] += peer.phase != Phase.JOINING
        if before is not None and (peer is None or peer.incarnation != before.incarnation):
            for gone in self._departures.values():
                gone.append(before)
        self._count(name)

    @contextmanager
    def departures(self) -> Iterator[list[Peer]]:
        """A list that receives the last record of each peer that leaves or starts under another incarnation.

        The block removes what it has read from the list.
        """
        gone = list[Peer]()
        self._departures[id(gone)] = gone
        try:
            yield gone
        finally:
            del self._departures[id(gone)]

    def send(self, name: str, stage: int) -> None:
        """Note that a new peer of this name was sent to a stage; its record does not count until `arrived`."""
        self._sent[name] = stage
        self._count(name)

    def arrived(self, name: str) -> None:
        """Count a peer by its own record from now on, or not at all if it has no record."""
        if self._sent.pop(name, None) is not None:
            self._count(name)

    def at(self, stage: int) -> Sequence[Peer]:
        """The peers of a stage, by name."""
        if stage not in self._ordered:
            self._ordered[stage] = [peer for _, peer in sorted(self._stages.get(stage, {}).items())]
        return self._ordered[stage]

    def is_kept(self, stage: int) -> bool:
        """Whether a peer stays at a stage or joins it, by the records alone."""
        return any(peer.phase in STAY for peer in self._stages.get(stage, {}).values())

    def changes(self, stage: int) -> int:
        """Number of changes of the peers of a stage; while it is the same, `at` is the same."""
        return self._changes[stage]

    def holding(self, stage: int) -> int:
        """Number of peers that have the state of a stage."""
        return self._held[stage]

    def staying(self, stages: int, without: str) -> list[int]:
        """By stage, the number of peers that stay or were sent there, without the peer named `without`."""
        there, at = [self._there[stage] for stage in range(stages)], self._counted.get(without, stages)
        if at < stages:
            there[at] -= 1
        return there

    def _changed(self, stage: int) -> None:
        self._ordered.pop(stage, None)
        self._changes[stage] += 1

    def _count(self, name: str) -> None:
        peer, before = self._peers.get(name), self._counted.pop(name, None)
        now = self._sent.get(name, peer.stage if peer and peer.phase in STAY else None)
        if before is not None:
            self._there[before] -= 1
        if now is not None:
            self._counted[name] = now
            self._there[now] += 1
