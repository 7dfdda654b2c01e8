"""All that a node trains of its stage, by parameter name: values and the optimizer's state. Imports torch.

Nodes save it, hand it from one division into clusters to the next, and send it to late clusters.
"""

from collections.abc import Iterable, Mapping

import torch

from pipelined.actors.executor import Executor
from pipelined.ravnest.records import UPDATES
from pipelined.training.optimizer.state import VALUE, OptimizerState


def averaged(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of the tensors that rounds average: all but integers."""
    return [tensor for tensor in tensors if tensor.is_floating_point()]


@torch.no_grad()
def flat_copy(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """A copy of all that is averaged of these tensors, flat, on the host."""
    return torch.cat([tensor.detach().reshape(-1).cpu() for tensor in averaged(tensors)])


class HeldStage:
    """The state of one stage. A state is a mapping of NAME/FIELD to tensors.

    Args:
        tensors: parameters and buffers of the stage, by name, in the order of its layers.
        optimizer: of the parameters.
        executor: where all of it is read and written.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], optimizer: OptimizerState, executor: Executor):
        self.tensors, self._executor = tensors, executor
        self._optimizer: OptimizerState | None = optimizer

    async def copied(self) -> dict[str, torch.Tensor]:
        """A copy of all, on the host."""
        return (await self._executor.run("snapshot", self._copied))[0]

    async def flat_copy(self) -> torch.Tensor:
        """A copy of all that is averaged, flat, in the order of the tensors, on the host."""
        return (await self._executor.run("snapshot", lambda: flat_copy(self.tensors.values())))[0]

    async def fill(self, state: Mapping[str, torch.Tensor], average: torch.Tensor) -> None:
        """Set the values in a state to an average: flat, in the order of the tensors."""
        await self._executor.run("snapshot", lambda: self._fill(state, average))

    async def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state, of this stage or of more; tensors without values keep theirs."""
        await self._executor.run("snapshot", lambda: self._restore(state))

    async def take_over(self, other: "HeldStage") -> None:
        """Load the state of the same stage, which does not change, and free it. Cost: no copy beside the two."""
        await self._executor.run("snapshot", lambda: self._restore(other._held()))
        other.tensors, other._optimizer = {}, None

    def _held(self) -> dict[str, torch.Tensor]:
        """All of it, not copied."""
        assert self._optimizer is not None, "this state was taken over"
        updates, state = torch.tensor(self._optimizer.updates), dict[str, torch.Tensor]()
        for name, held in self.tensors.items():
            fields = {**self._optimizer.fields(held), UPDATES: updates}
            state |= {f"{name}/{field}": tensor.detach() for field, tensor in fields.items()}
        return state

    def _copied(self) -> dict[str, torch.Tensor]:
        return {key: tensor.cpu().clone() for key, tensor in self._held().items()}

    @torch.no_grad()
    def _fill(self, state: Mapping[str, torch.Tensor], average: torch.Tensor) -> None:
        values = averaged(state[f"{name}/{VALUE}"] for name in self.tensors)
        for value, piece in zip(values, average.split([value.numel() for value in values]), strict=True):
            value.copy_(piece.view_as(value))

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        assert self._optimizer is not None, "this state was taken over"
        owners = {name: dict[str, torch.Tensor]() for name in self.tensors}
        for key, tensor in state.items():
            name, _, field = key.rpartition("/")
            if name in owners:
                owners[name][field] = tensor
        for name, held in self.tensors.items():
            fields = {VALUE: held.detach()} | owners[name]
            self._optimizer.restore(held, fields, int(fields.pop(UPDATES)))
