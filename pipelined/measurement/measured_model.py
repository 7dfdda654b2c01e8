"""The interface of a model to a measurement: its layers, and how to build it. Nothing needs torch until it is built."""

from typing import Any, Protocol


class MeasuredModel(Protocol):
    """A model to time: its stages, its messages and its gradient sums."""

    @property
    def all_reduce(self) -> str:
        """The algorithm of gradient sums."""

    @property
    def compress(self) -> str:
        """The codec of messages between stages: a name that `transports.find_codec` accepts, or "none"."""

    @property
    def sequence(self) -> int:
        """Tokens in a sequence."""

    @property
    def layer_costs(self) -> list[float]:
        """Floating-point operations per token of each layer's forward; stages are cut by these."""

    def build(self) -> Any:
        """Build the `pipelined.training.job.model.Model` for measuring; this may import torch."""

    def build_member(self) -> Any:
        """Build the `pipelined.training.teams.team_model.TeamModel` whose first member is measured for teams.

        Returns: None where no plan has teams.
        """

    def numerics(self) -> Any:
        """The precision settings of training, a `pipelined.training.job.Numerics`; this may import torch."""

    def optimizer(self) -> Any:
        """The optimizer of training, a `pipelined.training.optimizer.OptimizerSettings`; this may import torch."""

    def feed(self, rows: int) -> Any:
        """Data with `rows` sequences in a microbatch, a `pipelined.training.job.rank_context.MicrobatchSource`."""

    def random_input(self, layer: int, rows: int) -> Any:
        """Random values of the shape of this layer's input, for `rows` sequences; never called for layer 0."""
