"""The walk along a row that collects its choices: one for each part of a layer that has factors.

    inputs ──► [embedding] ── GELU, dropout ──► [linear] ──► [linear] ── gather ──► loss
                 choice          between         choice       choice     between

The layers between two choices have no factors. Their moves are priced from the output of each option of the one choice
to the input of each option of the next. Where a stage begins each rank has its own rows: that is a choice of one, so
each stage is a chain of its own.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import nn

from pipelined.sharding import Shards
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.search.problem import Numbers
from pipelined.training.models.split.layer import gather_output, team_mesh
from pipelined.training.models.split.row_chain import LayerForward, LayerPart, PricedValue, RowChain
from pipelined.training.models.split.row_choices import PartOption, RowChoices
from pipelined.training.models.split.table import leaves, split_layer


def choices_along(chain: RowChain) -> RowChoices:
    """The choices from the row's inputs to its loss, with a choice of one wherever a stage begins."""
    walk = _Walk(chain)
    for index, (row_name, row_module) in enumerate(chain.row):
        if index in chain.starts:
            walk.begin_stage()
        for name, module in leaves(row_name, row_module):
            walk.take(name, module)
    return walk.end()


class _Walk:
    """The choices along a row, from its inputs to the layer that was taken last."""

    def __init__(self, chain: RowChain):
        inputs = Value(chain.inputs, Shards(team_mesh(chain.ranks), chain.inputs.shape, ""), False)
        self._chain = chain
        self._ends_of_row = PartOption({}, inputs, inputs)
        self._options = [[self._ends_of_row]]
        self._moves = list[Numbers]()
        self._stage_ends = [0]
        self._layers_since = list[LayerForward]()  # without factors, behind the last choice
        self._counted = set[str]()

    def begin_stage(self) -> None:
        """Add a choice of one: each rank has its own rows."""
        outputs = self._outputs()
        self._stage_ends.append(len(self._options))
        self._choose([self._chain.stage_input(outputs[0].value)], outputs)

    def take(self, name: str, module: nn.Module) -> None:
        """Add a layer: a choice for each of its parts; without any, it follows the last choice."""
        chain = self._chain
        parts = LayerPart.all_of(name, module)
        if not parts:
            layer = split_layer(name, module, chain.ranks, {})
            self._layers_since.append(partial(layer.forward, pieces=chain.pieces(layer)))
        for part in parts:
            outputs = self._outputs()
            is_second = part.number > 0
            streams = [option.input for option in self._options[-1]] if is_second else []
            options = list(chain.options(part, outputs[0].value, streams, self._counted))
            self._choose(options, outputs, in_place=is_second)
        self._counted |= chain.first_names(name, module)

    def end(self) -> RowChoices:
        """All choices, when the last layer's output has been gathered for the loss."""
        self._layers_since.append(lambda forward_pass, output: gather_output(forward_pass.verbs, output))
        self._moves.append(np.array([[output.costs] for output in self._outputs()]))
        options = [*self._options, [self._ends_of_row]]
        return RowChoices(options, self._moves, [*self._stage_ends, len(self._options)])

    def _outputs(self) -> list[PricedValue]:
        """For each option of the last choice, the output of the layers behind it."""
        return [self._chain.after_layers(option.output, self._layers_since) for option in self._options[-1]]

    def _choose(self, options: list[PartOption], outputs: Sequence[PricedValue], *, in_place: bool = False) -> None:
        self._moves.append(self._chain.costs_between(outputs, options, in_place=in_place))
        self._options.append(options)
        self._layers_since = []
