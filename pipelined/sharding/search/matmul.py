"""A matrix multiplication split three ways, p = p0·p1·p2, and the ring passes that it takes in each phase of a step.

The input I (m x k) has layout (S0:p0, B:p1, S1:p2), the weight W (k x n) has (B:p0, S1:p1, S0:p2), and the output O
(m x n) has (S0:p0, S1:p1, P:p2). Between operators a tensor is split over all p ranks, so that I is gathered over p1
and O summed and scattered over p2; in the backward the same with their gradients. Gradients of W are summed over p0.
Source: AutoDDL, section 4.2.2; ZeRO, section 5.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from pipelined.sharding.factors import Factors

STATES = ("none", "zero1", "zero2", "zero3")
"""What the p0 replicas of a weight split: nothing, the moments, also the gradients, also the weights (ZeRO)."""
STATE_NUMBERS = 4
"""Numbers held for each weight where nothing is split: the weight, its gradient, and AdamW's two moments."""


Split = tuple[Factors, ...]
"""Factors of each level of the machine: one, or first those over nodes and then those over the ranks of a node."""


def divisors(number: int) -> list[int]:
    """The divisors of a number, ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def factorizations(ranks: int) -> list[Factors]:
    """All p0·p1·p2 = ranks; for 2^j ranks (j + 1)(j + 2)/2 of them."""
    return [
        Factors(rows, columns, ranks // rows // columns)
        for rows in divisors(ranks)
        for columns in divisors(ranks // rows)
    ]


def splits(levels: tuple[int, ...]) -> list[Split]:
    """All splits over the levels of a machine: the numbers of factorizations multiply."""
    return list(product(*map(factorizations, levels)))


def whole(split: Split) -> Factors:
    """The factors over all levels together."""
    return Factors(*map(prod, zip(*split, strict=True)))


class RingPasses(NamedTuple):
    """Passes over a ring of ranks, each an all-gather or a reduce-scatter; an all-reduce is two passes.

    Args:
        phase: forward, backward or update.
        axis: the factor that counts the ring's ranks, by its index in `Factors`.
        length: elements of the array that each pass gathers or reduces.
        passes: their number in a step.
        sums: those of them that add.
        of_embedding: they belong to the embedding that the weight is as well.
        all_reduces: pairs of passes, one of which adds, that are one move.
    """

    phase: str
    axis: int
    length: float
    passes: int
    sums: int = 0
    of_embedding: bool = False
    all_reduces: int = 0

    def elements(self, ranks: int) -> float:
        """What each rank sends in a step."""
        return self.passes * (ranks - 1) / ranks * self.length

    def in_parts(self, parts: int) -> "RingPasses":
        """The passes over all of some equal parts of the array, one part at a time."""
        passes, sums, all_reduces = (parts * count for count in (self.passes, self.sums, self.all_reduces))
        return self._replace(length=self.length / parts, passes=passes, sums=sums, all_reduces=all_reduces)


ROWS, COLUMNS, CONTRACTION = range(3)


@dataclass(frozen=True)
class Matmul:
    """The sizes of a multiplication in a step.

    Args:
        tokens: rows of I and O in a whole step (m).
        inputs: columns of I, rows of W (k).
        outputs: columns of W and O (n).
        taps: places of a convolution's kernel, each with a W of its own; the tokens are images times places.
        of_ids: the input is given as one index a row, as an embedding's: it is neither gathered nor has a gradient.
        embeds: the transpose of W is also the embedding of the same tokens, of which only indices arrive.
    """

    tokens: int
    inputs: int
    outputs: int
    of_ids: bool = False
    embeds: bool = False
    taps: int = 1

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.taps

    def rings(
        self, factors: Factors, microbatches: int = 1, state: str = "none", regather_input: bool = False
    ) -> Iterator[RingPasses]:
        """The passes of a step.

        Args:
            microbatches: N; the tokens are cut into N parts, and each passes by itself.
            state: one of `STATES`.
            regather_input: the gathered input is dropped after the forward and gathered again in the backward.
        """
        panels = self.panels(factors, state, regather_input)
        for ring in self._rings(factors, microbatches, state, regather_input):
            looped = panels > 1 and ring.axis != CONTRACTION and ring.phase != "update"
            yield ring.in_parts(panels) if looped else ring

    def panels(self, factors: Factors, state: str, regather_input: bool) -> int:
        """The panels in which weights and inputs are gathered, see `SplitMatmul.panels`; 1: they are gathered whole."""
        rows, columns, _ = factors
        return max(rows, columns) if state == "zero3" and regather_input and min(rows, columns) > 1 else 1

    def _rings(self, factors: Factors, microbatches: int, state: str, regather_input: bool) -> Iterator[RingPasses]:
        rows, columns, contraction = factors
        part = self.tokens / microbatches
        gathered, reduced = part * self.inputs / (rows * contraction), part * self.outputs / (rows * columns)
        if not self.of_ids:
            yield RingPasses("forward", COLUMNS, gathered, microbatches)
            yield RingPasses("backward", COLUMNS, gathered, microbatches * (2 if regather_input else 1), microbatches)
        yield RingPasses("forward", CONTRACTION, reduced, microbatches, microbatches)
        yield RingPasses("backward", CONTRACTION, reduced, microbatches)
        if self.embeds:  # the vocabulary is the contraction of the embedding
            yield RingPasses("forward", COLUMNS, gathered, microbatches, microbatches, of_embedding=True)
            yield RingPasses("backward", COLUMNS, gathered, microbatches, of_embedding=True)
        length = self.weights / (columns * contraction)
        yield from self._weight_rings(length, microbatches, state)
        if self.embeds and state in ("zero2", "zero3"):  # each use has a gradient, and with zero3 gathers the weight
            uses = self._weight_rings(length, microbatches, state)
            yield from (ring._replace(of_embedding=True) for ring in uses if ring.phase != "update")

    def _weight_rings(self, length: float, microbatches: int, state: str) -> Iterator[RingPasses]:
        if state in ("none", "zero1"):  # an all-reduce; or gradients are scattered, and weights gathered
            yield RingPasses("update", ROWS, length, 2, 1, all_reduces=int(state == "none"))
        elif state == "zero2":
            yield RingPasses("backward", ROWS, length, microbatches, microbatches)
            yield RingPasses("update", ROWS, length, 1)
        else:
            yield RingPasses("forward", ROWS, length, microbatches)
            yield RingPasses("backward", ROWS, length, 2 * microbatches, microbatches)

    def state_numbers(self, factors: Factors, state: str = "none") -> float:
        """Numbers of weights, gradients and moments that each rank holds."""
        rows, columns, contraction = factors
        state_index = STATES.index(state)
        replicated = (4, 2, 1, 0)[state_index]  # of the four numbers of a weight, those that every replica holds
        split = STATE_NUMBERS - replicated
        return (replicated + split / rows) * self.weights / (columns * contraction)

    def kept_numbers(self, factors: Factors, microbatches: int = 1) -> float:
        """Numbers of a microbatch's gathered input beyond the rank's own part of it, where it is not gathered again."""
        rows, columns, contraction = factors
        whole_input = self.tokens / microbatches * self.inputs
        return whole_input / (rows * contraction) * (1 - 1 / columns)
