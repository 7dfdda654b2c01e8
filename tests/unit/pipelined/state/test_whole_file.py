"""A file is replaced by a whole one, or stays as it was."""

import pytest

from pipelined.state.whole_file import whole_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_when_it_is_whole(tmp_path, durable):
    path = tmp_path / "a.json"
    path.write_text("before")
    with whole_file(path, durable) as part:
        part.write_text("after")
        assert path.read_text() == "before" and part.parent == tmp_path
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_file_is_as_it_was_and_nothing_else_is_there(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), whole_file(path) as part:
        part.write_text("af")
        raise ZeroDivisionError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
