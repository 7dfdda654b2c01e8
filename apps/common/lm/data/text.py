"""Text as ids, read and tokenised by rank 0 and sent to all ranks; or tokens in files that each rank maps. No torch.

So a cluster needs text on one machine only, and files of tokens on all. A mistake in them is reported at the start.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from apps.common.lm.data import token_cache
from apps.common.lm.data.batches import count_windows
from apps.common.lm.data.corpus import VALIDATION_SHARE, Corpus, read_corpus
from apps.common.lm.data.ngram import score_ngrams
from collectives.objects import broadcast_object
from pipelined.actors.agree import agree
from pipelined.api.data.tokens.index import INDEX, is_indexed, is_tokenized, open_bin, open_index
from pipelined.api.data.tokens.mapped import MappedTokens, Tokens
from pipelined.api.data.tokens.tokenizer import Tokenizer, find_tokenizer
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from transports import Transport

HELD_BACK = 10_000_000
"""The most tokens of files that are kept back for validation."""
WINDOWS = 256
"""Windows of tokens in files that an evaluation scores, if the run does not say how many."""


@dataclass(frozen=True)
class Text:
    """The tokens that are learnt from, and those that are scored.

    Args:
        name: where it came from, for people.
        tokenizer: text to ids and back.
        train: the training ids.
        validation: the validation ids.
        source: digest of the text itself, before it was tokenised.
        called: how the tokenizer was asked for.
        windows: the most validation windows that an evaluation scores; 0: all.
    """

    name: str
    tokenizer: Tokenizer
    train: Tokens
    validation: Tokens
    source: str = ""
    called: str = ""
    windows: int = 0

    @property
    def digests(self) -> dict[str, str]:
        """The digests of text and tokenizer, which a resumed run must have, too."""
        return {"data": self.source, "tokenizer": digest_of(self.tokenizer)}

    def describe(self, tokens: int, steps: int, sequence: int) -> str:
        """What is learnt from, and what is scored, in a line.

        Args:
            tokens: that the run takes in all of its steps.
            sequence: the tokens of a window.
        """
        epochs = f"{len(self.train):,} tokens, {tokens / max(1, len(self.train)):.3g} epochs in {steps} steps"
        windows = self._describe_windows(count_windows(self.validation, sequence))
        validation = f"{len(self.validation):,} to validate, {windows}"
        tokenizer = f"{self.called} ({self.tokenizer.vocab_size} symbols, digest {self.digests['tokenizer'][:12]})"
        return f"data: {self.name}, digest {self.source[:12]}, {epochs}, {validation}; tokenizer: {tokenizer}"

    def _describe_windows(self, windows: int) -> str:
        if 0 < self.windows < windows:
            return f"{self.windows:,} of {windows:,} windows scored"
        limit = f" (--eval-windows: {self.windows:,})" if self.windows > windows and self.windows != WINDOWS else ""
        return f"{windows:,} windows scored{limit}"

    @property
    def is_packed(self) -> bool:
        """Whether some tokens are no targets, so that a loss is a sum with its count."""
        return any(isinstance(ids, MappedTokens) and ids.row > 0 for ids in (self.train, self.validation))

    def require_countable(self, plan: Plan) -> None:
        """Refuse packed documents with --tensor above 1 or without a flush: both need every token to count.

        Raises: UsageError.
        """
        if not self.is_packed or (plan.tensor == 1 and plan.flushes):
            return
        flag = f"--tensor {plan.tensor}" if plan.tensor > 1 else f"--schedule {plan.schedule}, which updates earlier"
        fact = f"of packed documents some tokens do not count, and their number is known at the end of a step ({flag})"
        raise UsageError(f"{fact}; take a schedule with a flush and no --tensor, or write the tokens without --pack")

    def require_running(self, program: str) -> None:
        """Refuse packed documents. Raises UsageError."""
        if self.is_packed:
            fact = f"{program} counts every token, and of packed documents some do not count"
            raise UsageError(f"{fact}; write the tokens without --pack")

    @property
    def digest(self) -> str:
        """The blake2b of the tokenizer and all ids: with another one the sequences differ."""
        hasher = hashlib.blake2b(self.tokenizer.to_json().encode(), digest_size=32)
        for ids in (self.train, self.validation):
            hasher.update(f"{ids.dtype.name} {len(ids)}".encode())
            hasher.update(ids.digest().encode() if isinstance(ids, MappedTokens) else np.ascontiguousarray(ids).data)
        return hasher.hexdigest()

    def score_ngrams(self, sequence: int) -> dict[str, float]:
        """See `score_ngrams`; empty for tokens in files, which are too many to count."""
        if isinstance(self.train, MappedTokens) or isinstance(self.validation, MappedTokens):
            return {}
        return score_ngrams(self.train, self.validation, sequence, self.tokenizer.vocab_size)


def require_text(path: Path | None, digests: Mapping[str, str], new_data: bool) -> None:
    """Refuse to resume a checkpoint of another text or tokenizer, unless --new-data is given.

    Args:
        path: of the checkpoint, if the run resumes one.
        digests: of this run's text and tokenizer, as its own checkpoints record them.
    Raises:
        UsageError: they differ; the message has both digests.
    """
    if path is None or new_data:
        return
    record = open_checkpoint(path).meta.config.get("text")
    saved_digests = record if isinstance(record, dict) else {}
    names = [name for name, digest in digests.items() if saved_digests.get(name, digest) != digest]
    differences = [f"{name}: {saved_digests[name]} saved, {digests[name]} here" for name in names]
    if differences:
        fact = f"{path} was trained on other data ({'; '.join(differences)})"
        raise UsageError(f"{fact}; give that run's --data and --tokenizer, or add --new-data to go on with these")


def digest_of(tokenizer: Tokenizer) -> str:
    """The blake2b of a tokenizer's JSON."""
    return hashlib.blake2b(tokenizer.to_json().encode(), digest_size=16).hexdigest()


