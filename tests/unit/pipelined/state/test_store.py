"""A shelf keeps what is whole and of its model; what others say of theirs is read with suspicion."""

from pathlib import Path

import msgpack
import numpy as np
import pytest

from pipelined.state.manifest import describe, layout_of
from pipelined.state.store import DiskShelf, ShelfError
from pipelined.swarm.records import Mark, Point, Saved

STATE = {"h.weight/value": np.arange(6, dtype=np.float32).reshape(2, 3), "updates/count": np.array(4)}
MARK = Mark(4, 1, 3, "run-ab")


@pytest.fixture
def shelf(tmp_path: Path) -> DiskShelf:
    return DiskShelf(tmp_path / "shelf", {"layers": 2})


def test_what_was_saved_is_found_and_comes_back_to_the_bit(shelf: DiskShelf):
    assert list(shelf.marks()) == []
    shelf.save(MARK, STATE)
    assert list(shelf.marks()) == [MARK]
    assert describe(shelf.load(MARK, layout_of(STATE))).root == describe(STATE).root


def test_what_another_model_saved_is_not_there(shelf: DiskShelf):
    shelf.save(MARK, STATE)
    assert list(DiskShelf(shelf.directory, {"layers": 3}).marks()) == []


def test_what_is_damaged_or_missing_is_not_loaded(shelf: DiskShelf):
    shelf.save(MARK, STATE)
    with pytest.raises(ShelfError, match=r"other\.weight"):
        shelf.load(MARK, {"other.weight/value": ("float32", (2,))})
    (file,) = shelf.directory.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ShelfError):
        shelf.load(MARK, layout_of(STATE))


def test_a_directory_that_cannot_be_is_said(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ShelfError):
        DiskShelf(tmp_path / "file", {}).save(MARK, STATE)


def test_marks_come_back_as_they_were_told():
    assert Saved.unpack(Saved([list(MARK)]).pack()).all() == [MARK]
    assert MARK.point == Point(4, "run-ab") and MARK.point.run == "run"


@pytest.mark.parametrize("mark", [[4, 3, 3, ""], [-1, 0, 1, ""], [1, 0, 1 << 40, ""], [1, 0, 1], [1.0, 0, 1, ""], 7])
def test_marks_of_no_stage_are_refused(mark):
    with pytest.raises(ValueError, match=r"Saved\.marks"):
        Saved.unpack(msgpack.packb({"marks": [mark]}))
