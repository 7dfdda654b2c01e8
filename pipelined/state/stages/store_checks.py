"""Checks of a directory before stages are saved in it: stages of another model are not overwritten."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError
from pipelined.state.stages.store import note_of, saved_stages
from pipelined.state.stages.versions import SavedStage, common_step


def stages_of_model(directory: Path, identity: Mapping[str, Any]) -> list[SavedStage]:
    """The stages saved in a directory, all of this model.

    Raises:
        UsageError: there are stages of another model, too, or the directory cannot be listed.
    """
    try:
        all_stages = saved_stages(directory)  # first: what a peer saves meanwhile is not foreign
        own_stages = saved_stages(directory, identity)
        foreign_stages = {*all_stages} - {*own_stages}
        if foreign_stages:  # another peer may have removed one
            foreign_stages &= {*saved_stages(directory)}
    except OSError as error:
        fact = f"the checkpoint directory {directory} cannot be listed ({error})"
        raise UsageError(f"{fact}; make it readable, or give another directory") from error
    if foreign_stages:
        total = len(foreign_stages) + len(own_stages)
        fact = f"{directory} holds stages of another model ({len(foreign_stages)} of {total})"
        raise UsageError(f"{fact}; give another directory for the checkpoint, or the settings of that model")
    return own_stages


def text_mismatch(directory: Path, saves: Iterable[SavedStage], text: str) -> str:
    """A message if the latest whole step, or latest stage, was trained on another text, with both digests; else "".

    Args:
        saves: the stages in the directory.
        text: digest of the tokenizer and text that are trained on now.
    """
    save = _latest_save(saves)
    if save is None or (saved_text := note_of(directory, save, "text")) in ("", text):
        return ""
    digests = f"{saved_text[:16]} saved, {text[:16]} here"
    return f"{directory} holds stages that were trained on other data (step {save.step}; digest: {digests})"


def optimizer_mismatch(directory: Path, saves: Iterable[SavedStage], name: str) -> str:
    """A message if another optimizer trained the latest whole step, or latest stage; else "".

    Args:
        saves: the stages in the directory, of clusters; one that records no optimizer was trained by AdamW.
        name: of the optimizer that trains now.
    """
    save = _latest_save(saves)
    if save is None or (saved_name := note_of(directory, save, "optimizer") or "adamw") == name:
        return ""
    return f"{directory} holds stages that another optimizer trained (step {save.step}: {saved_name}, here: {name})"


def _latest_save(saves: Iterable[SavedStage]) -> SavedStage | None:
    saves = [*saves]
    return common_step(saves) or max(saves, default=None)
