"""The text as every rank needs it: read and tokenised once, by rank 0, and told to all. No torch.

So a cluster needs the files on one machine only, and a mistake in them is told once, before anything is built.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from apps._batches import Batches, validation_windows
from apps._config import Config
from apps._corpus import read_corpus
from apps._job import Job
from apps._presets import ModelConfig
from apps._tokenizer import Tokenizer, find_tokenizer
from pipelined.exchange import share
from pipelined.runtime import together
from transports import Transport


@dataclass(frozen=True)
class Text:
    """What is learnt from and scored.

    Args:
        name: where it came from, for people.
        tokenizer: text to ids and back.
        train: the training ids.
        validation: the validation ids.
    """

    name: str
    tokenizer: Tokenizer
    train: np.ndarray
    validation: np.ndarray

    @property
    def digest(self) -> str:
        """The blake2b of the tokenizer and all ids: who has another one finds other sequences."""
        hasher = hashlib.blake2b(self.tokenizer.to_json().encode(), digest_size=32)
        for ids in (self.train, self.validation):
            hasher.update(f"{ids.dtype.name} {len(ids)}".encode())
            hasher.update(np.ascontiguousarray(ids))
        return hasher.hexdigest()


async def prepare_text(transport: Transport, job: Job) -> Text:
    """Read a job's text on rank 0 and give it to every rank; see `share_text`."""
    return await share_text(transport, partial(_read, job))


async def share_text(transport: Transport, read: Callable[[], Text]) -> Text:
    """Read the text on rank 0 and give it to every rank.

    Args:
        read: what rank 0 calls, in a thread.
    Raises:
        UsageError: on every rank, where the text, the tokenizer or their sizes cannot work.
    Cost: the tokens once to each rank.
    """
    text = await together(transport, "text", asyncio.to_thread(read if transport.rank == 0 else _nothing))
    told = await share(transport, "tokens", None if text is None else _pack(text))
    return text if text is not None else _unpack(told)


def _nothing() -> None:
    """What other ranks than the first read."""


def _read(job: Job) -> Text:
    text = text_of(job.config, job.model)
    batches_of(job, text.train)
    validation_windows(text.validation, job.sequence)
    return text


def text_of(config: Config, model: ModelConfig) -> Text:
    """The text that the flags name, which the model has symbols enough for.

    Raises:
        UsageError: it has not; or see `read_text`.
    """
    text = read_text(config.data, config.tokenizer or (str(config.init) if config.init else "bytes"))
    model.check_vocabulary(text.tokenizer.vocab_size)
    return text


def read_text(paths: Sequence[Path], tokenizer: str) -> Text:
    """Read files (or the plays, where there are none) and turn them into ids.

    Raises:
        UsageError: see `read_corpus` and `find_tokenizer`.
    """
    corpus = read_corpus(paths)
    found = find_tokenizer(tokenizer, corpus.train)
    return Text(corpus.name, found, found.encode_all(corpus.train), found.encode_all(corpus.validation))


def batches_of(job: Job, train: np.ndarray) -> Batches:
    """The training sequences of a job, step by step."""
    return Batches(train, job.sequence, job.plan.rows, job.plan.total_microbatches, job.config.seed)


def _pack(text: Text) -> dict[str, Any]:
    tokens = {part: getattr(text, part).tobytes() for part in ("train", "validation")}
    return {**tokens, "name": text.name, "tokenizer": text.tokenizer.to_json(), "dtype": text.train.dtype.name}


def _unpack(told: dict[str, Any]) -> Text:
    train, validation = (np.frombuffer(told[part], told["dtype"]) for part in ("train", "validation"))
    return Text(told["name"], Tokenizer.from_json(told["tokenizer"]), train, validation)
