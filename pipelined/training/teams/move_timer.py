"""Seconds that a member of a team takes to move tensors, by phase."""

from collections import defaultdict, deque
from functools import partial
from statistics import median

import torch

from pipelined.aio.clock import Clock
from pipelined.programs.updates.bucket_names import Stages
from pipelined.sharding import MeshGroups, Path
from pipelined.sharding.shared_memory import StartedMove

PASSES = 1000
"""The passes of each phase that are kept, the last ones."""


class MoveTimer:
    """Carries pieces, and adds up the seconds of their moves by pass; waits for other members count.

    Args:
        stages: whose pieces these are.

    Attributes:
        rank: this rank's number in the meshes.
    """

    def __init__(self, stages: Stages, network: MeshGroups, clock: Clock):
        self.stages = stages
        self.rank = network.rank
        self.network = network
        self._clock = clock
        self._phase = ""
        self._passes = defaultdict[str, deque[float]](partial(deque, maxlen=PASSES))

    def start_pass(self, phase: str) -> None:
        self._phase = phase
        self._passes[phase].append(0.0)

    def resume(self, phase: str) -> None:
        """Go on with the last pass of a phase."""
        self._phase = phase

    async def carry(self, path: Path, array: torch.Tensor) -> torch.Tensor:
        """See `MeshGroups.carry`."""
        start = self._clock.now()
        phase = self._phase
        carried: torch.Tensor = await self.network.carry(path, array)
        self._passes[phase][-1] += self._clock.now() - start
        return carried

    def start(self, path: Path, array: torch.Tensor) -> StartedMove | None:
        """See `MeshGroups.start`."""
        start = self._clock.now()
        started = self.network.start(path, array)
        if started is not None:
            self._passes[self._phase][-1] += self._clock.now() - start
        return started

    async def finish(self, move: StartedMove) -> torch.Tensor:
        """See `MeshGroups.finish`."""
        start = self._clock.now()
        phase = self._phase
        moved: torch.Tensor = await self.network.finish(move)
        self._passes[phase][-1] += self._clock.now() - start
        return moved

    @property
    def seconds(self) -> dict[str, float]:
        """The median of a phase's passes."""
        return {phase: median(passes) for phase, passes in self._passes.items()}
