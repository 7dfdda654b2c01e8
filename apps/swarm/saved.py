"""Whether stages may be saved in a directory. The one rule: what lies there of another model is not written over."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError
from pipelined.state.store import marks, text_of
from pipelined.swarm.records import Mark, common_step


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


def other_text(directory: Path, saved: Iterable[Mark], text: str) -> str:
    """That the latest whole step was trained on another text, with both digests; "": it was not, or does not say.

    Args:
        saved: what lies in the directory.
        text: digest of the tokenizer and text that are trained on now.
    """
    at = common_step(saved)
    before = text_of(directory, at) if at else ""
    if before in ("", text):
        return ""
    digests = f"{before[:16]} saved, {text[:16]} here"
    return f"{directory} holds stages that were trained on other data (step {at.step}; digest: {digests})"


def _saved_of(directory: Path, identity: Mapping[str, Any]) -> list[Mark]:
    before, mine = marks(directory), marks(directory, identity)
    strange = {*before} - {*mine}
    if strange and (strange := strange & {*marks(directory)}):  # who shares the directory may have removed one
        fact = f"{directory} holds stages of another model ({len(strange)} of {len(strange) + len(mine)})"
        raise UsageError(f"{fact}; give --checkpoint another directory, or the flags of that model")
    return mine
