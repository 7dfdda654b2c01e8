"""Plain text is read in chunks, which are cut where no token can cross."""

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
