"""Large texts as ids, kept in the user's cache directory under a digest of what made them. No torch.

A damaged file (zip checks each array) counts as none, and one that cannot be written is left out: a run only loses
time.
"""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelined.process.whole_file import whole_file

MIN_CHARACTERS = 1 << 20
"""Characters from which on a text is kept; fewer are tokenised in about a second."""
MAX_FILES = 8
"""Texts that are kept; the one used longest ago is removed first."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedTokens:
    """A text as ids.

    Args:
        tokenizer: the tokenizer that made them, as JSON.
        train, validation: the ids of its two parts.
    """

    tokenizer: str
    train: np.ndarray
    validation: np.ndarray


def load(key: str) -> CachedTokens | None:
    """What was kept under a key; None for nothing whole."""
    try:
        path = _directory() / f"{key}.npz"
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            os.utime(path)  # the one used longest ago is removed first
            return CachedTokens(file["tokenizer"].tobytes().decode(), file["train"], file["validation"])
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever numpy and zipfile raise on a damaged file
        log.info("the cache of tokens cannot be read (%r)", error)
        return None


def keep(key: str, tokens: CachedTokens) -> None:
    """Keep tokens under a key, and remove the file used longest ago of too many."""
    try:
        directory = _directory()
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer = np.frombuffer(tokens.tokenizer.encode(), np.uint8)
        with whole_file(directory / f"{key}.npz") as part, part.open("wb") as file:
            np.savez(file, allow_pickle=False, tokenizer=tokenizer, train=tokens.train, validation=tokens.validation)
        for old in sorted(directory.glob("*.npz"), key=lambda path: path.stat().st_mtime)[:-MAX_FILES]:
            with suppress(FileNotFoundError):  # removed by another run
                old.unlink()
    except (OSError, RuntimeError) as error:
        log.info("the cache of tokens cannot be written (%r)", error)


def _directory() -> Path:
    """Raises RuntimeError: the user has no home."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache or Path.home() / ".cache") / "pipelined" / "tokens"
