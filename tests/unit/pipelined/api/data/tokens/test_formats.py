"""Plain text is read in chunks, which are cut where no token can cross."""

import json

import pytest

from pipelined.api.data.tokens import formats
from pipelined.api.data.tokens.formats import files_in, text_chunks
from pipelined.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\nthree", ["one\n", "two\n", "three"]),
        ("one \ntwo", ["one ", "\ntwo"]),
        ("one\n\ntwo", ["one\n", "\ntwo"]),
        ("one two three", ["one two three"]),
        ("", [""]),
    ],
)
def test_the_pieces_of_a_text_are_cut_between_lines_and_give_it_again(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr(formats, "CHUNK", 5)
    (tmp_path / "a.txt").write_text(text)
    found = list(text_chunks(tmp_path / "a.txt", "text"))
    assert [chunk.text for chunk in found] == expected
    assert [chunk.ends for chunk in found] == [False] * (len(found) - 1) + [True]
    assert sum(chunk.size for chunk in found) == len(text)


def test_a_directory_gives_its_files_in_order_of_name_without_hidden_ones(tmp_path):
    for name in ("b.txt", "a/z.txt", ".hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert files_in(tmp_path) == [tmp_path / "a/z.txt", tmp_path / "b.txt"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no files"):
        files_in(tmp_path / "empty")


@pytest.mark.parametrize(
    "state",
    [
        b'{"epoch": 3}',
        b'{"_data_files": 3}',
        b'{"_data_files": [3]}',
        b'{"_data_files": [{}]}',
        b"[]",
        b"\xff\xfe",
        b"",
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_the_state_of_another_program_makes_a_directory_of_text_no_dataset(tmp_path, state):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "state.json").write_bytes(state)
    assert files_in(tmp_path) == [tmp_path / "a.txt"]


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "..", "", 3, "a\0b", "a" * 256, "\ud800"])
def test_a_dataset_names_no_files_outside_its_directory(tmp_path, name):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}, {"filename": name}]}))
    with pytest.raises(UsageError, match=r"is damaged \(state.json: .*\); save it again"):
        files_in(tmp_path)


def test_a_dataset_gives_the_files_of_its_state_in_their_order(tmp_path):
    (tmp_path / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]})
    )
    assert files_in(tmp_path) == [tmp_path / "b.arrow", tmp_path / "a.arrow"]
