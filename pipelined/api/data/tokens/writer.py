"""Write tokens: texts are encoded in processes, and their ids written as shards with an index."""

import hashlib
import json
import multiprocessing
import os
import secrets
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import TracebackType

import numpy as np

from pipelined.api.data.tokens.formats import TextChunk
from pipelined.api.data.tokens.index import FORMAT, INDEX, PACKED, TOKENIZER
from pipelined.api.data.tokens.packing import Ids, pack_rows
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.errors import UsageError, writing

BATCH = 1 << 20
"""Characters that a process encodes at once."""


@dataclass
class Written:
    """The shards of a directory, as its index records them.

    Args:
        documents: complete documents so far.
        tokens: in all shards.
        shards: the name, the number of tokens and the SHA-256 of each, and of the mask beside it where rows are packed.
    """

    documents: int = 0
    tokens: int = 0
    shards: list[dict[str, object]] = field(default_factory=list)


class ShardWriter:
    """Writes a directory of shards under another name, and gives it its own at the end; leaves nothing after an error.

    Args:
        directory: must not exist, or be empty; not the working directory, which it replaces.
        tokenizer: that makes the ids.
        tokenizer_name: as given on the command line; for the index.
        size: the most tokens of a shard.
        row: tokens of a row into which documents are packed, of which a shard has at least one; 0: they are not.
    Raises:
        UsageError: the directory is the working directory, or above it.
    """

    def __init__(self, directory: Path, tokenizer: Tokenizer, tokenizer_name: str, size: int, row: int = 0):
        if Path.cwd().is_relative_to(resolved := directory.resolve()):
            raise UsageError(f"--out {directory} is the working directory, or above it; name a new directory")
        directory = resolved
        self._directory, self._tokenizer, self._tokenizer_name = directory, tokenizer, tokenizer_name
        self._row = row
        self._size = max(row, size // row * row) if row else size
        self._part = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.part")
        self._ids: list[np.ndarray] = []
        self._masks: list[np.ndarray] = []
        self._count = 0
        self.written = Written()

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer as JSON, while the directory is written."""
        return self._part / TOKENIZER

    def __enter__(self) -> "ShardWriter":
        directory = self._directory
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(f"{directory} holds something already; give --out another directory, or remove it")
        with writing(directory):
            self._part.mkdir(parents=True)
            try:
                self.tokenizer_file.write_text(self._tokenizer.to_json(), encoding="utf-8")
            except OSError:
                shutil.rmtree(self._part, ignore_errors=True)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            shutil.rmtree(self._part, ignore_errors=True)

    def add(self, ids: np.ndarray, documents: int) -> None:
        """Append ids, in which this many documents end."""
        self._ids.append(ids)
        self._count += len(ids)
        self.written.documents += documents
        while self._count >= self._size:
            self._write_shard()

    def add_packed(self, encoded: Iterable["Encoded"], filler: int) -> None:
        """Pack documents into rows, and append these.

        Args:
            filler: the id of what fills a row up.
        """
        for ids, mask in pack_rows(self._documents(encoded), self._row, filler):
            self._masks.append(mask)
            self.add(ids, 0)

    def _documents(self, encoded: Iterable["Encoded"]) -> Iterator[Ids]:
        """Whole documents; an unfinished document at the end is left out."""
        parts: list[Ids] = []
        for document in encoded:
            self.written.documents += document.documents
            cuts = np.split(document.ids, document.ends), np.split(document.mask, document.ends)
            for index, part in enumerate(zip(*cuts, strict=True)):
                parts.append(part)
                if index < len(document.ends):
                    ids, mask = map(np.concatenate, zip(*parts, strict=True))
                    yield ids, mask
                    parts = []

    def finish(self) -> Written:
        """Write the last shard and the index, and give the directory its name.

        Raises:
            UsageError: there are no tokens at all.
        """
        if self._count:
            self._write_shard()
        if not self.written.tokens:
            fact = "nothing in the files counts as a target" if self._row else "the files hold no text"
            raise UsageError(f"{fact} (tokens: 0); name files with text in them, of chats with an assistant's messages")
        digest = _sha256(self.tokenizer_file.read_bytes())
        tokenizer = {"called": self._tokenizer_name, "symbols": self._tokenizer.vocab_size, "sha256": digest}
        dtype = self._tokenizer.dtype.name
        kind = {"format": PACKED, "row": self._row} if self._row else {"format": FORMAT}
        index = {**kind, "dtype": dtype, "tokenizer": tokenizer, **vars(self.written)}
        with writing(self._directory):
            (self._part / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
            self._part.replace(self._directory)
        return self.written

    def _write_shard(self) -> None:
        ids = np.concatenate(self._ids)
        shard_ids, remaining_ids = ids[: self._size], ids[self._size :]
        self._ids = [remaining_ids]
        self._count = len(remaining_ids)
        size = len(shard_ids)
        suffix = f"{len(self.written.shards):05}.bin"
        digest = self._write(f"tokens-{suffix}", shard_ids.astype(self._tokenizer.dtype.newbyteorder("<")))
        entry = {"file": f"tokens-{suffix}", "tokens": size, "sha256": digest}
        if self._row:
            mask = np.concatenate(self._masks)
            entry |= {"mask": f"mask-{suffix}", "mask_sha256": self._write(f"mask-{suffix}", mask[:size])}
            self._masks = [mask[size:]]
        self.written.shards.append(entry)
        self.written.tokens += size

    def _write(self, name: str, numbers: np.ndarray) -> str:
        """Write a file, and return its SHA-256."""
        raw = numbers.tobytes()
        with writing(self._directory), (self._part / name).open("wb") as file:
            file.write(raw)
            os.fsync(file.fileno())
        return _sha256(raw)


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True)
class Encoded:
    """The ids of some chunks.

    Args:
        ends: the positions after the last id of each document.
        mask: whether each id counts as a target, where documents are packed; uint8.
        size: the bytes of files that they took.
    """

    ids: np.ndarray
    ends: np.ndarray
    mask: np.ndarray
    size: int

    @property
    def documents(self) -> int:
        """The documents that end here."""
        return len(self.ends)


def encode_chunks(chunks: Iterable[TextChunk], tokenizer: Path, end: int | None, workers: int) -> Iterator[Encoded]:
    """Encode chunks, in order.

    Args:
        tokenizer: its JSON.
        end: the id after every document; None: nothing.
        workers: processes; 1: this one.
    Cost: holds the text and ids of 2 MiB of text a process, of longer documents more.
    """
    encode = partial(_encode, tokenizer, end)
    if workers == 1:
        yield from map(encode, _batch_chunks(chunks))
        return
    pending: deque[Future[Encoded]] = deque()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as processes:
        for batch in _batch_chunks(chunks):
            pending.append(processes.submit(encode, batch))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _batch_chunks(chunks: Iterable[TextChunk]) -> Iterator[list[TextChunk]]:
    """Pieces in lists of about `BATCH` characters."""
    batch = []
    length = 0
    for chunk in chunks:
        batch.append(chunk)
        length += 1 + len(chunk.text)
        if length >= BATCH:
            yield batch
            batch = []
            length = 0
    if batch:
        yield batch


def _encode(tokenizer: Path, end: int | None, chunks: Sequence[TextChunk]) -> Encoded:
    encoder = _load_tokenizer(tokenizer)
    end_id = np.array([] if end is None else [end], encoder.dtype)
    encoded = encoder.encode_each([chunk.text for chunk in chunks])
    parts = [np.append(ids, end_id) if chunk.ends else ids for chunk, ids in zip(chunks, encoded, strict=True)]
    sizes = [len(part) for part in parts]
    ends = np.cumsum(sizes)[[index for index, chunk in enumerate(chunks) if chunk.ends]]
    mask = np.repeat(np.array([chunk.counted for chunk in chunks], np.uint8), sizes)
    return Encoded(np.concatenate(parts), ends, mask, sum(chunk.size for chunk in chunks))


@cache
def _load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file, read once by each process, of which each uses one thread."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return Tokenizer.from_json(path.read_text(encoding="utf-8"))
