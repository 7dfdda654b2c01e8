"""torch's own random numbers inside a stage (`torch.nn.Dropout` and similar): the same when a forward runs again.

Such layers draw from generators of the whole process. A forward that draws therefore runs alone in its process, with
the generators seeded by a key, and their state is restored afterwards. A forward that draws nothing, as in a model that
takes all its random numbers from `KeyedRandom`, may run at the same time as others.

A stage keys its random numbers by its own name. A module keys those of each of its layers by the layer's name where it
runs the layer by `run_layer`; then they do not depend on where the model is cut.

Source: `torch.utils.checkpoint` saves the generators' state for the same purpose. A key needs no memory, and gives the
same numbers after a resume.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

import torch

from pipelined.random.keyed_random import KeyedRandom, Within, current_random, drawing_from, seed_of

T = TypeVar("T")


class TorchRandom:
    """Runs the forwards of one module, and detects whether they draw from torch's generators.

    Args:
        device: the device of the module; a GPU has its own generator besides the CPU's.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._draws: bool | None = None

    @property
    def draws(self) -> bool:
        """Whether a forward has drawn random numbers."""
        return bool(self._draws)

    def run(self, forward: Callable[[], T], random: KeyedRandom, place: str) -> T:
        """Run a forward; with the same key and place it draws the same numbers again.

        Inside it `current_random` is `random`.

        Args:
            place: a name unique in the model, such as "stage 3".
        Cost: 15 µs. The first forward that draws after forwards that did not (a dropout rate that rises from 0) runs
            twice, and so writes its buffers twice.
        """
        with drawing_from(random):
            if self._draws is False:
                _TURNS.share()
                try:
                    marks = self._marks()
                    result = forward()
                    if marks == self._marks():
                        return result
                finally:
                    _TURNS.unshare()
            with _TURNS.alone(), Within(_RUNNING, self):
                result = self.seeded(forward, place)
                self._draws = self._draws or False
            return result

    def seeded(self, forward: Callable[[], T], place: str) -> T:
        """Run a forward with the generators seeded by the current microbatch and a place; note whether it draws."""
        random = current_random()
        assert random is not None
        with self.beginning(()):
            for generator in self._generators():
                generator.manual_seed(seed_of(random.seed, random.step, random.microbatch, place))
            marks = self._marks()
            result = forward()
            self._draws = self._draws or marks != self._marks()
            return result

    @contextmanager
    def beginning(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        """Run alone and begin with these states, if any; afterwards the generators have those of before."""
        with _TURNS.alone():
            earlier_states = self.states()
            try:
                self._set(states or earlier_states)
                yield
            finally:
                self._set(earlier_states)

    def _set(self, states: Sequence[torch.Tensor]) -> None:
        for generator, state in zip(self._generators(), states, strict=True):
            generator.set_state(state)

    def states(self) -> list[torch.Tensor]:
        """The states of the generators."""
        return [generator.get_state() for generator in self._generators()]

    def _marks(self) -> list[bytes]:
        """What tells the states apart; made without an operation of torch, which would let other threads run first."""
        return [generator.get_state().numpy().tobytes() for generator in self._generators()]

    def _generators(self) -> list[torch.Generator]:
        if self._device.type != "cuda":
            return [torch.default_generator]
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]


_RUNNING: ContextVar[TorchRandom | None] = ContextVar("forward that runs alone", default=None)


def run_layer(layer: Callable[[], T], place: str) -> T:
    """Run one layer of a module with random numbers of its own, keyed by the microbatch and its place.

    Outside training the layer just runs.
    """
    torch_random = None if torch.compiler.is_compiling() else _RUNNING.get()
    return layer() if torch_random is None else torch_random.seeded(layer, place)


def drawing_again() -> Callable[[], AbstractContextManager[None]]:
    """Contexts, for later and any thread, in which a piece of this forward draws what it draws from here on."""
    torch_random = _RUNNING.get()
    return partial(torch_random.beginning, torch_random.states()) if torch_random else nullcontext


@contextmanager
def seeded_alone(seed: int) -> Iterator[None]:
    """Run the block with torch's CPU generator seeded, while no forward and no other such block runs in this process.

    The generator's state is restored afterwards.
    """
    with _TURNS.alone(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class _Turns:
    """A lock for several threads together or one alone: ranks in one process share torch's generators."""

    def __init__(self) -> None:
        self._lock, self._running, self._owner = threading.RLock(), 0, 0  # no thread has the number 0
        self._changed = threading.Condition(self._lock)

    def share(self) -> None:
        """Hold the lock together with other sharing threads, until `unshare`; waits while a thread is alone."""
        with self._lock:  # entered by one call, where a condition takes two
            while self._owner:
                self._changed.wait()
            self._running += 1

    def unshare(self) -> None:
        with self._lock:
            self._running -= 1
            if self._owner:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone; other threads wait. Its holder may take it again: a layer may build a row of layers."""
        if self._owner == threading.get_ident():
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._owner)
            self._owner = threading.get_ident()
            self._changed.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._changed:
                self._owner = 0
                self._changed.notify_all()


_TURNS = _Turns()
