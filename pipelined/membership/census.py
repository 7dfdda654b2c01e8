"""Where the peers of a swarm are, kept up record by record, so that a change costs the same in a swarm of any size."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipelined.swarm.records import Peer, Phase

STAY = Phase.JOINING, Phase.SERVING
"""Phases of a peer that is not about to leave its stage."""


class Census:
    """The peers of each stage, and how many of them stay.

    A newcomer counts where it was sent until it says itself where it is.

    Cost: O(1) a change. `at` puts the peers of one stage in order once until one of them changes.
    """

    def __init__(self) -> None:
        self._peers, self._stages = dict[str, Peer](), dict[int, dict[str, Peer]]()
        self._ordered, self._held, self._changes = dict[int, list[Peer]](), Counter[int](), Counter[int]()
        self._sent, self._counted, self._there = dict[str, int](), dict[str, int](), Counter[int]()
        self._departures = dict[int, list[Peer]]()

    def put(self, name: str, peer: Peer | None) -> None:
        """What a peer of this name is now; None: there is none."""
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
        """A list of the peers that are gone, or here under another incarnation, from now on: each as it was last. The
        block empties it.
        """
        gone = list[Peer]()
        self._departures[id(gone)] = gone
        try:
            yield gone
        finally:
            del self._departures[id(gone)]

    def send(self, name: str, stage: int) -> None:
        """A newcomer of this name is to go to a stage; what its record says does not count until it `arrived`."""
        self._sent[name] = stage
        self._count(name)

    def arrived(self, name: str) -> None:
        """From now on what its record says counts, or nothing where it has none."""
        if self._sent.pop(name, None) is not None:
            self._count(name)

    def at(self, stage: int) -> Sequence[Peer]:
        """The peers of a stage, by name."""
        if stage not in self._ordered:
            self._ordered[stage] = [peer for _, peer in sorted(self._stages.get(stage, {}).items())]
        return self._ordered[stage]

    def is_kept(self, stage: int) -> bool:
        """Whether a peer stays at a stage, or comes to it, as the records say."""
        return any(peer.phase in STAY for peer in self._stages.get(stage, {}).values())

    def changes(self, stage: int) -> int:
        """How often a peer of a stage has changed, come or gone: as long as it is the same, so is `at`."""
        return self._changes[stage]

    def holding(self, stage: int) -> int:
        """How many peers have the state of a stage."""
        return self._held[stage]

    def staying(self, stages: int, without: str) -> list[int]:
        """By stage, how many peers stay, those sent there included and the peer of one name left out."""
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
