"""Plain text is read in pieces, which are cut where no token can cross."""

import pytest

from pipelined.api.data.tokens import formats
from pipelined.api.data.tokens.formats import files_in, pieces
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
    monkeypatch.setattr(formats, "PIECE", 5)
    (tmp_path / "a.txt").write_text(text)
    found = list(pieces(tmp_path / "a.txt", "text"))
    assert [piece.text for piece in found] == expected
    assert [piece.ends for piece in found] == [False] * (len(found) - 1) + [True]
    assert sum(piece.size for piece in found) == len(text)


def test_a_directory_gives_its_files_in_order_of_name_without_hidden_ones(tmp_path):
    for name in ("b.txt", "a/z.txt", ".hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert files_in(tmp_path) == [tmp_path / "a/z.txt", tmp_path / "b.txt"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no files"):
        files_in(tmp_path / "empty")
