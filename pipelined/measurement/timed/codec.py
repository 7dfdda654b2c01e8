"""Timing of a codec on messages between stages: the share of bytes on the wire, and the seconds of coding.

The timed messages are normally distributed numbers, as activations nearly are; the ratio of a lossless codec may differ
on activations. No torch.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.aio.clock import Clock
from pipelined.measurement.effort import Effort
from pipelined.measurement.fit import Sample, fit
from pipelined.training.exchange.compression import NONE
from transports import pack, unpack


@dataclass(frozen=True)
class CodecCosts:
    """The effect of a codec on a message; the defaults mean that there is no codec.

    Args:
        ratio: bytes on the wire per byte of the message.
        fixed: seconds of coding on both sides together, for a message of any size.
        per_byte: additional seconds per byte of the message.
    """

    ratio: float = 1.0
    fixed: float = 0.0
    per_byte: float = 0.0

    def bytes(self, nbytes: int) -> int:
        """The bytes on the wire of a message of `nbytes` bytes."""
        return round(self.ratio * nbytes)

    def seconds(self, nbytes: float) -> float:
        """The seconds of coding of a message of `nbytes` bytes; 0 for an empty message, which is never sent."""
        return self.fixed + self.per_byte * nbytes if nbytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"ratio": self.ratio, "fixed": self.fixed, "per_byte": self.per_byte}


def ratio_of(codec: str, dtype: str = "float32") -> float:
    """Bytes on the wire per byte of a message, for a message of 256 KiB.

    Args:
        dtype: float64; any other dtype is sent as float32.
    """
    array = _message(1 << 18).astype(np.float64 if dtype == "float64" else np.float32)
    return 1.0 if codec == NONE else pack(codec, [array]).nbytes / array.nbytes


async def measure_coding(
    actor: Actor, clock: Clock, codec: str, progress: Callable[[str], None], effort: Effort
) -> CodecCosts | None:
    """Time a codec on all ranks at once, in threads as in training; rank 0 gets the result of the slowest rank.

    Args:
        codec: a name that `transports.find_codec` accepts, or "none".
    """
    if codec == NONE:
        return None if actor.rank else CodecCosts()
    progress(f"timing the codec {codec}")
    sizes = effort.message_sizes
    times = [[await _coding_seconds(clock, codec, size) for _ in range(effort.repeats)] for size in sizes]
    times_by_rank = await gather_objects(actor.transport, "coded", times)
    if actor.rank:
        return None
    samples = []
    for size, times_of_ranks in zip(sizes, zip(*times_by_rank, strict=True), strict=True):
        slowest = [max(repetition) for repetition in zip(*times_of_ranks, strict=True)]
        samples.append(Sample((1.0, float(size)), tuple(slowest)))
    return CodecCosts(ratio_of(codec), *fit(samples).values)


async def _coding_seconds(clock: Clock, codec: str, nbytes: int) -> float:
    array = _message(nbytes)
    start = clock.now()
    packed = await asyncio.to_thread(pack, codec, [array])
    await asyncio.to_thread(unpack, packed.blocks, packed.note)
    return clock.now() - start


def _message(nbytes: int) -> np.ndarray:
    return np.random.default_rng(nbytes).standard_normal(nbytes // 4, np.float32)
