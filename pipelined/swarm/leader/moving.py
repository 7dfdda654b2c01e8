"""When peers are told to change stage: with the commit of a step, once in so many seconds.

The one rule: who has just come to a stage stays there until others were looked at. Knows loads and who is on the way;
who is to move is decided by `rebalance`, from these alone.
"""

from collections.abc import Callable, Mapping, Sequence

from pipelined.aio.clock import Clock

Moves = Callable[[Sequence[Mapping[str, float | None]]], Mapping[str, int]]
"""By stage, each peer's load, None of those on their way there; who is to go to which stage."""


class Moving:
    """One conductor's looks at the stages' loads.

    Args:
        moves: decides who changes stage.
        every: seconds between two looks; 0: never.
    """

    def __init__(self, moves: Moves, every: float, clock: Clock):
        self._moves, self._every, self._clock = moves, every, clock
        self._looked, self._moved = clock.now(), set[str]()

    def due(self, coming: Sequence[Mapping[str, None]], loads: Sequence[Mapping[str, float]]) -> dict[str, int]:
        """Who is to go to which stage now.

        Args:
            coming: by stage, who is on its way there.
            loads: by stage, what those who are there said.
        """
        now = self._clock.now()
        if not self._every or now - self._looked < self._every:
            return {}
        self._looked = now
        moves = self._moves([there | here for there, here in zip(coming, loads, strict=True)])
        moved, self._moved = self._moved, set(moves)
        return {name: stage for name, stage in moves.items() if name not in moved}
