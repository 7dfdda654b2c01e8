"""The flags that a resumed run takes from its checkpoint: those that the command line leaves out. No torch.

The arrangement (schedule, depth, width, microbatches) is not taken as flags: a run may resume with another one. The
checkpoint is checked like any input; one that cannot be read is refused later, once and by rank 0.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from apps.common.flags.config_file import LEFT_OPEN
from apps.common.flags.run_flags import AUTO_PLAN, F, start_of
from collectives.objects import broadcast_object
from pipelined.actors.agree import refuse_other
from pipelined.errors import UsageError
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.state.checkpoints.records import CheckpointError
from transports import Transport

SIZES = ("layers", "d_model", "heads", "vocab", "dropout", "side")
"""What another --preset or --init says, so that it is not taken beside one."""
TRAINING_FLAGS = ("steps", "warmup", "lr", "min_lr", "beta1", "beta2", "eps", "weight_decay", "clip")
NUMBERS = (*SIZES, "seq", "batch", "seed", "eval_windows", *TRAINING_FLAGS)
RESUMED_FLAGS = (*NUMBERS, "preset", "init", "dtype", "lr_schedule", "tokenizer", "data", "val_data")
"""The flags that are taken from a checkpoint, as far as a program has them."""


def parse_resumed(arguments: Sequence[str], parse: Callable[[list[str], F | None], F]) -> F:
    """Make a program's flags of a command line; those that it leaves out are those of the resumed run, if there is one.

    Args:
        parse: makes the flags of a command line; of those that are not given it takes the second argument's.
    Raises:
        SystemExit, UsageError: as `parse`; or the checkpoint's configuration cannot be a run's.
    """
    config = parse(list(arguments), None)
    saved_config = _read_saved_config(config)
    if saved_config is None:
        return config
    kinds = get_type_hints(type(config))
    names = [name for name in RESUMED_FLAGS if name in kinds and saved_config.get(name) is not None]
    saved_flags = {name: _value(name, saved_config[name], kinds[name]) for name in names}
    if "clip" in _left_open(saved_config):
        saved_flags.pop("clip", None)  # its value was the schedule's choice, and this run may have another schedule
    if "constant" in (config.lr_schedule, saved_flags.get("lr_schedule")):
        saved_flags.pop("min_lr", None)  # a constant rate has none
    if config.plan not in (None, AUTO_PLAN) or None not in (config.microbatch, config.microbatches):
        saved_flags.pop("batch", None)  # these set the batch

    def parse_over(saved_flags: Mapping[str, Any]) -> F:
        return parse(list(arguments), type(config)(**saved_flags, resume=config.resume, checkpoint=config.checkpoint))

    resumed_config = parse_over(saved_flags)
    preset, init = getattr(resumed_config, "preset", None), getattr(resumed_config, "init", None)
    if (preset, init) != (saved_flags.get("preset", preset), saved_flags.get("init")):
        resumed_config = parse_over({name: value for name, value in saved_flags.items() if name not in SIZES})
    return resumed_config


async def agree_on_flags(transport: Transport, resolved_config: Mapping[str, Any]) -> None:
    """Check that this rank read the same numbers as rank 0; every rank calls this.

    Raises:
        UsageError: on a rank with other numbers, for example because it sees another checkpoint.
    """
    arrangement = ("schedule", "depth", "width", "microbatch", "microbatches", "tensor", "layout")
    flags = {name: resolved_config[name] for name in (*NUMBERS, *arrangement) if name in resolved_config}
    flags_of_rank0 = await broadcast_object(transport, "flags of rank 0", flags)
    refuse_other("flags", flags, flags_of_rank0, "start all ranks alike, and let all of them see the same checkpoint")


def _read_saved_config(config: F) -> Mapping[str, Any] | None:
    """The configuration of the run that is resumed; None where there is none, or none that can be read."""
    try:
        path = start_of(config)
        return None if path is None else open_checkpoint(path).meta.config
    except (CheckpointError, OSError):
        return None


def _left_open(saved_config: Mapping[str, Any]) -> list[Any]:
    """The flags that the saved run left open. A checkpoint without the key is of a release that left --clip open."""
    names = saved_config.get(LEFT_OPEN, ["clip"])
    if type(names) is not list:
        raise _damaged(LEFT_OPEN, names)
    return names


def _value(name: str, value: Any, kind: Any) -> Any:
    """The value of a flag of some type, from its value in JSON."""
    kinds = get_args(kind) or (kind,)
    if get_origin(kind) is Literal:
        fits = value in kinds
    elif get_origin(kind) is tuple:
        fits = type(value) is list and all(type(item) is str for item in value)
    elif Path in kinds or str in kinds:
        fits = type(value) is str
    else:
        fits = type(value) is int or (float in kinds and type(value) is float)
    if not fits:
        raise _damaged(name, value)
    if get_origin(kind) is tuple:
        return tuple(map(Path, value))
    return Path(value) if Path in kinds else value


def _damaged(name: str, value: Any) -> UsageError:
    fact = f"the configuration in the checkpoint is damaged ({name}: {value!r})"
    return UsageError(f"{fact}; resume from another checkpoint")
