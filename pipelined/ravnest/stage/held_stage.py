"""All that a node trains of its stage, by parameter name: values and the optimizer's state. Imports torch.

Nodes save it, hand it from one generation to the next, and send it to late clusters.
"""

from collections.abc import Iterable, Mapping

import torch

from pipelined.actors.device.executor import Executor
from pipelined.programs.prepare import Prepared
from pipelined.ravnest.records.nodes import UPDATES
from pipelined.state.tensor_specs import TensorSpecs
from pipelined.training.optimizer.state import VALUE, OptimizerState
from transports.wire.arrays import wire_name

HeldState = dict[str, torch.Tensor]
"""Tensors by NAME/FIELD."""


def averaged(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of the tensors that rounds average: all but integers."""
    return [tensor for tensor in tensors if tensor.is_floating_point()]


@torch.no_grad()
def flat_copy(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """A copy of all that is averaged of these tensors, flat, on the host."""
    return torch.cat([tensor.detach().reshape(-1).cpu() for tensor in averaged(tensors)])


class HeldStage:
    """The state of one stage.

    Args:
        tensors: parameters and buffers of the stage, by name, in the order of its layers.
        optimizer: of the parameters.
        executor: where all of it is read and written.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], optimizer: OptimizerState, executor: Executor):
        self.tensors, self._executor = tensors, executor
        self.prepared = dict[str, Prepared | None]()  # by the trainer of this stage, with these nodes of its cluster
        self._optimizer: OptimizerState | None = optimizer

    @property
    def specs(self) -> TensorSpecs:
        """Dtype and shape of all of it."""
        return {key: (wire_name(tensor.dtype), tuple(tensor.shape)) for key, tensor in self._tensors_by_key().items()}

    async def copy_state(self, averages: bool = True) -> HeldState:
        """A copy of all, or of all but the values that rounds average, on the host."""
        return (await self._executor.run("snapshot", lambda: self._copy_state(averages)))[0]

    def values_in(self, average: torch.Tensor) -> HeldState:
        """The values in an average, which is flat, in the order of the tensors. Cost: no copy."""
        averaged_tensors = {name: tensor for name, tensor in self.tensors.items() if tensor.is_floating_point()}
        pieces = average.split([tensor.numel() for tensor in averaged_tensors.values()])
        return {
            f"{name}/{VALUE}": piece.view(tensor.shape).to(tensor.dtype)
            for (name, tensor), piece in zip(averaged_tensors.items(), pieces, strict=True)
        }

    async def restore(self, state: HeldState) -> None:
        """Load a state, of this stage, or of more or less; what is not in it stays.

        Cost: each parameter leaves the state when it is loaded, so that one at a time is held twice.
        """
        await self._executor.run("snapshot", lambda: self._restore(state))

    async def take_over(self, stage: "HeldStage") -> None:
        """Take the tensors of the same stage, which does not change, and free those of this one. Cost: no copy."""
        await self._executor.run("snapshot", lambda: self._take(stage))

    def free_gradients(self) -> None:
        """Free the gradients: this stage is not trained any more."""
        for tensor in self.tensors.values():
            tensor.grad = None

    def _take(self, stage: "HeldStage") -> None:
        assert self._optimizer is not None and stage._optimizer is not None, "this state was taken over"
        states, other_states = self._optimizer.optimizer.state, stage._optimizer.optimizer.state
        for name, tensor in self.tensors.items():
            source = stage.tensors[name]
            tensor.data = source.data
            if source in other_states:
                states[tensor] = other_states.pop(source)
        stage.tensors = {}
        stage._optimizer = None

    def _tensors_by_key(self) -> HeldState:
        """Every tensor of the state by NAME/FIELD, not copied."""
        assert self._optimizer is not None, "this state was taken over"
        updates = torch.tensor(self._optimizer.updates)
        state = HeldState()
        for name, parameter in self.tensors.items():
            fields = {**self._optimizer.fields(parameter), UPDATES: updates}
            state |= {f"{name}/{field}": tensor.detach() for field, tensor in fields.items()}
        return state

    def _copy_state(self, averages: bool) -> HeldState:
        return {
            key: tensor.cpu().clone()
            for key, tensor in self._tensors_by_key().items()
            if averages or not (key.endswith(f"/{VALUE}") and tensor.is_floating_point())
        }

    def _restore(self, state: HeldState) -> None:
        assert self._optimizer is not None, "this state was taken over"
        owners = dict[str, list[str]]()
        for key in state:
            owners.setdefault(key.rpartition("/")[0], []).append(key)
        for name in owners.keys() & self.tensors.keys():
            parameter = self.tensors[name]
            keys = owners[name]
            fields = {VALUE: parameter.detach()} | {key.rpartition("/")[2]: state.pop(key) for key in keys}
            self._optimizer.restore(parameter, fields, int(fields.pop(UPDATES)))
