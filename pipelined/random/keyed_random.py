"""Random numbers that do not depend on the arrangement: every draw has a key; no two draws share a stream.

The mask for (seed, step, global microbatch, place) is the same on one process and on sixty-four, and the same when it
is recomputed. A module finds the key of its microbatch in the context in which its forward runs (`current_random`), so
a forward takes its input alone.
"""

import hashlib
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from pipelined.random.mask import keep_mask

T = TypeVar("T")


def keyed_generator(*key: int | str) -> torch.Generator:
    """A new generator on the CPU; its stream is a function of the key alone."""
    return torch.Generator().manual_seed(seed_of(*key))


def seed_of(*key: int | str) -> int:
    """A seed that is a function of the key alone, 0 … 2**63 - 1."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1


def layer_seed(seed: int, step: int, microbatch: int, layer: str) -> int:
    """The seed of torch's generators while a layer of a `Sequential` computes one microbatch.

    A plain loop that calls `torch.manual_seed` with it before each layer draws the same random numbers.

    Args:
        seed: the seed of the run.
        step: the step, from 0.
        microbatch: the microbatch of the step, in the order of the batch's rows, from 0.
        layer: the layer's name, the first part of the names of its tensors.
    """
    return seed_of(seed, step, microbatch, place_of_layer(layer))


def place_of_layer(layer: str) -> str:
    """The key of a layer, beside those of a model's own places."""
    return f"layer {layer}"


@dataclass(frozen=True)
class KeyedRandom:
    """The random numbers of one computation in the run, keyed by seed, step and microbatch.

    Args:
        seed: the seed of the run.
        step: the step, from 0.
        microbatch: the global microbatch, 0 … N·W-1.
    """

    seed: int
    step: int
    microbatch: int

    def key(self, place: str) -> int:
        """The key of a dropout's mask.

        Args:
            place: a name unique in the model, such as "h.3.mlp".
        """
        return seed_of(self.seed, self.step, self.microbatch, place)

    def dropout(self, x: torch.Tensor, p: float, place: str) -> torch.Tensor:
        """Zero each element with probability p and scale the rest by 1/(1-p).

        An element's mask is a hash of the key and of its index, whatever the dtype or device of x.
        """
        return x if p == 0.0 else x * self.mask(x, p, place) / (1.0 - p)

    def mask(self, x: torch.Tensor, p: float, place: str) -> torch.Tensor:
        """Which elements of x the dropout keeps: True where it does; see `keep_mask`."""
        return keep_mask(p, self.key(place), x.shape, [((0, size),) for size in x.shape], x.device)


_CURRENT: ContextVar[KeyedRandom | None] = ContextVar("random numbers of a microbatch", default=None)


def current_random() -> KeyedRandom | None:
    """The random numbers of the microbatch that this thread computes; None outside training, as in an evaluation."""
    return _CURRENT.get()


class Within(AbstractContextManager[None], Generic[T]):
    """Inside the `with` block a variable has this value on this thread; for one use. A generator would cost thrice."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T):
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *error: object) -> None:
        self._variable.reset(self._token)


def drawing_from(random: KeyedRandom | None) -> Within[KeyedRandom | None]:
    """Inside the `with` block forwards on this thread draw from these random numbers."""
    return Within(_CURRENT, random)


def drops(p: float) -> bool:
    """Whether a dropout of probability p drops anything: in training, as every compiled forward is."""
    return p != 0.0 and (torch.compiler.is_compiling() or _CURRENT.get() is not None)


def dropout(x: torch.Tensor, p: float, place: str) -> torch.Tensor:
    """`KeyedRandom.dropout` of the current microbatch; x itself outside training."""
    if torch.compiler.is_compiling():  # a compiler cannot look into a context
        return x if p == 0.0 else x * _mask(x, p, place) / (1.0 - p)
    random = None if p == 0.0 else _CURRENT.get()
    return x if random is None else random.dropout(x, p, place)


@torch.library.custom_op("pipelined::keyed_mask", mutates_args=())
def _mask(x: torch.Tensor, p: float, place: str) -> torch.Tensor:
    """The mask of the current microbatch: one operation to a compiler, which looks the microbatch up when it runs."""
    random = _CURRENT.get()
    assert random is not None, "a compiled forward runs in training alone"
    return random.mask(x, p, place)


@_mask.register_fake
def _(x: torch.Tensor, p: float, place: str) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=torch.bool)
