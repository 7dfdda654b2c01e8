"""Layers of a user's own, by the layouts that they state, and layers without known factors, which are kept whole."""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom, place_of_layer
from pipelined.random.torch_random import TorchRandom
from pipelined.sharding import Shards
from pipelined.sharding.operators.verbs import Value
from pipelined.training.models.split.layer import BY_ROWS, ForwardPass, Pieces, SplitLayer, split_by_rows, team_mesh


@dataclass(frozen=True)
class Layouts:
    """How a layer of your own is split over the ranks of a team: the class attribute `layouts` of its module.

    Layouts are those of a mesh with one axis, `ranks`. Each rank calls the module with its pieces of input and
    parameters, and gets its piece of the output; it computes nothing that another rank's piece would change. What the
    layer costs are the moves to its input's layout, and from a sum `P:ranks` to rows.

    Args:
        input, output: as "S0:ranks" (own rows), "S1:ranks" (own columns) or "" (whole on all ranks); of an output also
            "P:ranks" (a summand).
        parameters: by name; "", whole on all ranks, where one is left out.
    """

    input: str = BY_ROWS
    output: str = BY_ROWS
    parameters: Mapping[str, str] = field(default_factory=dict)


class UserLayer(SplitLayer):
    """A layer that is called as it is, with pieces.

    Args:
        layouts: of its input, output and parameters.
        split_text: how it is split.
        layer: the layer of the row to which it belongs, under whose name random numbers are drawn.
    """

    def __init__(self, name: str, module: nn.Module, ranks: int, *, layouts: Layouts, split_text: str, layer: str):
        super().__init__(name, module, ranks)
        self._layouts, self.split_text, self._layer = layouts, split_text, layer
        self.row_shards = ranks if layouts.input == BY_ROWS else 1

    def parameters(self) -> dict[str, Shards]:
        shards = super().parameters()
        unknown = [name for name in self._layouts.parameters if name not in shards]
        if unknown:
            fact = f"the layouts of layer {self.name} ({self.kind}) name {unknown[0]}, which it has not"
            raise UsageError(f"{fact}; name {', '.join(shards) or 'no parameter'}")
        layouts = self._layouts.parameters
        return {name: Shards(whole.mesh, whole.lengths, layouts.get(name, "")) for name, whole in shards.items()}

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        result = Shards(team_mesh(self.ranks), self.output_shape(x), self._layouts.output)
        x = await forward_pass.verbs.move(x, Shards(result.mesh, x.shards.lengths, self._layouts.input))
        parameters = [name for name in self.parameters() if name in pieces]
        buffers = {name: piece for name, piece in pieces.items() if name not in parameters}
        work = partial(self._call_module, parameters, buffers, forward_pass.random)
        y = await forward_pass.verbs.compute(self.kind, work, x, *[pieces[name] for name in parameters], result=result)
        return await split_by_rows(forward_pass.verbs, y) if result.layout.partial else y

    def _call_module(
        self, names: list[str], buffers: Pieces, random: KeyedRandom | None, x: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        module = copy.deepcopy(self._evaluated if random is None else self.module)  # ranks of a process share these
        tensors = {**dict(zip(names, parameters, strict=True)), **buffers}
        before = {name: tensor._version for name, tensor in tensors.items()}
        forward = partial(functional_call, module, tensors, (x,))
        drawing = TorchRandom(x.device)
        noticing = _Drawing()
        with noticing if x.device.type == "meta" else nullcontext():  # there generators stay as they are
            y: torch.Tensor = forward() if random is None else drawing.run(forward, random, place_of_layer(self._layer))
        writes = any(tensor._version != before[name] for name, tensor in tensors.items())
        self._require_alike(draws=drawing.draws or noticing.draws, writes=writes)
        return y

    def _require_alike(self, *, draws: bool, writes: bool) -> None:
        """Refuse what makes members differ: random numbers for their own rows, and a layer that writes its tensors."""
        where = f"layer {self.name} ({self.kind}), which {self.ranks} ranks split,"
        if draws and (self._layouts.input or self._layouts.output):
            remedy = 'state layouts with input "" and output "", so that every rank draws all of them, or use tensor 1'
            raise UsageError(f"{where} draws random numbers for its own rows alone; {remedy}")
        if writes:
            raise UsageError(f"{where} writes its parameters or buffers, so members would differ; use tensor 1")


class _Drawing(TorchDispatchMode):
    """Notices what draws random numbers.

    Attributes:
        draws: whether anything has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws = False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        self.draws = self.draws or torch.Tag.nondeterministic_seeded in function.tags
        return function(*arguments, **(named or {}))
