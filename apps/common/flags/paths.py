"""Checks of the paths that a program writes to: each can be written, and holds nothing of another kind. No torch.

The checks run before anything is computed, so a wrong path costs no work, and they write nothing.
"""

import json
import os
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError

GPT2_TYPE, ROTARY_TYPE = "gpt2", "swarm_rotary"
"""`model_type` in the config.json of exported models. No class of `transformers` has the second."""


def check_file(flag: str, path: Path) -> None:
    """Refuse a file that cannot be written.

    Raises:
        UsageError: the path is a directory, its directory does not exist, or it may not be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give {flag} a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {path} (no such directory, or no right to); name another {flag}")


def check_directory(flag: str, path: Path) -> None:
    """Refuse a directory that cannot be created or written into.

    Raises:
        UsageError: the path is a file, or may not be written.
    """
    place = next(place for place in (path, *path.parents) if place.exists())
    if not place.is_dir():
        raise UsageError(f"{place} is a file; give {flag} a directory")
    if not os.access(place, os.W_OK):
        raise UsageError(f"cannot write into {place} (no right to); give {flag} another directory")


def check_export(directory: str | Path, kind: str = GPT2_TYPE, flag: str = "--export") -> None:
    """Refuse an export directory unless it is new, empty, or an earlier export of this kind.

    Args:
        kind: the `model_type` of config.json.
    Raises:
        UsageError: the directory holds something else; or as `check_directory`.
    """
    path = Path(directory)
    check_directory(flag, path)
    entries = list(path.iterdir()) if path.exists() else []
    if entries and read_config_json(path).get("model_type") != kind:
        kind_name = "a GPT-2" if kind == GPT2_TYPE else f"a model of this kind ({kind})"
        fact = f"{path} holds something else than {kind_name} (entries: {len(entries)})"
        raise UsageError(f"{fact}; give {flag} a new directory")


def read_config_json(directory: Path) -> dict[str, Any]:
    """The content of a model's config.json; empty if there is none, or it cannot be read."""
    try:
        content = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
