"""The setting of a swarm of emulated devices, and the result of a run: what benchmarks of swarms give and get.

Numbers alone; `benchmarks.swarm.actors` runs them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.swarm.devices import CodingTime, Work
from transports import pack


@dataclass(frozen=True)
class Actors:
    """A swarm.

    Args:
        stages: the speeds of each stage's peers.
        slots: microbatches that each trainer keeps under way.
        batch: of a step.
        rtt: seconds there and back between any two parties.
        bandwidth: bytes a second, each way, of every peer's line.
        tensor: bytes of what travels between two stages, uncoded; a backward's question has two of them.
        jitter: seconds by which a message takes more or less than half of `rtt`.
        codec: for these tensors.
        most_numbers: of a tensor as it is played; so many that what is said beside them is little.
        coding: what that takes beside the device.
        sums, sums_codec, piece: bytes of a stage's gradients, how they are coded, and what goes of them at once.
        trainers: how many there are.
        delayed: whether updates come one step late, so that the next step is computed while one is summed.
    """

    stages: Sequence[Sequence[float]]
    work: Work
    slots: int
    batch: int
    rtt: float = 0.0
    bandwidth: float = float("inf")
    tensor: float = 0.0
    jitter: float = 0.0
    codec: str = ""
    most_numbers: int = 1 << 15
    coding: CodingTime = field(default_factory=CodingTime)
    sums: float = 0.0
    sums_codec: str = ""
    piece: float = 4 << 20
    trainers: int = 1
    delayed: bool = False

    @property
    def scale(self) -> float:
        return max(1.0, self.tensor / 4 / self.most_numbers)

    @property
    def elements(self) -> int:
        """Float32 numbers of a tensor."""
        return max(1, round(self.tensor / 4 / self.scale))

    @property
    def outside(self) -> np.ndarray:
        """What the first stage is given, and the last one's labels: as many bytes as tensors between stages are."""
        coded = pack(self.codec, [np.ones(self.elements, np.float32)]) if self.codec else None
        return np.zeros(coded.nbytes if coded else 4 * self.elements, np.uint8)


@dataclass(frozen=True)
class Step:
    """What a step took, or a stretch of one.

    Args:
        seconds: from its beginning to its end, a step's commit included.
        passes: until the last forward or backward of any device.
        busy: seconds that devices computed forward and backward, all together.
        devices: how many there are.
        answers: of peers to trainers, by name, of all steps that were measured.
    """

    seconds: float
    passes: float
    busy: float
    devices: int
    answers: Mapping[str, int] = field(default_factory=dict)

    @property
    def utilisation(self) -> float:
        """Of all devices."""
        return self.busy / self.devices / self.seconds
