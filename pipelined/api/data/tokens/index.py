"""The index of a directory of tokens, `index.json`, and files of bare tokens as nanoGPT writes them (`.bin`)."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelined.api.data.tokens.mapped import MappedTokens
from pipelined.errors import MALFORMED, UsageError, plain_name

INDEX, TOKENIZER = "index.json", "tokenizer.json"
FORMAT, PACKED = "pipelined tokens 1", "pipelined tokens 2"
"""The formats: documents follow one another, or are packed into rows, with a mask beside each shard."""
DTYPES = ("uint16", "uint32")


@dataclass(frozen=True)
class TokenFiles:
    """Token files, their digest and their tokenizer.

    Args:
        tokens: all of them.
        digest: a resumed run must have the same.
        tokenizer: the tokenizer.json that made them; None where the files do not say.
    """

    tokens: MappedTokens
    digest: str
    tokenizer: str | None


def is_tokenized(path: Path) -> bool:
    """Whether a path holds tokens rather than text."""
    return path.suffix.lower() == ".bin" or (path / INDEX).is_file()


def is_indexed(paths: Sequence[Path]) -> bool:
    """Whether the paths are one directory with an index, which names the tokenizer.

    Raises:
        UsageError: there is such a directory beside other paths.
    """
    indexed = [path for path in paths if (path / INDEX).is_file()]
    if indexed and len(paths) > 1:
        fact = f"{indexed[0]} holds tokens and their index, so it stands alone (paths: {len(paths)})"
        raise UsageError(f"{fact}; write all files into one directory, with python -m pipelined tokens")
    return bool(indexed)


def open_index(directory: Path) -> TokenFiles:
    """The tokens of a directory.

    Raises:
        UsageError: the index is damaged, a shard is missing or has another size than the index says.
    Cost: a look at every file's size; no token is read.
    """
    path = directory / INDEX
    try:
        raw = path.read_bytes()
        tokenizer = (directory / TOKENIZER).read_text(encoding="utf-8")
        index = json.loads(raw)
        shards = [(directory / plain_name(shard["file"]), _whole(shard, "tokens")) for shard in index["shards"]]
        dtype = _token_type(index)
        row = _row(index)
        masks = [(directory / plain_name(shard["mask"]), shard["tokens"]) for shard in index["shards"] if row]
    except OSError as error:
        raise UsageError(f"cannot read {error.filename} ({error.strerror}); write the tokens again") from error
    except MALFORMED as error:
        raise UsageError(f"the index {path} is damaged ({error!r}); write the tokens again") from error
    digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
    return TokenFiles(MappedTokens.open(shards, dtype, row, masks), digest, tokenizer)


def _token_type(index: dict[str, Any]) -> str:
    """The type of the tokens. Raises ValueError: the format or the type is unknown."""
    if index["format"] not in (FORMAT, PACKED) or index["dtype"] not in DTYPES:
        raise ValueError(f"format: {index['format']!r}, dtype: {index['dtype']!r}")
    return str(index["dtype"])


def _row(index: dict[str, Any]) -> int:
    """The tokens of a row; 0 where documents are not packed. Raises ValueError: a shard is not made of rows."""
    row = _whole(index, "row") if index["format"] == PACKED else 0
    if index["format"] == PACKED and (row < 2 or any(_whole(shard, "tokens") % row for shard in index["shards"])):
        raise ValueError(f"row: {row}")
    return row


def _whole(fields: dict[str, Any], name: str) -> int:
    """A number of tokens. Raises TypeError: it is no whole number, or below 0."""
    value = fields[name]
    if type(value) is not int or value < 0:
        raise TypeError(f"{name}: {value!r:.80}")
    return value


def is_packed(paths: Sequence[Path]) -> bool:
    """Whether a path holds documents packed into rows; False where an index cannot be read, which is told later."""
    try:
        return any(json.loads((path / INDEX).read_bytes())["format"] == PACKED for path in paths if is_indexed([path]))
    except (OSError, *MALFORMED):
        return False


def open_bin(paths: Sequence[Path], vocab_size: int) -> TokenFiles:
    """The tokens of files without an index: uint16, or uint32 for a tokenizer of more than 65,536 symbols.

    Raises:
        UsageError: a file cannot be read or holds no whole tokens, all are empty, or one of the tokens looked at is no
            symbol.
    Cost: reads 128 Ki tokens.
    """
    dtype = DTYPES[vocab_size > 1 << 16]
    size = 4 if dtype == "uint32" else 2
    files = [(path, _tokens(path, size)) for path in paths]
    tokens = MappedTokens.open(files, dtype)
    if not len(tokens):
        raise UsageError(f"{paths[0]} holds no tokens (bytes: 0, files: {len(paths)}); write it again")
    if (largest := int(tokens.sample().max())) >= vocab_size:
        fact = f"{paths[0]} was written with another tokenizer (a token: {largest}, symbols: {vocab_size})"
        raise UsageError(f"{fact}; give its --tokenizer")
    return TokenFiles(tokens, tokens.digest(), None)


def _tokens(path: Path, size: int) -> int:
    """The tokens of `size` bytes in a file."""
    try:
        length = path.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read the tokens {path} ({error.strerror}); give --data a readable file") from error
    if length % size:
        fact = f"{path} is no whole number of tokens (bytes: {length}, a token: {size})"
        raise UsageError(f"{fact}; write it again, or give its --tokenizer")
    return length // size
