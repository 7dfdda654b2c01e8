"""The flags that a resumed run takes from its checkpoint: those that the command line leaves out. No torch.

The arrangement (schedule, depth, width, microbatches) is not taken as flags: a run may go on with another one. The
checkpoint is checked like any input; one that cannot be read is refused later, once and by rank 0.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from apps.common.flags import start_of
from apps.gpt2.config import Config, parse
from apps.gpt2.plan_file import AUTO
from pipelined.actors.agree import broadcast
from pipelined.errors import UsageError
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import CheckpointError
from transports import Transport

KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("layers", "d_model", "heads", "vocab", "seq", "batch", "seed", "steps", "warmup"), (int,)),
    "eval_windows": (int,),
    **dict.fromkeys(("dropout", "lr", "min_lr", "beta1", "beta2", "eps", "weight_decay", "clip"), (int, float)),
    **dict.fromkeys(("preset", "dtype", "lr_schedule", "tokenizer", "init"), (str,)),
    **dict.fromkeys(("data", "val_data"), (list,)),
}
"""The flags that are taken from a checkpoint, and what JSON holds for each."""
SIZES = ("layers", "d_model", "heads", "vocab", "dropout")
"""What another --preset or --init says, so that it is not taken beside one."""
LEFT_OPEN = "left_open"
"""Key of a saved configuration: the flags that were not given, where what they came to depends on the schedule."""
NUMBERS = [name for name, kinds in KINDS.items() if str not in kinds and list not in kinds]


def parse_resumed(arguments: Sequence[str]) -> Config:
    """Make a Config of a command line; flags that it leaves out are those of the resumed run, if there is one.

    Raises:
        SystemExit, UsageError: as `parse`; or the checkpoint's configuration cannot be a run's.
    """
    config = parse(list(arguments))
    saved = _saved(config)
    if saved is None:
        return config
    taken = {name: _value(name, saved[name]) for name in KINDS if saved.get(name) is not None}
    if "clip" in _left_open(saved):
        taken.pop("clip", None)  # its value was the schedule's choice, and this run may have another schedule
    if "constant" in (config.lr_schedule, taken.get("lr_schedule")):
        taken.pop("min_lr", None)  # a constant rate has none
    if config.plan not in (None, AUTO) or None not in (config.microbatch, config.microbatches):
        taken.pop("batch", None)  # these set the batch
    found = _parse_over(arguments, config, taken)
    if (found.preset, found.init) != (taken.get("preset", found.preset), taken.get("init")):
        found = _parse_over(arguments, config, {name: value for name, value in taken.items() if name not in SIZES})
    return found


def _parse_over(arguments: Sequence[str], config: Config, taken: Mapping[str, Any]) -> Config:
    return parse(list(arguments), Config(**taken, resume=config.resume, checkpoint=config.checkpoint))


async def agree_on_flags(transport: Transport, resolved: Mapping[str, Any]) -> None:
    """Check that this rank read the same numbers as rank 0; every rank calls this.

    Raises:
        UsageError: on a rank with other numbers, for example because it sees another checkpoint.
    """
    arrangement = ("schedule", "depth", "width", "microbatch", "microbatches", "tensor", "layout")
    mine = {name: resolved[name] for name in (*NUMBERS, *arrangement)}
    first = await broadcast(transport, "flags of rank 0", mine)
    other = [f"{name}: {mine[name]} here, {first[name]} on rank 0" for name in mine if mine[name] != first[name]]
    if other:
        fact = f"rank {transport.rank} has other flags than rank 0 ({'; '.join(other)})"
        raise UsageError(f"{fact}; start all ranks alike, and let all of them see the same checkpoint")


def _saved(config: Config) -> Mapping[str, Any] | None:
    """The configuration of the run that is resumed; None where there is none, or none that can be read."""
    try:
        path = start_of(config)
        return None if path is None else checkpoint.open(path).meta.config
    except (CheckpointError, OSError):
        return None


def _left_open(saved: Mapping[str, Any]) -> list[Any]:
    """The flags that the saved run left open. A checkpoint without the key is of a release that left --clip open."""
    names = saved.get(LEFT_OPEN, ["clip"])
    if type(names) is not list:
        raise UsageError(
            f"the configuration in the checkpoint is damaged ({LEFT_OPEN}: {names!r}); resume from another checkpoint"
        )
    return names


def _value(name: str, value: Any) -> Any:
    """The value of a flag, from its value in JSON."""
    kinds, words = KINDS[name], get_args(get_type_hints(Config)[name])
    wrong = type(value) not in kinds or (name in ("dtype", "lr_schedule") and value not in words)
    if wrong or (kinds == (list,) and any(type(one) is not str for one in value)):
        fact = f"the configuration in the checkpoint is damaged ({name}: {value!r})"
        raise UsageError(f"{fact}; resume from another checkpoint")
    if kinds == (list,):
        return tuple(map(Path, value))
    return Path(value) if name == "init" else value
