"""A Hugging Face directory as a store: what it holds counts as saved by all stages before the first step.

So a swarm that starts from given weights resumes from step 0 as from any saved step. A peer that joins later fetches
the state from other peers and needs no such directory.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.common.lm.huggingface.read import EMBEDDING, HEAD, read_sizes, read_tensors
from apps.common.lm.huggingface.stored import digest_of_weights
from pipelined.errors import UsageError
from pipelined.state.stages.store import CheckpointStore, StoreError
from pipelined.state.stages.versions import SavedStage
from pipelined.state.tensor_specs import TensorSpecs
from transports import Block

if TYPE_CHECKING:
    import torch


class WeightsStore:
    """A `CheckpointStore` with weights to begin with, and what another store has.

    Args:
        directory: a GPT-2's.
        stages: of the swarm.
        beside: keeps what is saved; None: nothing is.

    Raises:
        UsageError: as `read_sizes`.
    Cost: reads the weights once, for their digest.
    """

    def __init__(self, directory: Path, stages: int, beside: CheckpointStore | None = None):
        self._directory, self._stages, self._beside = directory, stages, beside
        self._tied = read_sizes(directory).tied
        self._lineage = digest_of_weights(directory)

    def saved_stages(self) -> Sequence[SavedStage]:
        """See `CheckpointStore`."""
        begun = [SavedStage(0, stage, self._stages, self._lineage) for stage in range(self._stages)]
        return [*begun, *(self._beside.saved_stages() if self._beside else ())]

    def save(self, saved: SavedStage, state: Mapping[str, Any], gone: str = "") -> str:
        """See `CheckpointStore`."""
        if self._beside is None:
            raise StoreError(f"{self._directory} holds weights to begin with, and no saves; add --checkpoint")
        return self._beside.save(saved, state, gone)

    def load(self, at: SavedStage, specs: TensorSpecs) -> Mapping[str, Block]:
        """See `CheckpointStore`; of the first step the weights, and an optimizer that has seen nothing."""
        if (at.step, at.lineage) != (0, self._lineage):
            if self._beside is None:
                raise StoreError(
                    f"{self._directory} holds weights to begin with, and no step {at.step}; add --checkpoint"
                )
            return self._beside.load(at, specs)
        import torch

        names = {key.removesuffix("/value") for key in specs if key.endswith("/value")}
        try:
            values = self._read(names)
        except UsageError as error:
            raise StoreError(str(error)) from error
        zeros = {key: torch.zeros(shape, dtype=getattr(torch, dtype)) for key, (dtype, shape) in specs.items()}
        for name, value in values.items():
            mine = zeros[f"{name}/value"]
            if mine.shape != value.shape:
                fact = f"{name}: {tuple(value.shape)}, expected: {tuple(mine.shape)}"
                raise StoreError(f"{self._directory} is no such model's ({fact}); give --init its own directory")
            mine.copy_(value)
        return {key: Block.of(tensor) for key, tensor in zeros.items()}

    def _read(self, names: set[str]) -> "Mapping[str, torch.Tensor]":
        """The tensors of these names; a head that the directory ties begins as the embedding."""
        stored = {name: EMBEDDING if name == HEAD and self._tied else name for name in names}
        read = read_tensors(self._directory, set(stored.values()))
        return {name: read[where] for name, where in stored.items()}
