"""Tokens in files: spans equal to those of one array, files refused before anything is read."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.api.data.tokens.index import open_bin
from pipelined.api.data.tokens.mapped import MappedTokens, spans_of
from pipelined.errors import UsageError
from tests.launching import launched

ALL = np.arange(100, dtype=np.uint16) * 601


def files_of(folder: Path, cuts: list[int], dtype: str = "uint16") -> list[tuple[Path, int]]:
    pieces = np.split(ALL.astype(dtype), cuts)
    for number, piece in enumerate(pieces):
        piece.tofile(folder / f"{number}.bin")
    return [(folder / f"{number}.bin", len(piece)) for number, piece in enumerate(pieces)]


@settings(max_examples=30)
@given(data=st.data(), cuts=st.lists(st.integers(1, 99), max_size=4), dtype=st.sampled_from(["uint16", "uint32"]))
def test_spans_are_those_of_one_array(tmp_path_factory, data, cuts, dtype):
    folder = tmp_path_factory.mktemp("tokens")
    tokens = MappedTokens.open([f for f in files_of(folder, sorted(set(cuts)), dtype) if f[1]], dtype)
    assert len(tokens) == 100 and tokens.dtype == dtype
    length = data.draw(st.integers(1, 100))
    starts = np.array(data.draw(st.lists(st.integers(0, 100 - length), min_size=1, max_size=5)))
    assert np.array_equal(spans_of(tokens, starts, length), spans_of(ALL, starts, length))


def test_a_part_counts_from_its_own_beginning(tmp_path):
    tokens = MappedTokens.open(files_of(tmp_path, [40]), "uint16").part(30, 60)
    assert len(tokens) == 30 and np.array_equal(spans_of(tokens, np.array([5]), 20)[0], ALL[35:55])


@pytest.mark.parametrize(("change", "fact"), [(-1, "truncated .bytes: 199, expected: 200"), (2, "longer")])
def test_a_file_of_another_size_is_refused(tmp_path, change, fact):
    (path, tokens), *_ = files_of(tmp_path, [])
    path.write_bytes((path.read_bytes() + b"xx")[: 200 + change])
    with pytest.raises(UsageError, match=fact):
        MappedTokens.open([(path, tokens)], "uint16")


def test_bare_tokens_are_read_by_the_width_of_the_vocabulary(tmp_path):
    ALL.astype("<u4").tofile(tmp_path / "wide.bin")
    ALL.tofile(tmp_path / "narrow.bin")
    for name, symbols in (("wide.bin", 70_000), ("narrow.bin", 60_000)):
        opened = open_bin([tmp_path / name], symbols)
        assert np.array_equal(opened.tokens.spans(np.array([0]), 100)[0], ALL)


def test_bare_tokens_of_another_tokenizer_or_half_a_token_are_refused(tmp_path):
    ALL.tofile(tmp_path / "a.bin")
    with pytest.raises(UsageError, match="a token: 59499, symbols: 256"):
        open_bin([tmp_path / "a.bin"], 256)
    (tmp_path / "a.bin").write_bytes(ALL.tobytes()[:-1])
    with pytest.raises(UsageError, match=r"a\.bin is no whole number of tokens \(bytes: 199, a token: 2\)"):
        open_bin([tmp_path / "a.bin"], 60_000)


def test_bare_files_without_a_token_are_refused(tmp_path):
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=r"a\.bin holds no tokens \(bytes: 0, files: 2\)"):
        open_bin([tmp_path / "a.bin", tmp_path / "b.bin"], 60_000)


def test_an_index_of_no_tokens_has_empty_spans_and_a_digest(tmp_path):
    tokens = MappedTokens.open([], "uint16")
    assert tokens.spans(np.zeros(3, np.int64), 0).shape == (3, 0)
    assert tokens.spans(np.zeros(0, np.int64), 5).shape == (0, 5)
    assert len(tokens.sample()) == 0 and tokens.digest()


CHILD = """
import resource, sys, time
from pathlib import Path
from apps.common.lm.data.batches import Batches
from pipelined.api.data.tokens.index import open_bin
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
batches = Batches(open_bin([Path(sys.argv[1])], 50_257).tokens, 1024, 8, 4, 0)
batches.rows(0, 0)
first = time.perf_counter() - began
for step in range(20):
    batches.rows(step, step % 4)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(batches.epoch_sequences, first, (after - before) >> 10)
"""


def test_ten_gigabytes_begin_within_ten_seconds_and_take_under_300_mib(tmp_path):
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.truncate(10 * 1000**3)
    done = launched([sys.executable, "-c", CHILD, str(path)], timeout=60)
    assert done.returncode == 0, done.stderr
    sequences, first_s, grown_mib = done.stdout.split()
    assert int(sequences) == 5 * 1000**3 // 1024 - 1
    assert float(first_s) < 10 and int(grown_mib) < 300, done.stdout
