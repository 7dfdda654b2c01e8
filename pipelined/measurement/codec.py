"""What a codec makes of the messages between stages: how much of them travels, and how long they spend in it.

The rule: messages are taken for normal numbers, as activations nearly are; a lossless codec may make another thing of
what they really are. No torch.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelined.actors.actor import Actor
from pipelined.actors.agree import gather
from pipelined.aio.clock import Clock
from pipelined.measurement.effort import Effort
from pipelined.measurement.fit import Sample, fit
from pipelined.training.compression import NONE
from transports import pack, unpack


@dataclass(frozen=True)
class Coding:
    """What becomes of a message; as it stands here, nothing.

    Args:
        ratio: bytes that travel, of those there were.
        fixed: seconds a message spends in the codec on both sides, however short it is.
        per_byte: seconds more for each byte there was.
    """

    ratio: float = 1.0
    fixed: float = 0.0
    per_byte: float = 0.0

    def bytes(self, true: int) -> int:
        """What travels of so many bytes."""
        return round(self.ratio * true)

    def seconds(self, true: float) -> float:
        """What a message of so many bytes spends in the codec; one of none is never sent."""
        return self.fixed + self.per_byte * true if true else 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"ratio": self.ratio, "fixed": self.fixed, "per_byte": self.per_byte}


def ratio_of(codec: str) -> float:
    """Bytes that travel of a message, for each of its own; of a message of 256 KiB."""
    array = _message(1 << 18)
    return 1.0 if codec == NONE else pack(codec, [array]).nbytes / array.nbytes


async def measure_coding(
    actor: Actor, clock: Clock, codec: str, tell: Callable[[str], None], effort: Effort
) -> Coding | None:
    """Time a codec on all ranks at once, in threads as training has it; rank 0 gets the answer for the slowest.

    Args:
        codec: a name that `transports.find_codec` knows, or none.
    """
    if codec == NONE:
        return None if actor.rank else Coding()
    tell(f"timing the codec {codec}")
    mine = [[await _there_and_back(clock, codec, size) for _ in range(effort.repeats)] for size in effort.hops]
    everyone = await gather(actor.transport, "coded", mine)
    if actor.rank:
        return None
    slowest = [[max(ranks) for ranks in zip(*told, strict=True)] for told in zip(*everyone, strict=True)]
    found = fit([Sample((1.0, float(size)), tuple(taken)) for size, taken in zip(effort.hops, slowest, strict=True)])
    return Coding(ratio_of(codec), *found.values)


async def _there_and_back(clock: Clock, codec: str, nbytes: int) -> float:
    array = _message(nbytes)
    start = clock.now()
    packed = await asyncio.to_thread(pack, codec, [array])
    await asyncio.to_thread(unpack, packed.blocks, packed.note)
    return clock.now() - start


def _message(nbytes: int) -> np.ndarray:
    return np.random.default_rng(nbytes).standard_normal(nbytes // 4, np.float32)