async def share_text(transport: Transport, read: Callable[[], Text]) -> Text:
    """Read the text on rank 0 and give it to every rank.

    Args:
        read: what rank 0 calls, in a thread.
    Raises:
        UsageError: on every rank, where the text, the tokenizer or their sizes cannot work, or a rank cannot read the
            files of tokens.
    Cost: the tokens once to each rank; for tokens in files, only the names of the files.
    """
    text = await agree(transport, "text", asyncio.to_thread(read if transport.rank == 0 else _read_nothing))
    packed_text = await broadcast_object(transport, "tokens", None if text is None else _pack(text))
    received_text = await agree(transport, "files", asyncio.to_thread(_unpack, packed_text))
    return received_text if text is None else text


def _read_nothing() -> None:
    """The read of all ranks but rank 0."""


def read_text(
    paths: Sequence[Path], tokenizer: str = "", held_out: Sequence[Path] = (), windows: int | None = None
) -> Text:
    """Read text (or the plays, where there are no paths) and turn it into ids; or open files of tokens.

    Args:
        paths: text files, or files of tokens: one directory with an index, or `.bin` files.
        tokenizer: see `find_tokenizer`; "": that of the index, of GPT-2 for a `.bin`, or else bytes.
        held_out: what is scored, in either form. Without it the end of each document, or of the tokens.
        windows: the most windows that an evaluation scores; 0: all. Without it all of text, `WINDOWS` of tokens.
    Raises:
        UsageError: see `read_corpus`, `find_tokenizer`, `open_index` and `open_bin`.
    """
    trains_on_all = bool(held_out)
    if _holds_tokens(paths):
        text = _read_tokens(paths, tokenizer, trains_on_all)
    else:
        text = _read_documents(paths, tokenizer or "bytes", trains_on_all)
    if trains_on_all:
        text = replace(text, validation=_read_held_out(held_out, text))
    if windows is None:
        windows = WINDOWS if isinstance(text.validation, MappedTokens) else 0
    return replace(text, windows=windows)


def _holds_tokens(paths: Sequence[Path]) -> bool:
    """Whether the paths hold tokens. Raises UsageError: some do, and others hold text."""
    tokenized = [path for path in paths if is_tokenized(path)]
    if tokenized and len(tokenized) < len(paths):
        text_path = next(path for path in paths if path not in tokenized)
        raise UsageError(f"{tokenized[0]} holds tokens and {text_path} text; give --data one of both kinds")
    return bool(tokenized)


def _read_documents(paths: Sequence[Path], tokenizer_name: str, trains_on_all: bool) -> Text:
    """Text turned into ids; all of it is learnt from if `trains_on_all`."""
    corpus = read_corpus(paths)
    documents = _whole_documents(corpus) if trains_on_all else corpus.train
    tokenizer, train, validation = _tokenise(documents, corpus.validation, tokenizer_name)
    return Text(corpus.name, tokenizer, train, validation, corpus.digest, called=tokenizer_name)


