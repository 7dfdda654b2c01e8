"""The interface of a model that a team can split: its parts as coroutines, and how its tensors lie."""

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards
from pipelined.sharding.operators.verbs import Value, Verbs
from pipelined.training.job.model import Model


@runtime_checkable
class TeamModel(Model, Protocol):
    """A model that a team can split; as a `Model` it is the whole.

    Attributes:
        shards_weights: whether members that hold the same piece of a weight keep parts of it, and gather it.
    """

    @property
    def shards_weights(self) -> bool: ...

    def member_model(self, member: int) -> Model:
        """The model of which `build` gives a member's pieces: blocks of the parameters, as `parameters` has them."""

    def parameters(self) -> dict[str, Shards]:
        """How each parameter lies, also as a tensor of more dimensions, some of which are one of the parameter."""

    def input_shards(self, lead: tuple[int, ...]) -> Shards:
        """How inputs and targets lie; lead: their shape."""

    def stream_shards(self, lengths: tuple[int, ...]) -> Shards:
        """How a tensor of this shape lies on its way from one stage to the next: split over all ranks."""

    def run_layers(
        self,
        verbs: Verbs,
        layers: range,
        x: Value,
        pieces: Mapping[str, torch.Tensor],
        random: KeyedRandom | None = None,
    ) -> Coroutine[Any, Any, Value]:
        """What a range of layers gives; after the last, what `score` takes.

        Args:
            x: the inputs, or what the layer before the range gives, as `stream_shards`.
            pieces: this member's pieces of the range's parameters, by name, each in the shape of its shards; and its
                buffers.
            random: of the microbatch's dropout, None: nothing is dropped.
        """

    def score(self, verbs: Verbs, output: Value, targets: Value) -> Coroutine[Any, Any, Value]:
        """The mean loss, as a sum over some axes; every member has the whole of its gradient."""


def require_team_model(model: Model) -> TeamModel:
    """The model, which a team splits.

    Raises:
        UsageError: it does not say how.
    """
    if not isinstance(model, TeamModel):
        fact = f"a {type(model).__name__} does not say how ranks split it"
        raise UsageError(f"{fact}; write what pipelined.training.teams.team_model.TeamModel lists, or use tensor 1")
    return model
