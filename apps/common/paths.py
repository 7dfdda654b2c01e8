"""Whether a place that was named can be written to, and holds nothing that is not its own. No torch.

The one rule: it is looked at before anything is computed, so that no work is lost in the end for want of a place, and
nothing has been written when a mistake is told. This file must not know what is written there.
"""

import json
import os
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError

GPT2_TYPE, ROTARY_TYPE = "gpt2", "swarm_rotary"
"""What config.json calls the models that are exported: `model_type`. No class of `transformers` has the second."""
NAMES = {GPT2_TYPE: "a GPT-2", ROTARY_TYPE: f"a model of this kind ({ROTARY_TYPE})"}


def check_file(flag: str, path: Path) -> None:
    """Refuse a file that cannot be written.

    Raises:
        UsageError: it is a directory, or lies where there is none, or where nothing may be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give {flag} a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {path} (no such directory, or no right to); name another {flag}")


def check_directory(flag: str, path: Path) -> None:
    """Refuse a directory that cannot be made, or written into.

    Raises:
        UsageError: it is a file, or nothing may be written there.
    """
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir():
        raise UsageError(f"{there} is a file; give {flag} a directory")
    if not os.access(there, os.W_OK):
        raise UsageError(f"cannot write into {there} (no right to); give {flag} another directory")


def check_export(directory: str | Path, kind: str = GPT2_TYPE, flag: str = "--export") -> None:
    """Refuse to write where something else lies: only a new, an empty, or an earlier directory of this kind is taken.

    Args:
        kind: as config.json says it.
    Raises:
        UsageError: the directory is none of these, or as `check_directory`.
    """
    path = Path(directory)
    check_directory(flag, path)
    entries = list(path.iterdir()) if path.exists() else []
    if entries and read_about(path).get("model_type") != kind:
        fact = f"{path} holds something else than {NAMES[kind]} (entries: {len(entries)})"
        raise UsageError(f"{fact}; give {flag} a new directory")


def read_about(directory: Path) -> dict[str, Any]:
    """What a model's config.json says; nothing, where there is none that can be read."""
    try:
        found = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
