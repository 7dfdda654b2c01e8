"""The names in a directory of checkpoints, and renames that change it. The last good checkpoint is complete and can be
found at every instant, also between two renames.

    step-00000010             a checkpoint; it got this name in one rename, after all of it was on disk
    step-00000010.SAVE.part   being written by one save, or being deleted, or left by a crash: never read
    step-00000010.old         the earlier checkpoint of a step that is saved again, until the new one has its name

SAVE is the token of the save, so that two saves never write into one `.part`.
"""

import os
import re
import shutil
from pathlib import Path

from pipelined.process.reporting.events import warn
from pipelined.process.whole_file import force

_CHECKPOINT = re.compile(r"step-(\d{8,})(\.old)?")


def name_of(step: int) -> str:
    return f"step-{step:08}"


def unfinished(directory: Path, step: int, token: str) -> Path:
    """The directory into which one save writes a step's checkpoint before it has its name."""
    return directory / f"{name_of(step)}{token and f'.{token}'}.part"


def is_checkpoint(path: Path) -> bool:
    """Whether this path has the name of a checkpoint; it need not exist."""
    return _CHECKPOINT.fullmatch(path.name) is not None


def saves_in(directory: Path) -> dict[int, Path]:
    """The complete checkpoints of a directory by step, ascending; empty if the directory does not exist."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    matches = [match for match in map(_CHECKPOINT.fullmatch, names) if match]
    matches.sort(key=lambda match: (int(match[1]), match[2] is None))  # the plain name wins over .old
    return {int(match[1]): directory / match[0] for match in matches}


def remove_unfinished(directory: Path) -> None:
    """Remove the files of crashed and failed saves; call it only if no other save can be under way."""
    for path in directory.glob("step-*.part"):
        shutil.rmtree(path)
    for path in directory.glob("step-*.old"):
        if path.with_suffix("").exists():
            shutil.rmtree(path)


def publish(directory: Path, step: int, token: str = "") -> Path:
    """Give a step's finished `.part` its name. An earlier checkpoint of the step is `.old` until it is replaced."""
    final_path = directory / name_of(step)
    old_path = final_path.with_name(f"{final_path.name}.old")
    if final_path.exists():
        shutil.rmtree(old_path, ignore_errors=True)
        os.rename(final_path, old_path)
    os.rename(unfinished(directory, step, token), final_path)
    force(directory)
    shutil.rmtree(old_path, ignore_errors=True)  # the step is saved, also where a reader holds the old file open
    return final_path


def prune(directory: Path, step: int, keep: int, token: str) -> None:
    """Delete all checkpoints but this step's and the newest keep - 1 others; one that stays is reported, no error."""
    checkpoints = saves_in(directory)
    other_steps = [other_step for other_step in reversed(checkpoints) if other_step != step]
    for other_step in other_steps[max(keep, 1) - 1 :]:
        doomed_path = unfinished(directory, other_step, token)
        shutil.rmtree(doomed_path, ignore_errors=True)
        try:
            os.rename(checkpoints[other_step], doomed_path)
            shutil.rmtree(doomed_path)
        except OSError as error:
            warn("old save not deleted", step=other_step, why=error)
