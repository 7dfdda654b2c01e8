"""Texts become shards: the ids of every format are those of the tokenizer; after an error nothing is left."""

import errno
import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.__main__ import main
from pipelined.api.data.tokens import formats
from pipelined.api.data.tokens.formats import files_in, text_chunks
from pipelined.api.data.tokens.index import open_index
from pipelined.api.data.tokens.tokenizer import Tokenizer, train_tokenizer
from pipelined.errors import UsageError
from tests.absent import absent

TEXTS = ["First line.\nSecond  line,\n\n  the third\r\n", "", "été 中 😀", "a" * 50]
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    """A tokenizer with an end token."""
    made = json.loads(train_tokenizer(300, TEXTS * 5).to_json())
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    made["added_tokens"] = [{"id": len(made["model"]["vocab"]), "content": END, "special": True, **off}]
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(made))
    return path


@pytest.fixture
def write(tmp_path, tokenizer):
    """Runs the command on files; returns its exit code."""

    def run(*words: object) -> int:
        return main(["tokens", "--out", str(tmp_path / "out"), "--tokenizer", str(tokenizer), *map(str, words)])

    return run


def expected(tokenizer: Path, texts: list[str]) -> np.ndarray:
    """The ids of each text and of the end token, by the library itself, one after another."""
    found = Tokenizer.from_json(tokenizer.read_text())
    return np.concatenate([np.append(found.encode(text), found.id_of(END)) for text in texts])


def read(folder: Path) -> np.ndarray:
    tokens = open_index(folder).tokens
    return tokens.spans(np.array([0]), len(tokens))[0]


def jsonl(path: Path, key: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": 1, key: text}) + "\n" for text in TEXTS))
    return path


def test_json_lines_become_documents_with_the_end_token_after_each(write, tmp_path, tokenizer, capsys):
    assert write(jsonl(tmp_path / "a.jsonl", "body"), "--field", "body") == 0
    assert np.array_equal(read(tmp_path / "out"), expected(tokenizer, TEXTS))
    assert f"4 documents with {END} after them" in capsys.readouterr().out


def test_shards_have_the_size_and_the_digest_that_the_index_says(write, tmp_path, tokenizer):
    assert write(jsonl(tmp_path / "a.jsonl"), "--shard", 7) == 0
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    sizes = [shard["tokens"] for shard in index["shards"]]
    assert set(sizes[:-1]) == {7} and 0 < sizes[-1] <= 7 and sum(sizes) == index["tokens"]
    for shard in index["shards"]:
        raw = (tmp_path / "out" / shard["file"]).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == shard["sha256"] and len(raw) == 2 * shard["tokens"]
    tokenizer_file = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert index["tokenizer"]["sha256"] == hashlib.sha256(tokenizer_file).hexdigest()
    assert np.array_equal(read(tmp_path / "out"), expected(tokenizer, TEXTS))


def test_processes_write_what_one_process_writes(write, tmp_path, tokenizer):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_bytes(text.encode() or b"x")
    assert write(folder, "--workers", 2) == 0
    assert np.array_equal(read(tmp_path / "out"), expected(tokenizer, [text or "x" for text in TEXTS]))


@given(text=st.text("ab \n\r\t.é", max_size=60), chunk=st.integers(1, 9))
def test_a_long_text_has_the_tokens_of_the_whole(tokenizer, tmp_path_factory, text, chunk):
    path, found = tmp_path_factory.mktemp("text") / "a.txt", Tokenizer.from_json(tokenizer.read_text())
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "CHUNK", chunk)
        read = list(text_chunks(path, "text"))
    assert [one.ends for one in read] == [False] * (len(read) - 1) + [True]
    assert np.array_equal(found.encode_all([one.text for one in read]), found.encode(text))


def arrow():
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        absent("pyarrow is not installed")
    return pyarrow


