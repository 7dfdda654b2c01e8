"""`layout="auto"`: how the ranks of a team split every layer of a row, so that a step moves for the shortest time.

The row is a chain for the planner's dynamic programming; see `row_walk`.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from pipelined.errors import UsageError
from pipelined.sharding.factors import Factors
from pipelined.sharding.search.matmul import factorizations
from pipelined.sharding.search.methods.dynamic import search
from pipelined.sharding.search.problem import Choice, Problem
from pipelined.training.models.split.layer import SplitLayer
from pipelined.training.models.split.row_chain import RowChain
from pipelined.training.models.split.row_choices import FactorsByName, RowChoices, factors_of
from pipelined.training.models.split.row_walk import choices_along
from pipelined.training.models.split.table import operators, split_layer

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class RowSearch(RowChain):
    """A row that a team is to split.

    Args:
        microbatches: of a step.
    """

    microbatches: int = 1

    def layout(self) -> str:
        """The factors of every layer that has some, as `layout=` takes them; "" where no layer has any.

        Raises:
            UsageError: no layout gives each rank a row, a head and channels.
        """
        return self.layout_text(self.find_fastest()[1])

    def layout_text(self, factors: FactorsByName) -> str:
        """These factors as `layout=` takes them."""
        names = [name for leaf in self.leaf_layers() for name in operators(*leaf)]
        return ",".join(f"{name}={factors[name]}" for name in names)

    def find_fastest(self) -> tuple[float, FactorsByName]:
        """The seconds that a step moves at least, and the factors with which it does. Raises: as `layout`."""
        if reason := self.reason_not_to_split(self.ranks):
            raise self._refusal(reason)
        choices = choices_along(self)
        best = dict[str, Factors]()
        least = inf
        for fixed in self.factors_of_shared_weights():
            allowed = choices.restricted(fixed)
            if not all(map(len, allowed.options)):
                continue
            outcome = search(self._problem(allowed))
            if outcome.strategy is not None and outcome.seconds < least:
                best = factors_of(allowed.options, outcome.strategy)
                least = outcome.seconds
        if least == inf:
            raise self._refusal("layers that share a weight fit in no common way")
        return least, best

    def _problem(self, row: RowChoices) -> Problem:
        """The search for the shortest moves, in any memory."""
        choices = list[Choice]()
        for options, costs in zip(row.options, row.costs(), strict=True):
            forward, backward, _, update, _ = costs.T
            choices.append(Choice("", options, forward + backward, update, np.zeros(len(options))))
        moves = [costs[..., 0] + costs[..., 1] for costs in row.moves]
        return Problem(choices, range(len(choices)), moves, self.microbatches)

    def _refusal(self, reason: str) -> UsageError:
        fits = [ranks for ranks in range(1, self.ranks) if ranks == 1 or not self.reason_not_to_split(ranks)]
        fact = f"no layout splits this row over {self.ranks} ranks a worker ({reason})"
        return UsageError(f"{fact}; use tensor {' or '.join(map(str, fits))}, or larger microbatches")

    def reason_not_to_split(self, ranks: int) -> str:
        """Why a team of `ranks` cannot split a layer; "" if it can split all."""
        rows = self.inputs.shape[0]
        for name, module in self.leaf_layers():
            names = operators(name, module)
            factorizations_of_rows = [f for f in factorizations(ranks) if f.rows <= rows]
            tries: list[FactorsByName] = [dict.fromkeys(names, f) for f in factorizations_of_rows] if names else [{}]
            fits = list[SplitLayer]()
            for split in tries:
                try:
                    fits.append(split_layer(name, module, ranks, split))
                except UsageError:
                    continue
            if not fits or (not names and fits[0].row_shards > rows):
                return f"layer {name} ({type(module).__name__}), rows of a microbatch: {rows}"
        return ""
