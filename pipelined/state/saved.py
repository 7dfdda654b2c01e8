"""Checks of a directory before stages are saved in it: stages of another model are not overwritten."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError
from pipelined.state.store import saved_stages, text_of
from pipelined.state.versions import SavedStage, common_step


def saved_of(directory: Path, identity: Mapping[str, Any]) -> list[SavedStage]:
    """The stages saved in a directory, all of this model.

    Raises:
        UsageError: there are stages of another model, too, or the directory cannot be listed.
    """
    try:
        return _saved_of(directory, identity)
    except OSError as error:
        fact = f"the checkpoint directory {directory} cannot be listed ({error})"
        raise UsageError(f"{fact}; make it readable, or give another directory") from error


def other_text(directory: Path, saved: Iterable[SavedStage], text: str) -> str:
    """A message if the latest whole step, or latest stage, was trained on another text, with both digests; else "".

    Args:
        saved: the stages in the directory.
        text: digest of the tokenizer and text that are trained on now.
    """
    saved = [*saved]
    at = common_step(saved) or max(saved, default=None)
    if at is None or (before := text_of(directory, at)) in ("", text):
        return ""
    digests = f"{before[:16]} saved, {text[:16]} here"
    return f"{directory} holds stages that were trained on other data (step {at.step}; digest: {digests})"


def _saved_of(directory: Path, identity: Mapping[str, Any]) -> list[SavedStage]:
    before, mine = saved_stages(directory), saved_stages(directory, identity)
    strange = {*before} - {*mine}
    if strange and (strange := strange & {*saved_stages(directory)}):  # another peer may have removed one
        fact = f"{directory} holds stages of another model ({len(strange)} of {len(strange) + len(mine)})"
        raise UsageError(f"{fact}; give another directory for the checkpoint, or the settings of that model")
    return mine
