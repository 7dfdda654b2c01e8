"""The peer of a stage that gets a microbatch next: interleaved weighted round-robin over measured reply times.

Each pick adds the expected seconds of the request to a peer's sum, and the peer with the smallest sum is next. So each
peer gets microbatches in proportion to its speed, and a trainer needs no information about other trainers. But a peer
with fewer open requests of this trainer goes first: seconds alone balance the queues only on average, and averages are
noisy. A trainer measures reply times from the request to the last byte of the reply, so they include the peer's speed,
its queue and the network. Times are arguments and a seeded generator breaks ties, so equal calls give equal picks.
"""

import heapq
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

from pipelined.aio.latency import Average
from pipelined.membership.bans import AnnouncedMember, Bans

PassKind = Literal["forward", "backward"]
"""The pass that is requested of a peer."""

SMOOTHING = 0.1
"""Weight of the newest reply (SWARM, section 4.3)."""
BACKWARD = 2.5
"""Duration of a backward, in forwards, until one was measured; it computes forward again."""
MIN_S = 1e-9
"""Smallest expected time of a request, so that a peer that replies at once still gets only its turn."""


class ReplyTimes:
    """The reply times of one stage's peers, forward and backward apart.

    Source: SWARM, Appendix C, Algorithm 1, lines 2, 8 and 30; a newcomer's estimate is our own.
    """

    def __init__(self) -> None:
        self._averages: dict[str, dict[PassKind, Average]] = {}

    def add(self, peer: str) -> None:
        """Begin to record a peer's times. A known peer keeps its times."""
        self._averages.setdefault(peer, {kind: Average(SMOOTHING) for kind in get_args(PassKind)})

    def remove(self, peer: str) -> None:
        """Forget a peer's times."""
        self._averages.pop(peer, None)

    def observe(self, peer: str, kind: PassKind, seconds: float) -> None:
        """Record the seconds of a reply.

        Raises:
            ValueError: the seconds are negative or not finite; nothing is changed.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{peer} cannot have replied after {seconds} s; measure with a monotonic clock")
        self._averages[peer][kind].add(seconds)

    def measured_s(self, peer: str, kind: PassKind) -> float | None:
        """Seconds of the peer's own replies to this pass; else of the other pass, rescaled; else None."""
        averages = self._averages[peer]
        other_kind: PassKind = "backward" if kind == "forward" else "forward"
        if (seconds := averages[kind].value) is not None:
            return seconds
        if (seconds := averages[other_kind].value) is not None:
            return seconds * (BACKWARD if kind == "backward" else 1 / BACKWARD)
        return None

    def expected_s(self, peer: str, kind: PassKind) -> float:
        """Expected seconds of a reply: as measured, else the median of the stage, else `MIN_S`.

        While no peer of the stage has replied, all peers are equal. Later replies soon outweigh this small value.
        """
        seconds = self.measured_s(peer, kind)
        if seconds is None:
            measured_times = [
                time for time in (self.measured_s(peer, kind) for peer in self._averages) if time is not None
            ]
            seconds = statistics.median(measured_times) if measured_times else 0.0
        return max(seconds, MIN_S)


MIN_HEAP = 16
"""Entries that a heap may have in addition to twice the valid ones."""


