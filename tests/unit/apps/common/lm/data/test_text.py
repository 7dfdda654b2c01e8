"""Text, or tokens in files: what is learnt from and scored; files of another tokenizer or size are refused."""

import asyncio
import hashlib
import json

import numpy as np
import pytest

from apps.common.lm.data.text import read_text, share_text
from pipelined.api.data.tokens.index import PACKED, is_packed
from pipelined.api.data.tokens.mapped import MappedTokens
from pipelined.api.data.tokens.tokenizer import ByteTokenizer, find_tokenizer
from pipelined.errors import UsageError
from tests.conformance.worlds import local_world

WORDS = "the quick brown fox jumps over the lazy dog. " * 40
INFINITE = float("inf")
IDS = np.frombuffer(WORDS.encode(), np.uint8).astype(np.uint16)


@pytest.fixture
def index(tmp_path):
    """A directory of two shards with an index."""
    for name, part in (("a.bin", IDS[:700]), ("b.bin", IDS[700:])):
        part.tofile(tmp_path / name)
    (tmp_path / "tokenizer.json").write_text(ByteTokenizer().to_json())
    write_index(tmp_path)
    return tmp_path


def write_index(folder, **change):
    shards = [{"file": "a.bin", "tokens": 700}, {"file": "b.bin", "tokens": 1100}]
    about = {"format": "pipelined tokens 1", "dtype": "uint16", "shards": shards} | change
    (folder / "index.json").write_text(json.dumps(about))


def all_of(tokens) -> np.ndarray:
    return tokens.spans(np.array([0]), len(tokens))[0]


def test_tokens_of_an_index_are_learnt_from_but_for_their_end(index):
    text = read_text([index])
    assert np.array_equal(np.concatenate([all_of(text.train), all_of(text.validation)]), IDS)
    assert len(text.validation) == 90 and text.windows == 256
    assert text.digests["data"] == hashlib.blake2b((index / "index.json").read_bytes(), digest_size=16).hexdigest()
    assert text.tokenizer.decode(all_of(text.train)[:9]) == "the quick" and text.score_ngrams(8) == {}
    assert f"{index}, digest" in text.describe(0, 0, 8)


def test_bare_tokens_with_text_to_score(tmp_path):
    IDS.tofile(tmp_path / "train.bin")
    (tmp_path / "val.txt").write_text("jumps")
    text = read_text([tmp_path / "train.bin"], "bytes", [tmp_path / "val.txt"], windows=3)
    assert len(text.train) == len(IDS) and len(text.validation) == 5 and text.windows == 3


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        (None, "4 windows scored"),
        (0, "4 windows scored"),
        (3, "3 of 4 windows scored"),
        (4, "4 windows scored"),
        (9, "4 windows scored (--eval-windows: 9)"),
    ],
)
def test_the_windows_that_are_scored_are_printed_beside_those_that_there_are(tmp_path, windows, said):
    (tmp_path / "train.txt").write_text(WORDS)
    (tmp_path / "val.txt").write_text("x" * 38)
    text = read_text([tmp_path / "train.txt"], "bytes", [tmp_path / "val.txt"], windows=windows)
    assert f", 38 to validate, {said}; tokenizer: " in text.describe(0, 0, 9)


def test_text_with_something_else_to_score_is_learnt_from_whole(tmp_path, index):
    (tmp_path / "train.txt").write_text(WORDS)
    text = read_text([tmp_path / "train.txt"], "bytes", [index])
    assert np.array_equal(text.train, IDS) and np.array_equal(all_of(text.validation)[:50], IDS[:50])
    assert text.windows == 256


def test_every_rank_maps_the_files_and_none_sends_their_tokens(index):
    async def share():
        return await asyncio.gather(*(share_text(end, lambda: read_text([index])) for end in local_world(3)))

    texts = asyncio.run(share())
    assert all(isinstance(text.train, MappedTokens) for text in texts)
    assert (
        len({text.digest for text in texts}) == len({(text.train.first_token, text.train.count) for text in texts}) == 1
    )


def test_a_file_that_one_rank_cannot_read_is_refused_on_all(index):
    def read():
        text = read_text([index])
        (index / "b.bin").write_bytes(b"")
        return text

    async def share():
        ends = local_world(2)
        return await asyncio.gather(*(share_text(end, read) for end in ends), return_exceptions=True)

    assert all(isinstance(found, UsageError) and "b.bin is truncated" in str(found) for found in asyncio.run(share()))


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"dtype": "int64"}, "damaged"),
        ({"format": "other"}, "damaged"),
        ({"shards": [{"file": "a.bin"}]}, "damaged"),
        *(({"shards": [{"file": "a.bin", "tokens": wrong}]}, "damaged") for wrong in (INFINITE, 4.9, "700", True, -1)),
        *(({"shards": [{"file": wrong, "tokens": 700}]}, "damaged") for wrong in ("/a.bin", "../a.bin", "", None)),
        *(({"format": PACKED, "row": wrong}, "damaged") for wrong in (INFINITE, 2.5, "2", None)),
        ({"shards": [{"file": "a.bin", "tokens": 800}]}, "truncated .bytes: 1400, expected: 1600"),
        ({"shards": [{"file": "c.bin", "tokens": 8}]}, "cannot read the tokens .*c.bin"),
    ],
)
def test_a_damaged_index_is_refused(index, change, fact):
    write_index(index, **change)
    with pytest.raises(UsageError, match=fact):
        read_text([index])


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, "[]", "3", "null"])
def test_json_that_is_no_index_is_refused(index, text):
    (index / "index.json").write_text(text)
    assert not is_packed([index])
    with pytest.raises(UsageError, match=r"the index .* is damaged .*; write the tokens again"):
        read_text([index])


def test_tokens_of_another_tokenizer_are_refused(index, tmp_path):
    (tmp_path / "other").mkdir()
    find_tokenizer("bpe:300", [WORDS]).save(tmp_path / "other")
    with pytest.raises(UsageError, match="another tokenizer"):
        read_text([index], str(tmp_path / "other"))
    with pytest.raises(UsageError, match=r"a\.bin was written with another tokenizer .a token: 65535"):
        np.full(9, 65535, np.uint16).tofile(index / "a.bin")
        read_text([index / "a.bin"], "bytes")


def test_text_beside_tokens_and_an_index_beside_others_are_refused(index):
    (index / "a.txt").write_text(WORDS)
    with pytest.raises(UsageError, match="one of both kinds"):
        read_text([index / "a.bin", index / "a.txt"])
    with pytest.raises(UsageError, match="stands alone"):
        read_text([index, index / "a.bin"])
