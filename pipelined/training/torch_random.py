"""torch's own random numbers inside a stage (`torch.nn.Dropout` and similar): the same when a forward runs again.

Such layers draw from generators of the whole process. A forward that draws therefore runs alone in its process, with
the generators seeded by a key, and their state is restored afterwards. A forward that draws nothing, as in a model that
takes all its random numbers from `KeyedRandom`, may run at the same time as others.

Source: `torch.utils.checkpoint` saves the generators' state for the same purpose. A key needs no memory, and gives the
same numbers after a resume.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from pipelined.training.keyed_random import KeyedRandom, seed_of

T = TypeVar("T")


class TorchRandom:
    """Runs the forwards of one module, and detects whether they draw from torch's generators.

    Args:
        device: the device of the module; a GPU has its own generator besides the CPU's.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._draws: bool | None = None

    def run(self, forward: Callable[[], T], random: KeyedRandom, place: str) -> T:
        """Run a forward; with the same key and place it draws the same numbers again.

        Args:
            place: a name unique in the model, such as "stage 3".
        Cost: 20 µs. The first forward that draws after forwards that did not (a dropout rate that rises from 0) runs
            twice, and so writes its buffers twice.
        """
        if self._draws is False:
            with _TURNS.shared():
                before = self._states()
                result = forward()
                if _same(before, self._states()):
                    return result
            self._draws = True
        with _TURNS.alone(), self._seeded(seed_of(random.seed, random.step, random.microbatch, place)) as begun:
            result = forward()
            if self._draws is None:
                self._draws = not _same(begun, self._states())
        return result

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[list[torch.Tensor]]:
        before = self._states()
        try:
            for generator in self._generators():
                generator.manual_seed(seed)
            yield self._states()
        finally:
            for generator, state in zip(self._generators(), before, strict=True):
                generator.set_state(state)

    def _states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators()]

    def _generators(self) -> list[torch.Generator]:
        if self._device.type != "cuda":
            return [torch.default_generator]
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]


def _same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


class _Turns:
    """A lock for several threads together or one alone: ranks in one process share torch's generators."""

    def __init__(self) -> None:
        self._changed, self._running, self._taken = threading.Condition(), 0, False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with other sharing threads; waits while a thread is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone; other threads wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)
            self._taken = True
            self._changed.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()


_TURNS = _Turns()
