"""Tokenizers: text and back, what transformers makes of them, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.common.lm.data.corpus import read_plays
from pipelined.api.data.tokens.tokenizer import ByteTokenizer, Tokenizer, find_tokenizer
from pipelined.errors import UsageError

PLAY = read_plays()[0]
NAMES = ["bytes", "gpt2", "bpe:300"]
MADE = {name: find_tokenizer(name, [PLAY[:20_000]]) for name in NAMES}

TEXTS = st.text(st.characters(codec="utf-8"))


@settings(deadline=None)
@given(text=TEXTS, name=st.sampled_from(NAMES))
def test_text_comes_back_whole(text: str, name: str):
    assert MADE[name].decode(MADE[name].encode(text)) == text


@settings(max_examples=15, deadline=None)
@given(text=TEXTS, name=st.sampled_from(NAMES))
def test_a_tokenizer_read_from_json_is_the_same(text: str, name: str):
    told = Tokenizer.from_json(MADE[name].to_json())
    assert type(told) is type(MADE[name]) and told.vocab_size == MADE[name].vocab_size
    assert np.array_equal(told.encode(text), MADE[name].encode(text))


@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_and_agrees(name: str, tmp_path: Path):
    from transformers import AutoTokenizer

    MADE[name].save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = PLAY[:2000] + " naïve — 東京\t\x00\n"
    ids = theirs(text)["input_ids"]
    assert ids == MADE[name].encode(text).tolist() and len(theirs) == MADE[name].vocab_size
    assert theirs.decode(ids) == text


def test_sizes_and_widths():
    sizes = {name: made.vocab_size for name, made in MADE.items()}
    assert sizes == {"bytes": 256, "gpt2": 50257, "bpe:300": 300}
    assert MADE["gpt2"].encode("To be, or not to be").tolist() == [2514, 307, 11, 393, 407, 284, 307]
    assert all(made.encode("é").dtype == np.uint16 for made in MADE.values())


def test_bytes_are_their_own_ids():
    assert ByteTokenizer().encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert ByteTokenizer().decode([97, 0xC3]) == "a\ufffd"


def test_documents_are_encoded_apart_and_joined():
    for made in MADE.values():
        apart = np.concatenate([made.encode("To be,"), made.encode("or not")])
        assert np.array_equal(made.encode_all(["To be,", "or not"]), apart)


def test_only_the_published_vocabulary_ends_texts():
    assert {name: made.end_of_text for name, made in MADE.items()} == {"bytes": None, "gpt2": 50256, "bpe:300": None}
    assert MADE["gpt2"].encode("a<|endoftext|>b").tolist() == [64, 50256, 65]


def test_training_twice_gives_the_same_symbols():
    assert find_tokenizer("bpe:300", [PLAY[:20_000]]).to_json() == MADE["bpe:300"].to_json()


@pytest.mark.parametrize("pair", [False, True], ids=["tokenizer.json", "vocab.json and merges.txt"])
def test_a_directory_or_a_file_is_loaded(tmp_path: Path, pair: bool):
    MADE["bpe:300"].save(tmp_path)
    found = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    assert find_tokenizer(str(tmp_path / "tokenizer.json"), []).to_json() == MADE["bpe:300"].to_json()
    if pair:
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / "vocab.json").write_text(json.dumps(found["vocab"]))
        (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in found["merges"]))
    loaded = find_tokenizer(str(tmp_path), [])
    assert np.array_equal(loaded.encode(PLAY[:3000]), MADE["bpe:300"].encode(PLAY[:3000]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("byte", "no tokenizer is called 'byte'; take bytes, gpt2, bpe:N, a tokenizer.json"),
        ("bpe:100", r"at least its 256 bytes \(symbols: 100\)"),
        ("bpe:many", r"symbols: many"),
    ],
)
def test_an_unknown_tokenizer_is_refused(name: str, message: str):
    with pytest.raises(UsageError, match=message):
        find_tokenizer(name, ["text"])


def test_files_that_hold_no_tokenizer_are_refused(tmp_path: Path):
    (tmp_path / "broken.json").write_text('{"model": 3}')
    with pytest.raises(UsageError, match=r"not a tokenizer.json \(12 characters"):
        find_tokenizer(str(tmp_path / "broken.json"), [])
    with pytest.raises(UsageError, match="neither tokenizer"):
        find_tokenizer(str(tmp_path), [])
