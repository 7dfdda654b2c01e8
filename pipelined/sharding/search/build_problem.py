"""The search's problem that a chain on a machine makes: choices, the order in which the chain meets them, and prices.

A stream of the same name is the same choice, so what comes back is met again.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pipelined.sharding.factors import Factors
from pipelined.sharding.search.chain import Operator
from pipelined.sharding.search.options import Option
from pipelined.sharding.search.pricing import Edge, EdgeKind, PricedChain, PriceTerm
from pipelined.sharding.search.problem import Choice, Numbers, Problem, Strategy
from pipelined.sharding.search.streams import Exchange, cuts


class SearchProblem(NamedTuple):
    """The search's problem with what its numbers mean.

    Args:
        edges: between the neighbours in the problem's order.
        operators: the choice of each operator.
    """

    priced_chain: PricedChain
    problem: Problem
    edges: Sequence[Edge]
    operators: Sequence[int]

    def options(self, strategy: Strategy) -> list[Option]:
        """The option of each operator, in the order of the chain."""
        return [self.problem.choices[index].options[strategy[index]] for index in self.operators]

    def terms(self, strategy: Strategy) -> Iterator[tuple[int, PriceTerm]]:
        """The price of a step, part by part, each with the index of its operator."""
        for index, (op, option) in enumerate(
            zip(self.priced_chain.chain.operators, self.options(strategy), strict=True)
        ):
            for term in self.priced_chain.operator_terms(op, option):
                yield index, term
        order, choices = self.problem.order, self.problem.choices
        for edge, left, right in zip(self.edges, order, order[1:], strict=False):
            ends = (_layout(choices[choice].options[strategy[choice]]) for choice in (left, right))
            for term in self.priced_chain.edge_terms(edge, *ends):
                yield edge.operator, term


def build_problem(priced_chain: PricedChain, options: Sequence[Sequence[Option]]) -> SearchProblem:
    """The search's problem.

    Args:
        options: of each operator, in the order of the chain.
    """
    operators = [
        _choice(priced_chain, op, choices) for op, choices in zip(priced_chain.chain.operators, options, strict=True)
    ]
    fixed = priced_chain.chain.split_bytes / priced_chain.ranks + priced_chain.chain.whole_bytes
    walk = _ChainWalk(priced_chain)
    if priced_chain.by_streams:
        walk.walk_streams(operators)
    else:
        walk.walk_operators(operators)
    problem = Problem(walk.choices, walk.order, walk.matrices, priced_chain.microbatches, fixed)
    indices = [next(i for i, choice in enumerate(walk.choices) if choice is op) for op in operators]
    return SearchProblem(priced_chain, problem, walk.edges, indices)


def _choice(priced_chain: PricedChain, operator: Operator, options: Sequence[Option]) -> Choice:
    per_microbatch_s, per_step_s = np.zeros(len(options)), np.zeros(len(options))
    for index, option in enumerate(options):
        for term in priced_chain.operator_terms(operator, option):
            if term.phase == "update":
                per_step_s[index] += term.seconds
            else:
                per_microbatch_s[index] += term.seconds / priced_chain.microbatches
    memory_bytes = np.array([priced_chain.memory_bytes(operator, option) for option in options])
    return Choice(operator.name, options, per_microbatch_s, per_step_s, memory_bytes)


class _ChainWalk:
    """The walk along a chain: its operators, and the streams between them where those are chosen."""

    def __init__(self, priced_chain: PricedChain) -> None:
        self._priced_chain = priced_chain
        self.choices: list[Choice] = []
        self.order: list[int] = []
        self.edges: list[Edge] = []
        self.matrices: list[Numbers] = []

    def walk_operators(self, operators: Sequence[Choice]) -> None:
        """From operator to operator, by the paper's rule."""
        chain = self._priced_chain.chain
        if chain.by_rows:
            self._reach(
                _free_choice("input", [Option(tuple(Factors(ranks, 1, 1) for ranks in self._priced_chain.levels))])
            )
        for index, (choice, op) in enumerate(zip(operators, chain.operators, strict=True)):
            attention = index > 0 and chain.operators[index - 1].attention
            self._reach(choice, Edge(EdgeKind.DIRECT, index, op.matmul.inputs, 1, attention=attention))
        if chain.closed:
            last = chain.operators[-1]
            self._reach(operators[0], Edge(EdgeKind.DIRECT, 0, last.output_columns, 1, attention=last.attention))

    def walk_streams(self, operators: Sequence[Choice]) -> None:
        """From stream to operator to stream."""
        chain = self._priced_chain.chain
        names = [name for op in chain.operators for name in (op.input_stream, op.output_stream) if name]
        streams = {name: _free_choice(name, cuts(self._priced_chain.levels)) for name in names}
        if chain.by_rows:
            streams[names[0]] = _free_choice(names[0], [self._priced_chain.levels])
        for index, (choice, op) in enumerate(zip(operators, chain.operators, strict=True)):
            if op.input_stream and not self.order and (names.count(op.input_stream) > 1 or chain.by_rows):
                self._reach(streams[op.input_stream])
            reads = op.repeated * (2 if op.matmul.embeds else 1) if op.input_stream else 0
            self._reach(choice, Edge(EdgeKind.ENTER, index, op.matmul.inputs, reads, op.repeated * op.normed))
            if op.output_stream and names.count(op.output_stream) > 1:
                self._reach(
                    streams[op.output_stream],
                    Edge(EdgeKind.LEAVE, index, op.output_columns, op.repeated, attention=op.attention),
                )

    def _reach(self, choice: Choice, edge: Edge | None = None) -> None:
        """Go on to a choice, which is new or the first."""
        index = next((i for i, each in enumerate(self.choices) if each is choice), len(self.choices))
        if index == len(self.choices):
            self.choices.append(choice)
        if self.order and edge:
            self.edges.append(edge)
            self.matrices.append(self._matrix(edge, self.choices[self.order[-1]].options, choice.options))
        self.order.append(index)

    def _matrix(self, edge: Edge, before: Sequence[Any], after: Sequence[Any]) -> Numbers:
        """Seconds of a microbatch, there and back, for every pair of options; each exchange is priced once."""

        @cache
        def seconds(exchange: Exchange) -> float:
            return self._priced_chain.exchange_seconds(edge, exchange)

        rows, row_of = _distinct(before)
        columns, column_of = _distinct(after)
        table = np.array([[seconds(edge.exchange(row, column)) for column in columns] for row in rows])
        if edge.norms:
            table = table + np.array([self._priced_chain.norm_seconds(edge, stream) for stream in rows])[:, None]
        return table[np.ix_(row_of, column_of)]


def _distinct(options: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The different layouts of some options, and the index of each option's among them."""
    indices: dict[Any, int] = {}
    index_of_each = [indices.setdefault(_layout(option), len(indices)) for option in options]
    return list(indices), index_of_each


def _layout(option: Any) -> Any:
    """The split of an operator's option, or the cut of a stream."""
    return option.split if isinstance(option, Option) else option


def _free_choice(name: str, options: Sequence[Any]) -> Choice:
    """A choice that costs nothing by itself."""
    zeros = np.zeros(len(options))
    return Choice(name, options, zeros, zeros, zeros)
