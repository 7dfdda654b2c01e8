"""Documents in rows: first-fit as a plain loop has it, none cut that fits, each token a target once at most."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.__main__ import main
from pipelined.api.data.tokens import packing
from pipelined.api.data.tokens.index import open_index
from pipelined.api.data.tokens.packing import pack_rows
from pipelined.api.data.tokens.tokenizer import ByteTokenizer
from tests.unit.apps.common.lm.data.chats import CHATS, spoken

FILLER = 7


def documents(sizes):
    """Documents of other ids each; every token counts."""
    starts = np.cumsum([100, *sizes])[:-1]
    each = zip(starts, sizes, strict=True)
    return [(np.arange(start, start + size), np.ones(size, np.uint8)) for start, size in each]


def first_fit(sizes, row):
    """The sizes in each row, by the rule alone: a row that is full, or has one place left, is not looked at again."""
    rows = []
    for size in sizes:
        into = next((each for each in rows if sum(each) + size <= row and row - sum(each) >= 2), None)
        if into is None:
            rows.append(into := [])
        into.append(size)
    return rows


def sizes_in(ids, counted):
    """The sizes of the documents in a row, each of which begins with a token that does not count."""
    runs = np.split(ids, np.flatnonzero(counted == 0))[1:]
    return [len(run) for run in runs if run[0] != FILLER]


@given(st.lists(st.integers(2, 10), min_size=1, max_size=40))
def test_documents_go_where_they_fit_first(sizes):
    rows = list(pack_rows(documents(sizes), 10, FILLER))
    assert sorted(sizes_in(*row) for row in rows) == sorted(first_fit(sizes, 10))
    assert all(len(ids) == len(counted) == 10 for ids, counted in rows)


@given(st.lists(st.integers(0, 35), max_size=20), st.integers(2, 12), st.integers(1, 4))
def test_every_token_but_the_first_of_its_document_is_a_target_once_after_the_token_before_it(sizes, row, most):
    packing.OPEN, kept = most, packing.OPEN
    try:
        rows = list(pack_rows(documents(sizes), row, FILLER))
    finally:
        packing.OPEN = kept
    pairs = [(ids[i - 1], ids[i]) for ids, counted in rows for i in range(row) if counted[i]]
    assert sorted(pairs) == [(a, b) for ids, _ in documents(sizes) for a, b in pairwise(ids)]
    assert not any(counted[0] for _, counted in rows)
    assert len({tuple(ids) for ids, _ in rows}) == len(rows)


def test_a_piece_without_a_target_is_left_out():
    counted = np.array([1, 0, 0, 0, 0, 0, 1, 1], np.uint8)  # of pieces 0-3, 3-6 and 6-7 the first has none
    assert [int(sum(row[1])) for row in pack_rows([(np.arange(8), counted)], 4, FILLER)] == [1, 1]


def test_a_document_that_fits_is_not_cut():
    rows = list(pack_rows(documents([6, 7, 4, 3, 10]), 10, FILLER))
    assert sorted(int(sum(counted)) for _, counted in rows) == [5 + 3, 6 + 2, 9]


@pytest.mark.parametrize("workers", [1, 2])
def test_chats_count_what_the_assistant_says_and_nothing_else(tmp_path, workers):
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    flags = f"--out {tmp_path / 'out'} --tokenizer bytes --pack 200 --chat --shard 100 --workers {workers}"
    assert main(["tokens", *flags.split(), str(tmp_path / "chats.jsonl")]) == 0
    tokens = open_index(tmp_path / "out").tokens
    every = np.arange(0, len(tokens), 201)
    ids, counted = tokens.spans(every, 201), tokens.mask.spans(every, 201).astype(bool)
    said = b"".join(bytes(row[mask].astype(np.uint8)) for row, mask in zip(ids, counted, strict=True))
    assert sorted(said.decode().split("<|im_end|>")) == sorted([*spoken(CHATS), ""])
    whole = ByteTokenizer().decode(ids.ravel())
    assert whole.count("<|im_start|>user\n") == sum(m["role"] == "user" for chat in CHATS for m in chat)
    assert len(list((tmp_path / "out").glob("mask-*.bin"))) == len(list((tmp_path / "out").glob("tokens-*.bin"))) > 1


@pytest.mark.parametrize(
    ("line", "flags", "fact"),
    [
        ("{}", "--pack 8 --chat", "line 1 of .* has no list of messages in 'messages'"),
        ('{"messages": [{"role": "user"}]}', "--pack 8 --chat", "a message without a text as its role and its content"),
        ('{"messages": [3]}', "--pack 8 --chat", "a message without a text"),
        ('{"messages": [{"role": "model", "content": "Hi"}]}', "--pack 8 --chat", "nothing in the files counts"),
        ("{}", "--chat", "--chat needs rows, .*add --pack T"),
        ("{}", "--pack 0", "--pack must be at least 1"),
    ],
)
def test_what_is_no_chat_is_refused_and_nothing_is_left(line, flags, fact, tmp_path, capsys):
    (tmp_path / "chats.jsonl").write_text(line + "\n")
    words = ["tokens", "--out", str(tmp_path / "out"), "--tokenizer", "bytes", *flags.split()]
    assert main([*words, str(tmp_path / "chats.jsonl")]) == 2
    assert re.search(fact, capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]
