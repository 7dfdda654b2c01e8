"""Text as ids: read and tokenised once, by rank 0, and sent to all ranks. No torch.

So a cluster needs the files on one machine only, and a mistake in them is reported once, before anything is built.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apps.lm.data.corpus import read_corpus
from apps.lm.data.tokenizer import Tokenizer, find_tokenizer
from pipelined.actors.agree import agree, broadcast
from transports import Transport


@dataclass(frozen=True)
class Text:
    """What is learnt from and scored.

    Args:
        name: where it came from, for people.
        tokenizer: text to ids and back.
        train: the training ids.
        validation: the validation ids.
        source: digest of the text itself, before it was tokenised.
        called: how the tokenizer was asked for.
    """

    name: str
    tokenizer: Tokenizer
    train: np.ndarray
    validation: np.ndarray
    source: str = ""
    called: str = ""

    @property
    def digests(self) -> dict[str, str]:
        """What a run that goes on must have alike: the text, and the tokenizer."""
        tokenizer = hashlib.blake2b(self.tokenizer.to_json().encode(), digest_size=16).hexdigest()
        return {"data": self.source, "tokenizer": tokenizer}

    def describe(self, tokens: int, steps: int) -> str:
        """What is learnt from, in a line.

        Args:
            tokens: that the run takes in all of its steps.
        """
        epochs = f"{len(self.train):,} tokens, {tokens / max(1, len(self.train)):.3g} epochs in {steps} steps"
        held = f"{len(self.validation):,} to validate"
        name = f"{self.called} ({self.tokenizer.vocab_size} symbols, digest {self.digests['tokenizer'][:12]})"
        return f"data: {self.name}, digest {self.source[:12]}, {epochs}, {held}; tokenizer: {name}"

    @property
    def digest(self) -> str:
        """The blake2b of the tokenizer and all ids: with another one the sequences differ."""
        hasher = hashlib.blake2b(self.tokenizer.to_json().encode(), digest_size=32)
        for ids in (self.train, self.validation):
            hasher.update(f"{ids.dtype.name} {len(ids)}".encode())
            hasher.update(np.ascontiguousarray(ids).data)
        return hasher.hexdigest()


async def share_text(transport: Transport, read: Callable[[], Text]) -> Text:
    """Read the text on rank 0 and give it to every rank.

    Args:
        read: what rank 0 calls, in a thread.
    Raises:
        UsageError: on every rank, where the text, the tokenizer or their sizes cannot work.
    Cost: the tokens once to each rank.
    """
    text = await agree(transport, "text", asyncio.to_thread(read if transport.rank == 0 else _nothing))
    received = await broadcast(transport, "tokens", None if text is None else _pack(text))
    return text if text is not None else _unpack(received)


def _nothing() -> None:
    """What other ranks than the first read."""


def read_text(paths: Sequence[Path], tokenizer: str) -> Text:
    """Read files (or the plays, where there are none) and turn them into ids.

    Raises:
        UsageError: see `read_corpus` and `find_tokenizer`.
    """
    corpus = read_corpus(paths)
    found = find_tokenizer(tokenizer, corpus.train)
    ids = found.encode_all(corpus.train), found.encode_all(corpus.validation)
    return Text(corpus.name, found, *ids, corpus.digest, tokenizer)


def _pack(text: Text) -> dict[str, Any]:
    tokens = {part: getattr(text, part).tobytes() for part in ("train", "validation")}
    about = {"name": text.name, "source": text.source, "called": text.called}
    return {**tokens, **about, "tokenizer": text.tokenizer.to_json(), "dtype": text.train.dtype.name}


def _unpack(packed: dict[str, Any]) -> Text:
    train, validation = (np.frombuffer(packed[part], packed["dtype"]) for part in ("train", "validation"))
    tokenizer = Tokenizer.from_json(packed["tokenizer"])
    return Text(packed["name"], tokenizer, train, validation, packed["source"], packed["called"])
