"""A whole model in the saves of all its stages, in one directory or several.

torch is imported when a parameter is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelined.state.checkpoints.checkpoint import Checkpoint
from pipelined.state.checkpoints.records import CheckpointError
from pipelined.state.stages.store import saved_shards, saved_stages
from pipelined.state.stages.versions import SavedStage, common_step, saved_steps

if TYPE_CHECKING:
    import torch


class SavedValues(Mapping[str, "torch.Tensor"]):
    """The values of a model's parameters on disk, by name; each is read whenever it is looked up.

    Args:
        saves: the saved stage that each parameter is read from.
    Raises:
        CheckpointError: from a look-up: its bytes are not those that were saved.
    Cost: a look-up reads that parameter; nothing is kept.
    """

    def __init__(self, saves: Mapping[str, Checkpoint]):
        self._saves = saves

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self._saves[name].load([name], only="value")[name]["value"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._saves)

    def __len__(self) -> int:
        return len(self._saves)


class WholeModel(NamedTuple):
    """A complete model in the saves of all stages.

    Args:
        first_save: the save of its first stage.
        identity: of the model.
        values: all parameters, by name, read when they are looked up.
    """

    first_save: SavedStage
    identity: Mapping[str, Any]
    values: SavedValues


def find_whole_model(directories: Sequence[str | Path]) -> WholeModel:
    """Find all parameters at the latest step that all stages saved, in one directory or several.

    Raises:
        CheckpointError: there is no such step or folder, or the saves are from two models.
    Cost: reads what each save says of itself; no parameter.
    """
    if absent_directories := [str(directory) for directory in directories if not Path(directory).is_dir()]:
        fact = f"there is no folder {', '.join(absent_directories)}"
        raise CheckpointError(f"{fact}; name those in which a node or peer saved")
    found_stages = [stage for directory in directories for stage in saved_stages(directory)]
    first_save = common_step(found_stages)
    if first_save is None:
        folders = ", ".join(map(str, directories))
        steps = saved_steps(found_stages) or "nothing"
        fact = f"no step that all stages saved is in {folders} (saved: {steps})"
        raise CheckpointError(f"{fact}; name every folder in which a node or peer saved")
    identity, saves = dict[str, Any](), dict[str, Checkpoint]()
    for save in (save for directory in directories for save in saved_shards(directory, first_save.version)):
        identity = dict(save.require(identity or save.meta.identity).meta.identity)
        names = [name for shard in save.shards for name, fields in shard["tensors"].items() if "value" in fields]
        saves |= {name: save for name in names if name not in saves}
    return WholeModel(first_save, identity, SavedValues(saves))