def test_parquet_and_a_dataset_on_disk_become_documents(write, tmp_path, tokenizer):
    table = (package := arrow()).table({"text": TEXTS, "id": [1, 2, 3, 4]})
    package.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    (tmp_path / "set").mkdir()
    with package.ipc.new_stream(tmp_path / "set" / "data-00000-of-00001.arrow", table.schema) as file:
        file.write_table(table)
    (tmp_path / "set" / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    assert write(tmp_path / "a.parquet", tmp_path / "set") == 0
    assert np.array_equal(read(tmp_path / "out"), expected(tokenizer, TEXTS * 2))


def test_a_damaged_file_is_refused_where_the_damage_is(write, tmp_path, capsys):
    table = (package := arrow()).table({"text": TEXTS})
    with package.ipc.new_stream(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    (tmp_path / "a.arrow").write_bytes((tmp_path / "a.arrow").read_bytes()[:-64])
    assert write(tmp_path / "a.arrow") == 2
    assert "a.arrow cannot be read to its end" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_parquet_file_without_the_column_is_refused(write, tmp_path, capsys):
    package = arrow()
    package.parquet.write_table(package.table({"body": TEXTS}), tmp_path / "a.parquet")
    assert write(tmp_path / "a.parquet") == 2
    assert "has no column 'text' (columns: body)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.parquet", "a.PARQUET", "a.Arrow"])
def test_without_pyarrow_a_parquet_file_names_the_extra(write, tmp_path, capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_bytes(b"PAR1")
    assert write(tmp_path / name) == 2
    assert "pip install 'pipelined[data]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "raw", "words", "fact"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}\n', [], r"line 2 of .* has no 'text' .keys: body."),
        ("a.jsonl", b'{"text": 5}\n', [], "holds no text in 'text' .int."),
        ("a.jsonl", b"{\n", [], "line 1 of .* is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "hi \\ud83d"}\n', [], r"line 2 of .* cannot be UTF-8 .*U\+D83D"),
        ("a.json", b'[{"text": "a"}]', [], r"a\.json is JSON, .*\.jsonl"),
        ("a.CSV", b"a,b\n", [], r"a\.CSV is a table; .*\.parquet"),
        ("a.txt.gz", b"\x1f\x8b", [], r"a\.txt\.gz is compressed; decompress it"),
        ("a.txt.zst", b"\x28\xb5", [], r"a\.txt\.zst is compressed; decompress it"),
        ("a.txt", b"\xff\xfe", [], "is not UTF-8 text"),
        ("a.txt", b"a\0b", [], "is binary"),
        ("a.txt", b"", [], "is empty"),
        ("a.txt", b"a", ["--end", "</s>"], "no token '</s>'"),
        ("a.txt", b"a", ["--shard", "0"], "--shard must be at least 1"),
        ("a.txt", b"a", ["--tokenizer", "bpe:300"], "trained on text in memory"),
        ("b.txt", b"a", [], "cannot read .*a"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(write, tmp_path, capsys, name, raw, words, fact):
    (tmp_path / name).write_bytes(raw)
    named = tmp_path / name.replace("b.", "a.")
    assert write(named, *words) == 2
    message = capsys.readouterr().err
    assert re.search(fact, message), message
    assert message.count("\n") == 1 and list(tmp_path.iterdir()) == [tmp_path / name]


def test_a_suffix_is_recognised_in_upper_case(write, tmp_path, tokenizer):
    assert write(jsonl(tmp_path / "a.JSONL")) == 0
    assert np.array_equal(read(tmp_path / "out"), expected(tokenizer, TEXTS))


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_the_working_directory_and_those_above_are_refused(tmp_path, tokenizer, capsys, monkeypatch, out):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    jsonl(tmp_path / "a.jsonl")
    assert main(["tokens", "--out", out, "--tokenizer", str(tokenizer), str(tmp_path / "a.jsonl")]) == 2
    message = capsys.readouterr().err
    assert f"--out {out} is the working directory, or above it; name a new directory" in message
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "here"} and not list(Path().iterdir())


def test_a_link_to_an_empty_directory_is_written_into(write, tmp_path, tokenizer):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert write(jsonl(tmp_path / "a.jsonl")) == 0
    assert np.array_equal(read(tmp_path / "disk"), expected(tokenizer, TEXTS))


def test_a_tokenizer_that_cannot_be_written_leaves_nothing(write, tmp_path, capsys, monkeypatch):
    def write_text(path: Path, *args: object, **options: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    jsonl(tmp_path / "a.jsonl")
    monkeypatch.setattr(Path, "write_text", write_text)
    assert write(tmp_path / "a.jsonl") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "a.jsonl"]


def test_nothing_is_written_over(write, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").write_text("")
    assert write(jsonl(tmp_path / "a.jsonl")) == 2
    assert "holds something already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept"]


def test_the_splits_of_a_dataset_are_named(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UsageError, match=r"several splits; name one of them .*train"):
        files_in(tmp_path)
