"""Peers that answer one question after another, and trainers that keep some in flight: by events, without a loop."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count

from pipelined.membership.bans import AnnouncedMember
from pipelined.swarm.trainer.routing import Router


class Fleet:
    """One stage.

    Args:
        speeds: microbatches a second of each peer, by address; may be changed at any time.
        trainers: each keeps `in_flight` microbatches under way.
        away: seconds that a question and its answer travel together, by (trainer, address).
    """

    def __init__(
        self,
        speeds: Mapping[str, float],
        trainers: int = 1,
        in_flight: int = 8,
        away: Mapping[tuple[int, str], float] | None = None,
    ):
        self.speeds, self.away, self.now = dict(speeds), away or {}, 0.0
        self.wirings = [Router(1, seed=trainer) for trainer in range(trainers)]
        self._free: Counter[str] = Counter()
        self._events: list[tuple[float, int, int, AnnouncedMember, float, ExitStack]] = []
        self._numbers = count()
        self._in_flight, self._idle = in_flight, trainers * in_flight
        for address in speeds:
            self.join(address)

    def join(self, address: str) -> None:
        for router in self.wirings:
            router.add(0, AnnouncedMember(address, 1))

    def run(self, answers: int) -> Counter[str]:
        """Let so many answers come; returns how many each peer gave."""
        if not self._events:
            for trainer in range(len(self.wirings)):
                for _ in range(self._in_flight):
                    self._ask(trainer)
        given: Counter[str] = Counter()
        for _ in range(answers):
            self.now, _, trainer, party, asked, under_way = heapq.heappop(self._events)
            under_way.close()
            self.wirings[trainer].observe(party, "forward", self.now - asked)
            given[party.address] += 1
            self._ask(trainer)
        return given

    def _ask(self, trainer: int) -> None:
        party = self.wirings[trainer].pick(0, "forward", self.now)
        assert party is not None
        under_way = ExitStack()
        under_way.enter_context(self.wirings[trainer].under_way(party))
        travel = self.away.get((trainer, party.address), 0.0)
        begins = max(self.now + travel / 2, self._free[party.address])
        self._free[party.address] = ends = begins + 1 / self.speeds[party.address]
        heapq.heappush(self._events, (ends + travel / 2, next(self._numbers), trainer, party, self.now, under_way))


def shares(given: Mapping[str, float], of: Sequence[str]) -> list[float]:
    """Each one's part of the sum, in percent."""
    total = sum(given.values())
    return [100 * given.get(each, 0) / total for each in of]
