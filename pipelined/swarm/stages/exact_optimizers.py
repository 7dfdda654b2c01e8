"""The parameters of one stage, updated by exact operations: replicas on unlike processors keep equal bits."""

from collections.abc import Mapping, Sequence

import torch

from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.optimizer.exact import LearnedTensor, find_update

COUNT = "updates/count"
"""The name in a state of the number of updates."""


class ExactOptimizer:
    """The parameters of one stage, and AdamW or LAMB for them; a `StageOptimizer`.

    Args:
        parameters: by name.
        update: of `UPDATES`.
    Cost: memory of two further tensors for each parameter.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], update: str, optimizer_settings: OptimizerConfig):
        self._learned_tensors = {name: _first_state(parameter) for name, parameter in parameters.items()}
        self._update = find_update(update)
        self._optimizer_settings = optimizer_settings
        self._updates = 0

    def apply(self, step: int, gradients: Sequence[torch.Tensor]) -> None:
        """Update every parameter at the rate of this step; the same bits on every processor."""
        self._updates += 1
        rate = self._optimizer_settings.rate(step)
        for learned, gradient in zip(self._learned_tensors.values(), gradients, strict=True):
            self._update(learned, gradient, self._updates, rate, self._optimizer_settings)

    def state(self) -> Mapping[str, torch.Tensor]:
        """Every parameter as NAME/value, NAME/exp_avg and NAME/exp_avg_sq, and the count of updates, on the host.

        On a CPU these are the tensors themselves, and the next `apply` changes them.
        """
        fields = [
            (name, field, tensor)
            for name, learned in self._learned_tensors.items()
            for field, tensor in learned._asdict().items()
        ]
        tensors = {f"{name}/{field}": tensor.detach().cpu() for name, field, tensor in fields}
        return {**tensors, COUNT: torch.tensor(self._updates)}

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state with the names and layouts of `state`."""
        for name, learned in self._learned_tensors.items():
            for field, tensor in learned._asdict().items():
                tensor.copy_(state[f"{name}/{field}"])
        self._updates = int(state[COUNT])


def _first_state(parameter: torch.nn.Parameter) -> LearnedTensor:
    return LearnedTensor(parameter, torch.zeros_like(parameter.detach()), torch.zeros_like(parameter.detach()))
