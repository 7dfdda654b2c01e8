"""The interface to a peer's computation (parameters, gradient sums, optimizer of one stage), and the coding of tensors.

Results depend on parameters and arguments alone, so that a microbatch that another peer computes again gives the same
bits. Methods run on the peer's device, one at a time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from pipelined.membership.messaging.fields import Malformed
from pipelined.state.stages.stateful_stage import StatefulStage
from transports import Block, WireError, pack, unpack


@dataclass(frozen=True, slots=True)
class Microbatch:
    """The name of a microbatch: any process can find its data from the seed and this name."""

    step: int
    index: int


class BackwardResult(NamedTuple):
    """The result of a backward pass.

    Args:
        gradients: of the stage's inputs, in their order; none for inputs without gradients (tokens).
        loss: summed over the microbatch's samples, on the last stage; all gradients are of this very number.
    """

    gradients: Sequence[Any]
    loss: float | None = None


class NotFinite(ValueError):
    """A result is infinite or not a number; nothing of it was counted."""


class SwarmStage(StatefulStage, Protocol):
    """One stage.

    Attributes:
        model: a digest of the stage and of the code that computes it, the same on all peers of one swarm.
        maxima: how many of the last values of `sums` are the largest of what was counted, not the sum of it: peers
            combine these by the larger, see `add_sums`.
    """

    model: str
    maxima: int

    def expects(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each input of `forward` (and of its gradients), the batch first."""

    def expects_given(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """The same for the `given` of `backward`: gradients of the outputs, or the last stage's labels."""

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[Any]:
        """Compute outputs for the next stage; keeps nothing. Not called on the last stage.

        Raises:
            NotFinite: the outputs are not finite.
        """

    def backward(
        self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool
    ) -> BackwardResult:
        """Compute forward again, then backward.

        Args:
            given: gradients of the outputs, or, on the last stage, the labels.
            count: add the parameters' gradients to `sums`; else discard them.
        Raises:
            NotFinite: the loss or a gradient is not a finite number.
        """

    def evaluate(self, inputs: Sequence[Block], labels: Sequence[Block] = ()) -> Sequence[Any]:
        """Compute forward for validation data, without random numbers; nothing is kept or counted.

        Args:
            labels: for the last stage alone; with fewer samples than the inputs if only the first samples count.
        Returns: outputs for the next stage; the last one returns a float64 array with the loss of each counted sample.
        Raises:
            NotFinite: as `forward` and `backward`.
        """

    def fits(self, total: np.ndarray) -> bool:
        """Whether a total can be applied. If not, the step is computed again after `apply` with a scale of 0."""

    def square(self, total: np.ndarray) -> float:
        """The sum of the squares of a gradient, in float64: this stage's part of the global norm."""

    def parts(self, flat: np.ndarray) -> Mapping[str, Any]:
        """Views of an array with the layout of `sums`, each parameter's by its name."""


def add_sums(sums: np.ndarray, addends: np.ndarray, maxima: int) -> None:
    """Add another peer's sums, or a part of them, to these in place.

    Args:
        maxima: how many of the last values are combined by the larger.
    """
    added = max(0, sums.size - maxima)
    sums[:added] += addends[:added]
    np.maximum(sums[added:], addends[added:], out=sums[added:])


T = TypeVar("T")
Coded = tuple[tuple[Any, ...], Any]
"""Blocks as they are sent, and the note that describes the coding; None: not coded."""


class Coding:
    """The coding of one process. A trainer forwards a coded tensor between two stages without decoding it.

    Coding runs beside the device's computing, and beside the event loop if there are threads (not on a virtual clock).

    Args:
        codec: of `transports.find_codec`; "": none.
        threads: whether coding runs in threads.
    """

    def __init__(self, codec: str = "", threads: bool = True):
        self.codec, self.threads = codec, threads

    async def pack(self, arrays: Sequence[Any], what: str) -> Coded:
        """Code arrays. Raises WireError: values that the codec cannot carry."""
        if not self.codec:
            return tuple(arrays), None
        packed = await self.in_background(lambda: pack(self.codec, arrays, what))
        return tuple(packed.blocks), packed.note

    async def unpack(self, blocks: Sequence[Block], note: Any, max_bytes: int) -> tuple[Block, ...]:
        """Decode blocks into at most this many bytes.

        Raises:
            Malformed: the blocks are not a coded message, or are larger.
        """
        if note is None:
            return tuple(blocks)
        try:
            return await self.in_background(lambda: unpack(blocks, note, max_bytes))
        except WireError as error:
            raise Malformed(str(error)) from error

    async def in_background(self, work: Callable[[], T]) -> T:
        """Run slow work in a thread, if there are threads."""
        return await asyncio.to_thread(work) if self.threads else work()
