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
    """A `CheckpointStore` with initial weights, and with what another store has.

    Args:
        directory: a GPT-2's.
        stages: of the swarm.
        save_store: keeps what is saved; None: nothing is saved.

    Raises:
        UsageError: as `read_sizes`.
    Cost: reads the weights once, for their digest.
    """

    def __init__(self, directory: Path, stages: int, save_store: CheckpointStore | None = None):
        self._directory, self._stages, self._save_store = directory, stages, save_store
        self._tied = read_sizes(directory).tied
        self._lineage = digest_of_weights(directory)

    def saved_stages(self) -> Sequence[SavedStage]:
        """See `CheckpointStore`."""
        initial = [SavedStage(0, stage, self._stages, self._lineage) for stage in range(self._stages)]
        return [*initial, *(self._save_store.saved_stages() if self._save_store else ())]

    def save(self, save: SavedStage, state: Mapping[str, Any], gone_process: str = "") -> str:
        """See `CheckpointStore`."""
        if self._save_store is None:
            raise StoreError(f"{self._directory} holds weights to begin with, and no saves; add --checkpoint")
        return self._save_store.save(save, state, gone_process)

    def load(self, save: SavedStage, specs: TensorSpecs) -> Mapping[str, Block]:
        """See `CheckpointStore`; the state of step 0 is the weights and a new optimizer's zeros."""
        if (save.step, save.lineage) != (0, self._lineage):
            if self._save_store is None:
                raise StoreError(
                    f"{self._directory} holds weights to begin with, and no step {save.step}; add --checkpoint"
                )
            return self._save_store.load(save, specs)
        import torch

        names = {key.removesuffix("/value") for key in specs if key.endswith("/value")}
        try:
            values = self._read(names)
        except UsageError as error:
            raise StoreError(str(error)) from error
        zeros = {key: torch.zeros(shape, dtype=getattr(torch, dtype)) for key, (dtype, shape) in specs.items()}
        for name, value in values.items():
            target = zeros[f"{name}/value"]
            if target.shape != value.shape:
                fact = f"{name}: {tuple(value.shape)}, expected: {tuple(target.shape)}"
                raise StoreError(f"{self._directory} is no such model's ({fact}); give --init its own directory")
            target.copy_(value)
        return {key: Block.of(tensor) for key, tensor in zeros.items()}

    def _read(self, names: set[str]) -> "Mapping[str, torch.Tensor]":
        """The tensors of these names; a head that the directory ties begins as the embedding."""
        stored_names = {name: EMBEDDING if name == HEAD and self._tied else name for name in names}
        tensors = read_tensors(self._directory, set(stored_names.values()))
        return {name: tensors[stored_name] for name, stored_name in stored_names.items()}
