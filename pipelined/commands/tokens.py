"""Turn text into ids once: files are tokenised in processes, into shards that training maps.

Reads plain text, JSON lines (.jsonl), Parquet (.parquet), and Hugging Face datasets on disk (directories of .arrow
files). The tokenizer's end token follows every document; a file of plain text is one document.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipelined.errors import UsageError, refuse_below

if TYPE_CHECKING:
    from pipelined.api.data.tokens.formats import TextChunk
    from pipelined.api.data.tokens.tokenizer import Tokenizer
    from pipelined.api.data.tokens.writer import Encoded, Written

SHARD_TOKENS = 100_000_000
"""Tokens of a shard: 200 MB."""
BYTES_A_PROCESS = 8 << 20
"""Bytes of files for which another process is started, if the command names no number of processes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files, or directories of them")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new directory for the shards")
    parser.add_argument(
        "--tokenizer", default="gpt2", help="gpt2, bytes (256 symbols), a tokenizer.json, or a directory with one"
    )
    parser.add_argument("--field", help="the key or column that holds the text. Default: text, or messages with --chat")
    parser.add_argument(
        "--pack",
        type=int,
        metavar="T",
        help="pack documents first-fit into rows for sequences of T tokens, so that no document that fits is cut",
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="with --pack: JSON lines with a list of messages; only what the assistant says counts in the loss",
    )
    parser.add_argument(
        "--end",
        metavar="TOKEN",
        help="the token after every document. Default: the end token of GPT-2, if the tokenizer has it",
    )
    parser.add_argument("--shard", type=int, default=SHARD_TOKENS, metavar="TOKENS", help="the most tokens of a shard")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes. Default: one for every 8 MiB of files, at most one a core"
    )


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say.

    Raises:
        UsageError: a file cannot be read as it is, or the directory holds something; nothing is left behind.
    """
    from pipelined.api.data.tokens.formats import check, files_in

    _require_possible(arguments)
    if not arguments.field:
        arguments.field = "messages" if arguments.chat else "text"
    tokenizer = _tokenizer(arguments.tokenizer)
    end = _end(tokenizer, arguments.end)
    files = [file for path in arguments.files for file in files_in(path)]
    for file in files:
        check(file, arguments.field)
    written = _write(arguments, files, tokenizer, end)
    ending = "nothing" if end is None else tokenizer.decode([end])
    counts = f"{written.documents:,} documents with {ending} after them, {written.tokens:,} tokens"
    shards = f"{tokenizer.dtype.name}, shards: {len(written.shards)}"
    seq = "" if arguments.pack is None else f" --seq {arguments.pack}"
    print(f"{arguments.out}: {counts} ({shards}); train with --data {arguments.out}{seq}")


def _require_possible(arguments: argparse.Namespace) -> None:
    """Refuse numbers out of range, and chats without rows."""
    for name in ("shard", "pack", "workers"):
        number = getattr(arguments, name)
        if number is not None:
            refuse_below(1, f"--{name}", number)
    if arguments.chat and arguments.pack is None:
        raise UsageError("--chat needs rows, which have the loss's mask; add --pack T, the tokens of a sequence")


def _write(arguments: argparse.Namespace, files: list[Path], tokenizer: "Tokenizer", end: int | None) -> "Written":
    """Write the directory, with a progress bar on a terminal."""
    from rich import progress
    from rich.console import Console

    from pipelined.api.data.tokens.writer import ShardWriter, encode_chunks
    from transports.shm.cores import own_cores

    total = sum(file.stat().st_size for file in files)
    workers = arguments.workers or max(1, min(len(own_cores()), total // BYTES_A_PROCESS))
    console = Console(stderr=True)
    row = 0 if arguments.pack is None else arguments.pack + 1
    columns = progress.BarColumn(), progress.DownloadColumn(), progress.TimeRemainingColumn()
    with (
        ShardWriter(arguments.out, tokenizer, arguments.tokenizer, arguments.shard, row) as shards,
        progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar,
    ):
        task = bar.add_task("", total=total)

        def encoded() -> "Iterator[Encoded]":
            chunks = _chunks(files, arguments.field, arguments.chat)
            for document in encode_chunks(chunks, shards.tokenizer_file, end, workers):
                bar.advance(task, document.size)
                yield document

        if row:
            shards.add_packed(encoded(), end or 0)
        else:
            for document in encoded():
                shards.add(document.ids, document.documents)
        return shards.finish()


def _tokenizer(name: str) -> "Tokenizer":
    from pipelined.api.data.tokens.tokenizer import find_tokenizer

    if name.startswith("bpe:"):
        fact = f"--tokenizer {name} is trained on text in memory"
        raise UsageError(f"{fact}; give a tokenizer.json, or a directory with one")
    return find_tokenizer(name, ())


def _end(tokenizer: "Tokenizer", token: str | None) -> int | None:
    """The id after every document. Raises UsageError: the tokenizer has no such token."""
    if token is None:
        return tokenizer.end_of_text
    if (end := tokenizer.id_of(token)) is None:
        raise UsageError(f"the tokenizer has no token {token!r}; give --end another one")
    return end


def _chunks(files: list[Path], field: str, chat: bool) -> Iterator["TextChunk"]:
    from pipelined.api.data.tokens.chat import chat_chunks
    from pipelined.api.data.tokens.formats import text_chunks

    for file in files:
        yield from chat_chunks(file, field) if chat else text_chunks(file, field)
