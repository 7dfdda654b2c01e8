"""The spaces of strategies, and the search's problem that a chain and a machine make of one.

`paper`: each operator p0·p1·p2, its state whole. `full`: also ZeRO-1, -2 and -3 by operator, inputs kept or gathered
anew, and the streams between operators cut by tokens as they like.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.matmul import COLUMNS, STATES, Factors, RingPasses, Split, splits, whole
from pipelined.sharding.search.network import GroupShape, Network
from pipelined.sharding.search.problem import Choice, Numbers, Problem
from pipelined.sharding.search.streams import Exchange, Stream, cuts, entering, leaving, paper

SPACES = ("paper", "full")


class Option(NamedTuple):
    """One way to split an operator.

    Args:
        split: its factors at each level of the machine.
        state: one of `STATES`.
        anew: the gathered input is gathered again in the backward.
    """

    split: Split
    state: str = "none"
    anew: bool = False


@dataclass(frozen=True)
class Setting:
    """A chain on a machine, in a step of so many microbatches.

    Args:
        chain: what is split.
        levels: ranks; or nodes, and ranks of a node.
        network: the links.
        microbatches: of a step.
        wide: streams may be cut anywhere between their operators' cuts; else only as the paper has it.
    """

    chain: Chain
    levels: tuple[int, ...]
    network: Network
    microbatches: int = 1
    wide: bool = False

    @property
    def ranks(self) -> int:
        return prod(self.levels)

    @property
    def by_streams(self) -> bool:
        """Whether streams are chosen as well: the paper's rule knows none, but also no residual that comes back."""
        return self.wide or self.chain.has_residual

    def options(self, operator: Operator, replicas: int | None = None, full: bool = False) -> list[Option]:
        """All ways to split an operator.

        Args:
            replicas: the largest p0; None: any.
            full: also split states, and inputs that are gathered anew where activations count as memory.
        """
        found = []
        for split in self._splits:
            factors = whole(split)
            if (replicas is None or factors.rows <= replicas) and self._fits_core(operator, factors):
                states = STATES if full and factors.rows > 1 else STATES[:1]
                again = (False, True) if full and self.chain.keeps and factors.columns > 1 else (False,)
                found += [Option(split, state, anew) for state in states for anew in again]
        return found

    @cached_property
    def _splits(self) -> list[Split]:
        return splits(self.levels)

    def _fits_core(self, operator: Operator, factors: Factors) -> bool:
        """Whether attention's core has a sequence and a head for every rank."""
        if operator.sequences is not None and factors.rows > operator.sequences:
            return False
        return operator.heads is None or factors.columns * factors.contraction <= operator.heads

    def rings(self, operator: Operator, option: Option) -> list[tuple[RingPasses, GroupShape]]:
        """The ring passes of an operator in a step, each with its ranks."""
        factors = whole(option.split)
        rings = operator.matmul.rings(factors, self.microbatches, option.state, option.anew)
        return [(ring, _group(option.split, ring.axis)) for ring in rings]

    def ring_seconds(self, ring: RingPasses, group: GroupShape) -> float:
        """Seconds of a step."""
        plain, sums = (self.network.ring(group, ring.length, adds) for adds in (False, True))
        return (ring.passes - ring.sums) * plain + ring.sums * sums

    def norm_rings(self, stream: Stream) -> list[tuple[RingPasses, GroupShape]]:
        """The ring passes of a norm's statistics in a step, among the ranks that share tokens.

        Forward the mean, then the deviation from it, one number a token each; backward two numbers at once.
        """
        sharing = [ranks // cut for ranks, cut in zip(self.levels, stream, strict=True)]
        group = GroupShape(prod(sharing[:-1]), sharing[-1])
        tokens, n = self.chain.operators[0].matmul.tokens / prod(stream) / self.microbatches, self.microbatches
        forward = RingPasses("forward", COLUMNS, tokens, 4 * n, 2 * n)
        return [(forward, group), (RingPasses("backward", COLUMNS, 2 * tokens, 2 * n, n), group)]

    def part(self, columns: int) -> float:
        """Elements of a rank's part of a stream of so many columns, for a microbatch."""
        return self.chain.operators[0].matmul.tokens * columns / self.ranks / self.microbatches

    def held(self, operator: Operator, option: Option) -> float:
        """Bytes that an operator and its like hold on each rank."""
        factors = whole(option.split)
        numbers = operator.matmul.state_numbers(factors, option.state)
        if self.chain.keeps and not option.anew:
            numbers += operator.matmul.kept_numbers(factors, self.microbatches)
        return operator.repeated * numbers * self.chain.itemsize


def _group(split: Split, axis: int) -> GroupShape:
    counts = [factors[axis] for factors in split]
    return GroupShape(prod(counts[:-1]), counts[-1])


class Move(NamedTuple):
    """Where a stream changes its layout.

    Args:
        operator: place of the operator that it belongs to.
        exchange: from the options of two neighbours of the walk to what is exchanged.
        columns: of the stream.
        times: as often in a microbatch, each way.
        norms: as many norms behind it.
    """

    operator: int
    exchange: Callable[..., Exchange]
    columns: int
    times: int
    norms: int = 0


class Posed(NamedTuple):
    """The search's problem with what its numbers mean.

    Args:
        moves: of each of the problem's moves, what moves.
        operators: the choice of each operator.
    """

    setting: Setting
    problem: Problem
    moves: Sequence[Move]
    operators: Sequence[int]


def pose(setting: Setting, options: Sequence[Sequence[Option]]) -> Posed:
    """The search's problem.

    Args:
        options: of each operator, in the order of the chain.
    """
    operators = [_choice(setting, op, some) for op, some in zip(setting.chain.operators, options, strict=True)]
    fixed = setting.chain.split_bytes / setting.ranks + setting.chain.whole_bytes
    walk = _Walk(setting, operators)
    if setting.by_streams:
        walk.by_streams()
    else:
        walk.directly()
    problem = Problem(walk.choices, walk.walk, walk.matrices, setting.microbatches, fixed)
    places = [next(i for i, choice in enumerate(walk.choices) if choice is op) for op in operators]
    return Posed(setting, problem, walk.moves, places)


def _choice(setting: Setting, operator: Operator, options: Sequence[Option]) -> Choice:
    micro, step = np.zeros(len(options)), np.zeros(len(options))
    for place, option in enumerate(options):
        for ring, group in setting.rings(operator, option):
            seconds = operator.repeated * setting.ring_seconds(ring, group)
            if ring.phase == "update":
                step[place] += seconds
            else:
                micro[place] += seconds / setting.microbatches
    held = np.array([setting.held(operator, option) for option in options])
    return Choice(operator.name, options, micro, step, held)


class _Walk:
    """The walk along a chain: its operators, and the streams between them where those are chosen."""

    def __init__(self, setting: Setting, operators: Sequence[Choice]) -> None:
        self._setting, self._operators = setting, operators
        self.choices: list[Choice] = []
        self.walk: list[int] = []
        self.moves: list[Move] = []
        self.matrices: list[Numbers] = []

    def directly(self) -> None:
        """From operator to operator, by the paper's rule."""
        chain = self._setting.chain
        if chain.by_rows:
            self._reach(_free("input", [Option(_all_rows(self._setting))]))
        for place, (choice, op) in enumerate(zip(self._operators, chain.operators, strict=True)):
            through = place > 0 and chain.operators[place - 1].core
            self._reach(choice, Move(place, _by_paper(through), op.matmul.inputs, 1))
        if chain.closed:
            last = chain.operators[-1]
            self._reach(self._operators[0], Move(0, _by_paper(last.core), last.onward, 1))

    def by_streams(self) -> None:
        """From stream to operator to stream; a stream of the same name is the same choice."""
        chain = self._setting.chain
        names = [name for op in chain.operators for name in (op.before, op.after) if name]
        streams = {name: _free(name, cuts(self._setting.levels)) for name in names}
        if chain.by_rows:
            streams[names[0]] = _free(names[0], [self._setting.levels])
        for place, (choice, op) in enumerate(zip(self._operators, chain.operators, strict=True)):
            if op.before and not self.walk and (names.count(op.before) > 1 or chain.by_rows):
                self._reach(streams[op.before])
            read = op.repeated * (2 if op.matmul.embeds else 1) if op.before else 0
            self._reach(
                choice,
                Move(place, entering if op.before else _nothing, op.matmul.inputs, read, op.repeated * op.normed),
            )
            if op.after and names.count(op.after) > 1:
                self._reach(streams[op.after], Move(place, _leave(op.core), op.onward, op.repeated))

    def _reach(self, choice: Choice, move: Move | None = None) -> None:
        """Go on to a choice, which is new or the first."""
        place = next((i for i, known in enumerate(self.choices) if known is choice), len(self.choices))
        if place == len(self.choices):
            self.choices.append(choice)
        if self.walk and move:
            self.moves.append(move)
            self.matrices.append(self._matrix(self.choices[self.walk[-1]].options, choice.options, move))
        self.walk.append(place)

    def _matrix(self, before: Sequence[Any], after: Sequence[Any], move: Move) -> Numbers:
        """Seconds of a microbatch, there and back, for every pair of options; each pair of layouts is priced once."""
        part = self._setting.part(move.columns)
        seconds = cache(lambda exchange: exchange.seconds(self._setting.network, part))
        rows, row_of = _distinct(before)
        columns, column_of = _distinct(after)
        table = np.array([[seconds(move.exchange(one, other)) for other in columns] for one in rows])
        found = table[np.ix_(row_of, column_of)] * 2 * move.times
        return (
            found + move.norms * np.array([self._norm(stream) for stream in before])[:, None] if move.norms else found
        )

    def _norm(self, stream: Stream) -> float:
        """Seconds of a microbatch, there and back."""
        rings = self._setting.norm_rings(stream)
        return sum(self._setting.ring_seconds(*each) for each in rings) / self._setting.microbatches


def _distinct(options: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The different layouts of some options, and the place of each option's among them."""
    places: dict[Any, int] = {}
    found = [places.setdefault(layout_of(option), len(places)) for option in options]
    return list(places), found


def _nothing(before: Split | Stream, after: Split) -> Exchange:
    return Exchange((0.0,), (1,))


def _leave(core: bool) -> Callable[[Split, Stream], Exchange]:
    return lambda split, stream: leaving(split, stream, core)


def _by_paper(core: bool) -> Callable[[Split, Split], Exchange]:
    return lambda before, after: paper(before, after, core)


def layout_of(option: Any) -> Any:
    """The split of an operator's option, or the cut of a stream."""
    return option.split if isinstance(option, Option) else option


def _free(name: str, options: Sequence[Any]) -> Choice:
    nothing = np.zeros(len(options))
    return Choice(name, options, nothing, nothing, nothing)


def _all_rows(setting: Setting) -> Split:
    return tuple(Factors(ranks, 1, 1) for ranks in setting.levels)
