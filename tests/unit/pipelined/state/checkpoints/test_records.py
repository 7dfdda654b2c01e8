"""Pieces of parameters in a checkpoint: saved by any cut, loaded by any other; refused where they make no tensor."""

import json
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelined.sharding import Mesh, Shards
from pipelined.sharding.shards import TensorPart, take
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import CheckpointError, Meta, open_checkpoint

WHOLE = torch.arange(7 * 6.0).reshape(7, 6)
LAYOUTS = ["S0:a S1:b", "S1:a S0:b", "S1/2:a S1:b", "S0:b S0:a", "S1:a"]


def parts(layout, rows, columns):
    """What each rank of a mesh holds of the tensor; None: no rank of a team does."""
    if layout is None:
        return [None]
    shards = Shards(Mesh(f"a={rows} b={columns}"), WHOLE.shape, layout)
    held = dict.fromkeys(shards.pieces(rank) for rank in range(rows * columns))
    return [TensorPart(tuple(WHOLE.shape), piece) for piece in held]


def fields(part):
    """The value, a moment, and a number without the shape of the parameter."""
    own = WHOLE if part is None else take(WHOLE, part.indices)
    return {"value": own, "exp_avg": -own, "age": torch.tensor(3)}


def save(directory, held):
    shards = [
        checkpoint.write_shard(directory, 1, rank, len(held), {"x": fields(part)}, parts={"x": part} if part else None)
        for rank, part in enumerate(held)
    ]
    return checkpoint.commit(directory, Meta(1, {}, {}), shards, keep=1)


cuts = st.one_of(
    st.builds(parts, st.none(), st.just(1), st.just(1)),
    st.builds(parts, st.sampled_from(LAYOUTS), st.integers(1, 9), st.integers(1, 3)),
)


@given(cuts, cuts)
def test_any_cut_loads_what_any_other_saved(tmp_path_factory, saved, wanted):
    directory = tmp_path_factory.mktemp("run")
    save(directory, saved)
    for part in wanted:
        (found,) = open_checkpoint(directory).load(["x"], {"x": part} if part else None).values()
        for field, expected in fields(part).items():
            assert torch.equal(found[field], expected), field


def test_a_rank_reads_only_the_shards_that_have_what_it_wants(tmp_path):
    held = parts("S0:a", 7, 1)
    path = save(tmp_path, held)
    for rank in (0, 1, 2, 5, 6):
        other = path / f"shard-0{rank}-of-07.safetensors"
        other.write_bytes(bytes(other.stat().st_size))
    wanted = TensorPart(tuple(WHOLE.shape), (((3, 5),), ((0, 6),)))
    assert torch.equal(open_checkpoint(tmp_path).load(["x"], {"x": wanted})["x"]["value"], WHOLE[3:5])


def test_one_saved_tensor_is_in_memory_at_a_time(tmp_path, monkeypatch):
    """Beside what is returned: of each row that was saved two columns are wanted."""
    save(tmp_path, parts("S0:a", 7, 1))
    wanted, read = TensorPart(tuple(WHOLE.shape), (((0, 7),), ((1, 3),))), []

    def watched(path, name, field, tensor, record):
        if tensor.dim():
            assert all(each() is None for each in read)
            read.append(weakref.ref(tensor))

    monkeypatch.setattr(checkpoint, "require_saved", watched)
    assert torch.equal(open_checkpoint(tmp_path).load(["x"], {"x": wanted})["x"]["value"], WHOLE[:, 1:3])
    assert len(read) == 2 * 7


def test_whole_parameters_are_written_in_the_format_of_older_releases(tmp_path):
    assert json.loads((save(tmp_path, [None]) / "manifest.json").read_text())["format"] == 1
    assert json.loads((save(tmp_path, parts("S0:a", 2, 1)) / "manifest.json").read_text())["format"] == 2


def test_pieces_that_leave_elements_out_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"pieces of parameter x do not make one tensor .*elements there: 18\)"):
        save(tmp_path, parts("S0:a", 2, 1)[:1])


@pytest.mark.parametrize("other", [None, TensorPart((7, 6), (((6, 7),), ((0, 2),)))], ids=["whole", "overlapping"])
def test_an_element_that_two_ranks_wrote_is_refused(tmp_path, other):
    with pytest.raises(CheckpointError, match="x was written twice"):
        save(tmp_path, [*parts("S0:a", 2, 1), other])


def test_a_manifest_without_one_of_the_pieces_is_refused(tmp_path):
    manifest = save(tmp_path, parts("S0:a", 2, 1)) / "manifest.json"
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**document, "shards": document["shards"][:1]}))
    with pytest.raises(CheckpointError, match="do not make one tensor"):
        open_checkpoint(tmp_path)


def test_a_piece_of_a_parameter_of_another_shape_is_refused(tmp_path):
    save(tmp_path, parts("S0:a", 2, 1))
    wanted = TensorPart((7, 8), (((0, 7),), ((0, 8),)))
    with pytest.raises(CheckpointError, match=r"x is saved in another shape \(saved: \(7, 6\), model: \(7, 8\)\)"):
        open_checkpoint(tmp_path).load(["x"], {"x": wanted})
