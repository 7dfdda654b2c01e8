"""The Pareto front of a row's layouts: no other is cheaper in seconds, parameters and bytes at once.

The best layout is on it, whatever a plan asks of its stages. Stages are chains of their own, since each rank has its
own rows where one begins. So each has a front: the layouts that no other beats in any cost of `PartCosts`. The layouts
of the row are their combinations, in which layers that share a weight are split alike.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from pipelined.sharding.factors import Factors
from pipelined.sharding.search.methods.dynamic import Indices, front
from pipelined.sharding.search.problem import Numbers
from pipelined.training.models.split.row_chain import RowChain
from pipelined.training.models.split.row_choices import FactorsByName, PartCosts, RowChoices, factors_of
from pipelined.training.models.split.row_walk import choices_along
from pipelined.training.models.split.table import leaves, operators, split_layer

MAX_LABELS = 64
"""The most labels of a front that end in the same layout."""
MAX_LAYOUTS = 4096
"""The most layouts of a row, for one way to split the layers that share a weight."""
STATE_BYTES = 16
"""Bytes of a trained number with its gradient and two moments, where a price has to be put on it."""
BYTE_PRICES = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 400)])
"""Prices tried for a byte; at 1 all bytes weigh as much as all seconds."""


class StageFront(NamedTuple):
    """The layouts of a stage that no other beats.

    Args:
        factors: of each layout.
        costs: [layout, cost], see `PartCosts`.
    """

    factors: Sequence[FactorsByName]
    costs: Numbers


class RowFront(NamedTuple):
    """The layouts of a row.

    Args:
        factors: of each layout.
        costs: [layout, stage, cost], see `PartCosts`.
    """

    factors: Sequence[FactorsByName]
    costs: Numbers

    def cost(self, cost: str) -> Numbers:
        """One of the costs, by its name in `PartCosts`. Shape: (layouts, stages)."""
        return self.costs[:, :, PartCosts._fields.index(cost)]


def row_front(chain: RowChain, microbatches: int) -> RowFront:
    """The layouts among which the best is; none where layers that share a weight fit in no common way.

    Where stages have more than `MAX_LAYOUTS` combinations, only those that take the shortest time by some price of a
    byte, the same in all stages.

    Args:
        microbatches: of a step, for these times.
    """
    factors, costs = list[FactorsByName](), list[Numbers]()
    for stages in stage_fronts(chain):
        if prod(len(stage.factors) for stage in stages) <= MAX_LAYOUTS:
            indices_by_stage = np.indices([len(stage.factors) for stage in stages]).reshape(len(stages), -1)
        else:
            indices_by_stage = np.unique(_shortest(stages, microbatches), axis=1)
        for chosen in indices_by_stage.T.tolist():
            stage_factors = [stage.factors[index] for stage, index in zip(stages, chosen, strict=True)]
            factors.append({name: by_name[name] for by_name in stage_factors for name in by_name})
        costs.append(
            np.stack([stage.costs[indices] for stage, indices in zip(stages, indices_by_stage, strict=True)], axis=1)
        )
    shape = 0, len(chain.starts) + 1, len(PartCosts._fields)
    return RowFront(factors, np.concatenate([np.zeros(shape), *costs]))


def stage_fronts(chain: RowChain) -> Iterator[list[StageFront]]:
    """The front of each stage, for each way to split the layers that share a weight in which all stages have one."""
    choices = choices_along(chain)
    fixed_costs = _fixed_costs(chain, choices)
    for shared_factors in chain.factors_of_shared_weights():
        row = choices.restricted(shared_factors)
        fronts = [_front(row, low, high) for low, high in pairwise(row.ends)]
        if all(front.factors for front in fronts):
            pairs = zip(fronts, fixed_costs, strict=True)
            yield [StageFront(front.factors, front.costs + costs) for front, costs in pairs]


def _front(row: RowChoices, low: int, high: int) -> StageFront:
    """The front of the stage between two choices of one option."""
    options = row.options[low : high + 1]
    costs = row.costs()[low : high + 1]
    if not all(map(len, options)):
        return StageFront([], np.zeros((0, len(PartCosts._fields))))
    strategies, strategy_costs = front(range(len(options)), costs, row.moves[low:high], most=MAX_LABELS)
    return StageFront([factors_of(options, strategy) for strategy in strategies], strategy_costs)


def _fixed_costs(chain: RowChain, row: RowChoices) -> list[Numbers]:
    """For each stage the costs that every layout has: its input, and the parameters that no factors split."""
    costs = [np.zeros(len(PartCosts._fields)) for _ in row.ends[1:]]
    counted = set[str]()
    for stage, end in enumerate(row.ends[:-1]):
        costs[stage] += PartCosts(kept=row.options[end][0].input.array.nbytes)
    for index, (row_name, row_module) in enumerate(chain.row):
        stage = sum(start <= index for start in chain.starts)
        for name, module in leaves(row_name, row_module):
            by_rows = dict.fromkeys(operators(name, module), Factors(chain.ranks, 1, 1))
            layer = split_layer(name, module, chain.ranks, by_rows)
            prefixes = tuple(prefix for part in layer.parts() for prefix in part.prefixes)
            unsplit = [parameter for parameter in layer.parameters() if not parameter.startswith(prefixes)]
            update, numbers = chain.update_costs(layer, unsplit, counted)
            costs[stage] += PartCosts(update=update, numbers=numbers)
            counted |= chain.first_names(name, module)
    return costs


def _shortest(stages: Sequence[StageFront], microbatches: int) -> list[Indices]:
    """For each stage the layout of the shortest time, at each price of a byte."""
    seconds, nbytes = list[Numbers](), list[Numbers]()
    for stage in stages:
        forward, backward, kept, update, numbers = stage.costs.T
        seconds.append(microbatches * (forward + backward) + update)
        nbytes.append(kept + STATE_BYTES * numbers)
    unit = sum(map(np.max, seconds)) / sum(map(np.max, nbytes))
    prices = [
        s[:, None] + unit * stage_bytes[:, None] * BYTE_PRICES for s, stage_bytes in zip(seconds, nbytes, strict=True)
    ]
    return [costs.argmin(axis=0) for costs in prices]
