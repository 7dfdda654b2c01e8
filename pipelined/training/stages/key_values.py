"""Keys and values of attention: a forward that continues a prompt computes the newest tokens alone.

It uses those that its attentions kept of the tokens before. Modules find these in the context in which they run, so a
forward takes its input alone.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import torch

from pipelined.training.exchange.parcels import Tree

T = TypeVar("T")


class KeyValueCache:
    """The keys and values that a stage keeps of the tokens that it has seen, so that each is computed once.

    Attentions are told apart by the order in which a forward calls them, so that layers with one set of parameters have
    keys and values of their own.

    Attributes:
        length: tokens that were seen, S.
    """

    def __init__(self) -> None:
        self.length, self._call = 0, 0
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values: of every attention 2 · B · G · S · K numbers, for G heads of K numbers each."""
        return sum(tensor.nbytes for pair in self._kept.values() for tensor in pair)

    def forget(self) -> None:
        """Let the next forward begin a sequence."""
        self.length = 0
        self._kept = {}

    def run(self, module: Callable[[torch.Tensor], Tree], x: torch.Tensor) -> Tree:
        """Run a forward of the tokens after those that were seen.

        Shapes: x (B, T) or (B, T, C).
        Cost: an attention copies what it keeps once.
        """
        y = self.run_work(lambda: module(x))
        self.advance(x.shape[1])
        return y

    def run_work(self, work: Callable[[], T]) -> T:
        """Do a part of such a forward, whose attentions come in one order each time; `advance` ends the forward."""
        token = _PAST.set(self)
        try:
            return work()
        finally:
            _PAST.reset(token)

    def advance(self, tokens: int) -> None:
        """End a forward of this number of tokens."""
        self.length, self._call = self.length + tokens, 0

    def extend(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What this call of an attention kept, with its newest keys and values behind; see `with_past`."""
        if self._call in self._kept:
            pairs = zip(self._kept[self._call], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=2) for pair in pairs)
        self._kept[self._call] = key, value
        self._call += 1
        return key, value


_PAST: ContextVar[KeyValueCache | None] = ContextVar("what the tokens of a forward continue", default=None)


def tokens_before() -> int:
    """How many tokens of the sequence were seen before those of this forward."""
    past = None if torch.compiler.is_compiling() else _PAST.get()
    return past.length if past else 0


def token_positions(tokens: int, device: torch.device) -> torch.Tensor:
    """The positions of the tokens of this forward in their sequence, (T): they follow those that were seen."""
    return torch.arange(tokens_before(), tokens_before() + tokens, device=device)


def with_past(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all tokens up to those of this forward: each (B, G, T, K) in, (B, G, S + T, K) out."""
    past = None if torch.compiler.is_compiling() else _PAST.get()
    return past.extend(key, value) if past else (key, value)