class Router:
    """One trainer's choice of peers.

    Args:
        stages: how many there are, numbered from 0.
        seed: breaks ties; give every trainer another, so that they do not all begin with the same peers.

    Cost: a pick is O(log peers of the stage), a ban O(peers); the memory is of members and of recent bans only.
    Source: SWARM, Appendix C, Algorithm 1. Not from there: newcomers at the minimum, forward and backward apart,
        estimates by the stage's median, repeated announcements, back-off.
    """

    def __init__(self, stages: int, seed: Any = 0):
        draw = random.Random(str(seed))
        self._queues = [_StageQueue(ReplyTimes(), draw) for _ in range(stages)]
        self._stages: dict[str, int] = {}
        self._bans = Bans()

    def add(self, stage: int, peer: AnnouncedMember) -> None:
        """Add a peer to the stage that it announced; it leaves its former stage, and its times there are forgotten.

        A repeated call changes nothing. A newcomer, or one with a new announcement, starts level with the next peer
        (unless banned): from zero, every trainer would send it all requests until it caught up.

        Raises ValueError: the stage does not exist; nothing is changed.
        """
        if not 0 <= stage < len(self._queues):
            raise ValueError(f"{peer.address} cannot serve stage {stage} of {len(self._queues)}")
        if (last_stage := self._stages.get(peer.address, stage)) != stage:
            self._queues[last_stage].remove(peer.address)
        self._stages[peer.address] = stage
        self._queues[stage].add(peer)

    def remove(self, peer: AnnouncedMember) -> None:
        """Remove a peer that has left. Does nothing if it has announced itself again."""
        queue = self._queue(peer)
        if queue is not None:
            queue.remove(peer.address)
            del self._stages[peer.address]

    def pick(self, stage: int, kind: PassKind, now: float) -> AnnouncedMember | None:
        """The peer to use next; None while all peers of the stage are banned, or it has none: see `available_at`."""
        return self._queues[stage].pick(kind, self._bans, now)

    def observe(self, peer: AnnouncedMember, kind: PassKind, seconds: float) -> None:
        """Record the seconds from a request to the last byte of its reply.

        Ignored if the peer has gone, or has announced itself again.

        Raises ValueError: the seconds are negative or not finite.
        """
        queue = self._queue(peer)
        if queue is not None:
            queue.times.observe(peer.address, kind, seconds)

    @contextmanager
    def under_way(self, peer: AnnouncedMember) -> Iterator[None]:
        """Count an open request to this peer while the block runs: peers with fewer open requests are picked first."""
        self._count(peer, 1)
        try:
            yield
        finally:
            self._count(peer, -1)

    def ban(self, peer: AnnouncedMember, now: float) -> float:
        """Stop picking a peer that failed or was late, until it announces itself again.

        It is also not picked before its ban ends; each ban soon after the last lasts twice as long. A late ban does
        not count after a new announcement.

        Returns: the moment from which it is picked again; `now` if nothing was changed.
        """
        stage = self._stages.get(peer.address)
        if stage is not None and self._queues[stage].members[peer.address] != peer:
            return now
        end = self._bans.ban(peer, now)
        self._bans.forget(self._members, now)
        return end

    def available_at(self, stage: int, now: float) -> float:
        """The first moment at which the stage has a peer to pick, if nothing changes: `now`, later, or infinity."""
        return min((self._bans.available_at(peer, now) for peer in self.peers(stage)), default=float("inf"))

    def peers(self, stage: int) -> Iterator[AnnouncedMember]:
        """The members that serve a stage, including banned ones."""
        return iter(self._queues[stage].members.values())

    def banned(self, now: float) -> Mapping[str, float]:
        """See `Bans.remaining`."""
        return self._bans.remaining(self._members, now)

    @property
    def _members(self) -> set[AnnouncedMember]:
        return {member for queue in self._queues for member in queue.members.values()}

    def _count(self, peer: AnnouncedMember, change: int) -> None:
        queue = self._queue(peer)
        if queue is not None:
            queue.count(peer.address, change)

    def _queue(self, peer: AnnouncedMember) -> "_StageQueue | None":
        """The stage's queue with this peer, if it has not announced itself again."""
        stage = self._stages.get(peer.address)
        queue = None if stage is None else self._queues[stage]
        return queue if queue is not None and queue.members[peer.address] == peer else None


class _Entry(NamedTuple):
    """A peer's place in its stage's heap; the smallest is next."""

    under_way: int
    seconds: float
    draw: float
    address: str


class _StageQueue:
    """The peers of one stage: first those with the fewest open requests, then with the least accumulated time.

    A banned peer leaves the heap when its turn comes, and returns at the minimum when its ban is over. Replaced entries
    stay in the heap until they reach its top.
    """

    def __init__(self, times: ReplyTimes, draw: random.Random):
        self.times, self._draw = times, draw
        self.members: dict[str, AnnouncedMember] = {}
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}
        self._under_way = Counter[str]()
        self._banned: set[str] = set()

    def add(self, peer: AnnouncedMember) -> None:
        if self.members.get(peer.address) == peer:
            return
        self.members[peer.address] = peer
        self.times.add(peer.address)
        del self._under_way[peer.address]
        self._enter(peer.address)

    def remove(self, address: str) -> None:
        del self.members[address]
        self.times.remove(address)
        self._entries.pop(address, None)
        self._banned.discard(address)
        del self._under_way[address]

    def count(self, address: str, change: int) -> None:
        self._under_way[address] = max(0, self._under_way[address] + change)
        if address in self._entries:
            self._put(address, self._entries[address].seconds)

    def pick(self, kind: PassKind, bans: Bans, now: float) -> AnnouncedMember | None:
        for address in [banned for banned in self._banned if bans.available_at(self.members[banned], now) <= now]:
            self._enter(address)
        while self._first() is not None:
            _, seconds, _, address = heapq.heappop(self._heap)
            del self._entries[address]
            if bans.available_at(self.members[address], now) <= now:
                self._put(address, seconds + self.times.expected_s(address, kind))
                return self.members[address]
            self._banned.add(address)
        return None

    def _enter(self, address: str) -> None:
        self._banned.discard(address)
        self._entries.pop(address, None)
        self._put(address, 0.0 if self._first() is None else self._heap[0].seconds)

    def _put(self, address: str, seconds: float) -> None:
        self._entries[address] = entry = _Entry(self._under_way[address], seconds, self._draw.random(), address)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > MIN_HEAP + 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def _first(self) -> str | None:
        """The address of the next peer; drops replaced entries."""
        while self._heap and self._entries.get(self._heap[0].address) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0].address if self._heap else None