def _tokenise(train: Sequence[str], validation: Sequence[str], name: str) -> tuple[Tokenizer, np.ndarray, np.ndarray]:
    """The tokenizer, and the ids of both parts; those of a large text are made once, and kept on disk."""
    is_trained = name.startswith("bpe:")
    tokenizer = None if is_trained else find_tokenizer(name, ())
    key = ""
    if name != "bytes" and sum(map(len, (*train, *validation))) >= token_cache.MIN_CHARACTERS:
        made_by = digest_of(tokenizer) if tokenizer else f"{name} by tokenizers {tokenizers.__version__}"
        digest = Corpus("", tuple(train), tuple(validation)).digest
        key = hashlib.blake2b(f"{made_by} {digest}".encode(), digest_size=16).hexdigest()
        cached = token_cache.load(key)
        if cached is not None:
            return Tokenizer.from_json(cached.tokenizer), cached.train, cached.validation
    tokenizer = tokenizer or find_tokenizer(name, train)
    ids = tokenizer.encode_all(train), tokenizer.encode_all(validation)
    if key:
        token_cache.keep(key, token_cache.CachedTokens(tokenizer.to_json(), *ids))
    return tokenizer, *ids


def _read_tokens(paths: Sequence[Path], tokenizer_name: str, trains_on_all: bool) -> Text:
    """Files of tokens; the end is kept back for validation, unless `trains_on_all`."""
    called = tokenizer_name or ("its own" if is_indexed(paths) else "gpt2")
    given_tokenizer = find_tokenizer(called, ()) if tokenizer_name or not is_indexed(paths) else None
    tokenizer, tokens, source = _open_tokens(paths, given_tokenizer)
    cut = len(tokens) - (0 if trains_on_all else min(round(len(tokens) * VALIDATION_SHARE), HELD_BACK))
    cut -= cut % (tokens.row or 1)
    name = ", ".join(map(str, paths))
    return Text(name, tokenizer, tokens.part(0, cut), tokens.part(cut, len(tokens)), source, called=called)


def _open_tokens(paths: Sequence[Path], given_tokenizer: Tokenizer | None) -> tuple[Tokenizer, MappedTokens, str]:
    """The tokenizer, the tokens and their digest. Raises UsageError: the tokens are of another tokenizer than given."""
    if not is_indexed(paths):
        tokenizer = given_tokenizer or find_tokenizer("gpt2", ())
        token_files = open_bin(paths, tokenizer.vocab_size)
        return tokenizer, token_files.tokens, token_files.digest
    token_files = open_index(paths[0])
    tokenizer = Tokenizer.from_json(token_files.tokenizer or "")
    if given_tokenizer is not None and digest_of(given_tokenizer) != digest_of(tokenizer):
        fact = f"{paths[0] / INDEX} was written with another tokenizer (digest {digest_of(tokenizer)[:12]}, "
        fact += f"of --tokenizer or --init: {digest_of(given_tokenizer)[:12]})"
        raise UsageError(f"{fact}; leave --tokenizer out, or write the tokens again with this one")
    return tokenizer, token_files.tokens, token_files.digest


def _read_held_out(paths: Sequence[Path], text: Text) -> Tokens:
    """The ids that are scored, by the tokenizer of the text that is learnt from."""
    if _holds_tokens(paths):
        return _open_tokens(paths, text.tokenizer)[1]
    corpus = read_corpus(paths)
    return text.tokenizer.encode_all(_whole_documents(corpus))


def _whole_documents(corpus: Corpus) -> tuple[str, ...]:
    """The documents of a corpus with the ends that it keeps back."""
    return tuple(map("".join, zip(corpus.train, corpus.validation, strict=True)))


def _pack(text: Text) -> dict[str, Any]:
    notes = {"name": text.name, "source": text.source, "called": text.called, "windows": text.windows}
    tokens = {part: _pack_tokens(getattr(text, part)) for part in ("train", "validation")}
    return {**tokens, **notes, "tokenizer": text.tokenizer.to_json()}


def _pack_tokens(tokens: Tokens) -> list[Any]:
    if isinstance(tokens, MappedTokens):
        files = [[str(path), count] for path, count in tokens.files]
        masks = [[str(path), count] for path, count in tokens.masks]
        return [tokens.dtype.name, files, masks, [tokens.first_token, tokens.count], tokens.row]
    return [tokens.dtype.name, tokens.tobytes()]


def _unpack(packed: dict[str, Any]) -> Text:
    tokens = {part: _unpack_tokens(*packed[part]) for part in ("train", "validation")}
    return Text(**{**packed, **tokens, "tokenizer": Tokenizer.from_json(packed["tokenizer"])})


def _unpack_tokens(dtype: str, content: Any, masks: Any = (), part: Sequence[int] = (0, 0), row: int = 0) -> Tokens:
    """Tokens as sent, or as mapped here. Raises UsageError: this rank cannot read the same files."""
    if isinstance(content, bytes):
        return np.frombuffer(content, dtype)
    files, mask_files = ([(Path(path), tokens) for path, tokens in names] for names in (content, masks))
    start, count = part
    return MappedTokens.open(files, dtype, row, mask_files).part(start, start + count)
