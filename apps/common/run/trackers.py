"""The destinations of the rows of --metrics: a file of JSON lines, TensorBoard's files, and Weights & Biases.

A reader of the file finds whole lines at any time. The other two are extras.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from apps.common.flags.run_flags import RunFlags
from pipelined.errors import UsageError


def append(path: Path, *rows: Mapping[str, Any]) -> None:
    """Append one line for each row. Without rows it only checks that the file can be written.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        fact = f"cannot write the metrics to {path} ({error.strerror})"
        raise UsageError(f"{fact}; make room there, or name another --metrics") from error


class Tracker(Protocol):
    """Takes the rows of one run."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Take the numbers of a row, at its step. Does not wait for a disk or a network."""

    def close(self) -> None:
        """Return when all rows are written."""


class TensorBoard:
    """Writes rows to a directory that `tensorboard --logdir` shows.

    Raises:
        OSError: the directory cannot be written.
    """

    def __init__(self, directory: Path):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory))

    def write(self, row: Mapping[str, Any]) -> None:
        for name, number in numbers(row).items():
            self._writer.add_scalar(name, number, row["step"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Writes rows to a run of a project of Weights & Biases, which its own settings lead to a server or to files.

    Args:
        config: the flags, which its page shows.
    """

    def __init__(self, project: str, config: Mapping[str, Any]):
        import wandb

        self._run = wandb.init(project=project, config=dict(config))

    def write(self, row: Mapping[str, Any]) -> None:
        self._run.log(numbers(row), step=row["step"])

    def close(self) -> None:
        self._run.finish()


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row by name; those of a list by its name and their place."""
    values: dict[str, float] = {}
    for name, value in row.items():
        parts = {name: value}
        if isinstance(value, (list, tuple)):
            parts = {f"{name}/{place}": part for place, part in enumerate(value)}
        if name != "step":
            values |= {key: float(part) for key, part in parts.items() if isinstance(part, (int, float))}
    return values


def check_trackers(flags: RunFlags) -> None:
    """Refuse a tracker that is not installed.

    Raises:
        UsageError: the message has the command that installs it.
    """
    for name, destination in (("tensorboard", flags.tensorboard), ("wandb", flags.wandb)):
        if destination is not None and find_spec(name) is None:
            raise UsageError(f"--{name} {destination} needs the package {name}; pip install 'pipelined[{name}]'")


@asynccontextmanager
async def opened_trackers(flags: RunFlags, shown: bool) -> AsyncIterator[list[Tracker]]:
    """The trackers that the flags ask for, opened and closed outside the event loop.

    Args:
        shown: whether this rank reports; else there are none.
    Raises:
        UsageError: one of them cannot be opened.
    """
    async with AsyncExitStack() as stack:
        trackers: list[Tracker] = []
        openers: list[Callable[[], Tracker]] = []
        if shown and flags.tensorboard is not None:
            openers.append(partial(TensorBoard, flags.tensorboard))
        if shown and flags.wandb is not None:
            openers.append(partial(WeightsAndBiases, flags.wandb, flags.to_dict()))
        for opener in openers:
            try:
                trackers.append(tracker := await asyncio.to_thread(opener))
            except OSError as error:
                fact = f"cannot write to --tensorboard {flags.tensorboard} ({error})"
                raise UsageError(f"{fact}; name another directory") from error
            stack.push_async_callback(asyncio.to_thread, tracker.close)
        yield trackers
