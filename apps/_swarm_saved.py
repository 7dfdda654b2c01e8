"""Whether stages may be saved in a directory. The one rule: what lies there of another model is not written over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError
from pipelined.swarm.records import Mark
from pipelined.swarm.saved import marks


def saved_of(directory: Path, identity: Mapping[str, Any]) -> list[Mark]:
    """What lies in a directory of stages, all of this model.

    Raises:
        UsageError: of another one lies there, too, or the directory cannot be listed.
    """
    try:
        return _saved_of(directory, identity)
    except OSError as error:
        fact = f"--checkpoint {directory} cannot be listed ({error})"
        raise UsageError(f"{fact}; make it readable, or give another directory") from error


def _saved_of(directory: Path, identity: Mapping[str, Any]) -> list[Mark]:
    before, mine = marks(directory), marks(directory, identity)
    strange = {*before} - {*mine}
    if strange and (strange := strange & {*marks(directory)}):  # who shares the directory may have removed one
        fact = f"{directory} holds stages of another model ({len(strange)} of {len(strange) + len(mine)})"
        raise UsageError(f"{fact}; give --checkpoint another directory, or the flags of that model")
    return mine
