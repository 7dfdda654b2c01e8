"""A file written tensor by tensor is one of `torch.save`: its values, its sharing, its checksums and its alignment."""

from zipfile import ZipFile

import pytest
import torch

from pipelined.state.checkpoints.torch_file import ALIGNMENT, make_placeholders, write_torch_file

VALUES = {
    "weight": torch.randn(3, 5).t(),
    "scalar": torch.tensor(7),
    "none": torch.empty(0, 4),
    "half": torch.randn(9).bfloat16(),
    "flags": torch.tensor([True, False]),
    "wide": torch.tensor([1 + 2j]),
    "unsigned": torch.arange(3).to(torch.uint16),
}
LAYOUT = {name: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for name, value in VALUES.items()}


def written(path, values=VALUES):
    unfilled, kept = make_placeholders(LAYOUT), torch.arange(6.0)
    state = {**unfilled, "tied": unfilled["weight"], "kept": kept[2:], "kept too": kept}
    write_torch_file(path, state, unfilled, reversed(values.items()))
    return {**values, "tied": values["weight"], "kept": kept[2:], "kept too": kept}


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_torch_reads_equal_tensors_which_share_what_they_shared(tmp_path, mapped):
    expected = written(tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt", weights_only=True, mmap=mapped)
    assert list(found) == list(expected)
    for name, value in found.items():
        assert value.dtype == expected[name].dtype and torch.equal(value, expected[name]), name
        assert not mapped or value.untyped_storage().data_ptr() % ALIGNMENT == 0
    assert found["tied"].data_ptr() == found["weight"].data_ptr()
    assert found["kept"].data_ptr() == found["kept too"][2:].data_ptr()


def test_every_checksum_holds_and_the_records_are_those_of_torch(tmp_path):
    torch.save(written(tmp_path / "state.pt"), tmp_path / "other.pt")
    with ZipFile(tmp_path / "state.pt") as ours, ZipFile(tmp_path / "other.pt") as other:
        assert ours.testzip() is None
        names = [{name.partition("/")[2] for name in each.namelist()} for each in (ours, other)]
    assert names[0] == names[1] - {".data/serialization_id"}


def test_a_writing_that_breaks_off_leaves_the_earlier_file_alone(tmp_path):
    (tmp_path / "state.pt").write_text("earlier")

    def broken_off():
        yield "weight", VALUES["weight"]
        raise OSError("the disk is full")

    unfilled = make_placeholders(LAYOUT)
    with pytest.raises(OSError, match="the disk is full"):
        write_torch_file(tmp_path / "state.pt", unfilled, unfilled, broken_off())
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    assert (tmp_path / "state.pt").read_text() == "earlier"
