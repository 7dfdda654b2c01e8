"""Checkpoints: any arrangement loads what any other saved, and no crash takes the last good one away."""

import errno
import itertools
import json
import os
import resource
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelined.process.reporting import events
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import CheckpointError, Meta, open_checkpoint

IDENTITY = {"layers": 4, "d_model": 128, "shape": (4, 128)}
NAMES = [f"transformer.h.{i}.weight" for i in range(5)]


def meta(step):
    return Meta(step, IDENTITY, {"schedule": "chimera"}, {"seed": 7, "optimizer_step": step})


def state(names=NAMES, value=1.0):
    """Every name with a value of its own, and what an optimizer keeps beside it."""
    numbers = {name: torch.full((3, 2), value) + i for i, name in enumerate(names)}
    return {
        name: {"value": number, "exp_avg": -number, "age": number[0, 0].clone()} for name, number in numbers.items()
    }


def save(directory, step, parts, keep=3, value=1.0):
    """Save with one rank for each list of names in `parts`, as a run does that has claimed the directory."""
    checkpoint.clean(directory)
    whole = state(value=value)
    owned = [{name: whole[name] for name in part} for part in parts]
    records = [checkpoint.write_shard(directory, step, rank, len(parts), mine) for rank, mine in enumerate(owned)]
    return checkpoint.commit(directory, meta(step), records, keep)


def same(one, other):
    assert one.keys() == other.keys()
    for name, fields in one.items():
        assert fields.keys() == other[name].keys()
        for field, tensor in fields.items():
            assert tensor.dtype == other[name][field].dtype and torch.equal(tensor, other[name][field])


def test_a_step_is_saved_where_an_earlier_one_cannot_be_deleted(tmp_path, monkeypatch):
    """An old checkpoint that a reader holds open on NFS ended the run, although the new one had its name."""
    save(tmp_path, 1, [NAMES], keep=1)

    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise OSError(errno.EBUSY, "device or resource busy", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    before = events.recent()
    assert save(tmp_path, 2, [NAMES], keep=1) == checkpoint.latest(tmp_path)
    (event,) = [each for each in events.recent() if each not in before]
    assert event.kind == "old save not deleted" and "busy" in str(event.facts["why"])


@given(st.lists(st.integers(0, 6), min_size=5, max_size=5), st.sets(st.sampled_from(NAMES)))
def test_any_arrangement_loads_what_any_other_saved(tmp_path_factory, owners, wanted):
    directory = tmp_path_factory.mktemp("run")
    save(directory, 3, [[name for name, owner in zip(NAMES, owners, strict=True) if owner == r] for r in range(7)])
    loaded = open_checkpoint(directory).load(wanted)
    same(loaded, {name: fields for name, fields in state().items() if name in wanted})


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path, dtype, shape):
    tensor = torch.arange(100)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    record = checkpoint.write_shard(tmp_path, 1, 0, 1, {"x": {"value": tensor}})
    checkpoint.commit(tmp_path, meta(1), [record], keep=1)
    same(open_checkpoint(tmp_path).load(["x"]), {"x": {"value": tensor}})


def test_views_of_one_buffer_and_transposed_tensors_can_be_saved(tmp_path):
    flat = torch.arange(12.0)
    owned = {"a": {"value": flat[:4]}, "b": {"value": flat[4:].reshape(2, 4).T}}
    checkpoint.commit(tmp_path, meta(1), [checkpoint.write_shard(tmp_path, 1, 0, 1, owned)], keep=1)
    same(open_checkpoint(tmp_path).load("ab"), owned)


def test_the_facts_of_the_run_are_read_back(tmp_path):
    save(tmp_path, 10, [NAMES])
    saved = open_checkpoint(tmp_path).require(IDENTITY)
    assert (saved.meta.step, saved.meta.scalars["seed"], saved.meta.config) == (10, 7, {"schedule": "chimera"})
    assert saved.path.name == "step-00000010" and saved.names == NAMES


def test_only_the_files_requested_are_read(tmp_path):
    path = save(tmp_path, 1, [NAMES[:1], NAMES[1:]])
    other = path / "shard-01-of-02.safetensors"
    other.write_bytes(bytes(other.stat().st_size))
    same(open_checkpoint(tmp_path).load(NAMES[:1]), state(NAMES[:1]))


def test_the_latest_is_the_highest_step_and_a_step_can_be_named(tmp_path):
    assert checkpoint.latest(tmp_path) is None and checkpoint.latest(tmp_path / "nowhere") is None
    paths = [save(tmp_path, step, [NAMES]) for step in (9, 100_000_000, 10)]
    assert checkpoint.latest(tmp_path) == paths[1] and open_checkpoint(paths[2]).meta.step == 10


def test_the_last_ones_are_kept_and_never_fewer_than_the_one_just_written(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, [NAMES], keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
    save(tmp_path, 2, [NAMES], keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_a_step_saved_again_replaces_what_it_was(tmp_path):
    save(tmp_path, 1, [NAMES], value=1.0)
    save(tmp_path, 1, [NAMES[:2], NAMES[2:]], value=2.0)
    same(open_checkpoint(tmp_path).load(NAMES), state(value=2.0))
    assert len(list(tmp_path.iterdir())) == 1


def test_leftovers_of_a_crashed_save_are_ignored_and_then_removed(tmp_path):
    checkpoint.write_shard(tmp_path, 8, 0, 2, state())
    checkpoint.write_shard(tmp_path, 9, 5, 6, state())
    with pytest.raises(CheckpointError, match=r"no checkpoint .* \(there: none\)"):
        open_checkpoint(tmp_path)
    path = save(tmp_path, 9, [NAMES])
    assert list(tmp_path.iterdir()) == [path]
    assert {file.name for file in path.iterdir()} == {"manifest.json", "shard-00-of-01.safetensors"}


TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def killed_at(moment, work):
    """Run `work` in a process of its own that is killed before it touches the file system for the moment-th time."""
    child = os.fork()
    if not child:
        remaining = itertools.count(moment, -1)

        def strike(event, _):
            if event in TOUCHES and next(remaining) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(strike)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("ending", ["", ".old"], ids=["after a good save", "after a crashed one"])
@pytest.mark.parametrize("step", [2, 1], ids=["next step", "same step"])
def test_a_kill_at_any_touch_of_the_disk_leaves_a_whole_checkpoint(tmp_path, step, ending):
    for moment in itertools.count():
        directory = tmp_path / str(moment)
        before = save(directory, 1, [NAMES], value=1.0)
        before.rename(f"{before}{ending}")
        code = killed_at(moment, lambda d=directory: save(d, step, [NAMES[:3], NAMES[3:]], keep=1, value=2.0))
        assert code in (0, -signal.SIGKILL)
        saved = open_checkpoint(directory)
        is_new = len(saved.shards) == 2
        same(saved.load(NAMES), state(value=2.0 if is_new else 1.0))
        assert is_new or saved.path.name in (before.name, f"{before.name}.old")
        for named in directory.glob("step-????????"):
            open_checkpoint(named)
        final = save(directory, 3, [NAMES], keep=1, value=3.0)
        assert list(directory.iterdir()) == [final]
        if code == 0:
            break
    assert is_new and moment > 15


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_kill_in_the_middle_of_a_file_leaves_the_one_before(tmp_path, share):
    save(tmp_path, 1, [NAMES])
    big = {"x": {"value": torch.ones(1 << 18)}}

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * (1 << 20)), resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        checkpoint.write_shard(tmp_path, 2, 0, 1, big)

    assert killed_at(-1, work) == -signal.SIGXFSZ
    same(open_checkpoint(tmp_path).load(NAMES), state())


def test_everything_is_on_disk_before_the_name_appears(tmp_path, monkeypatch):
    order = []

    def noting(name, function, described):
        monkeypatch.setattr(os, name, lambda *args: (order.append(described(*args)), function(*args))[1])

    noting("fsync", os.fsync, lambda fd: os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
    noting("rename", os.rename, lambda old, new: f"-> {os.path.basename(new)}")
    save(tmp_path, 1, [NAMES[:2], NAMES[2:]])
    named = order.index("-> step-00000001")
    files = {"shard-00-of-02.safetensors", "shard-01-of-02.safetensors", "manifest.json"}
    assert files < set(order[:named]) and order[named - 1] == "step-00000001.part"
    assert order[named + 1] == tmp_path.name


@pytest.mark.parametrize("damage", ["missing", "cut short", "longer than it was written"])
def test_a_shard_that_is_not_whole_is_named_with_both_sizes(tmp_path, damage):
    shard = save(tmp_path, 1, [NAMES[:2], NAMES[2:]]) / "shard-01-of-02.safetensors"
    size = shard.stat().st_size
    if damage == "missing":
        shard.unlink()
    else:
        os.truncate(shard, 100 if damage == "cut short" else size + 1)
    with pytest.raises(CheckpointError, match=rf"shard-01-of-02.safetensors is {damage} .*written: {size}\); resume"):
        open_checkpoint(tmp_path)


def test_a_flipped_bit_is_found_in_the_tensor_it_hit(tmp_path):
    shard = save(tmp_path, 1, [NAMES]) / "shard-00-of-01.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"is damaged \(transformer.h.\d.weight, \w+: not the bytes"):
        open_checkpoint(tmp_path).load(NAMES)


def test_a_file_that_is_no_safetensors_is_named(tmp_path):
    shard = save(tmp_path, 1, [NAMES]) / "shard-00-of-01.safetensors"
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    with pytest.raises(CheckpointError, match=r"shard-00-of-01.safetensors is damaged"):
        open_checkpoint(tmp_path).load(NAMES)


def test_another_model_is_refused_with_the_fields_that_differ(tmp_path):
    save(tmp_path, 1, [NAMES])
    with pytest.raises(
        CheckpointError, match=r"another model \(layers: 4 saved, 6 asked; vocab: None saved, 9 asked\);"
    ):
        open_checkpoint(tmp_path).require({**IDENTITY, "layers": 6, "vocab": 9})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": "x"}', "\xff", "[" * 100_000, "1" * 5000]
)
def test_a_damaged_manifest_is_named(tmp_path, text):
    manifest = save(tmp_path, 1, [NAMES]) / "manifest.json"
    manifest.write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged .*; resume from another checkpoint"):
        open_checkpoint(tmp_path)


SHARD = {"file": "a", "bytes": 1, "tensors": {}}
TENSOR = {"shape": [1], "dtype": "float32", "sha256": "0"}
NO_TENSORS = [None, {}, *(TENSOR | wrong for wrong in ({"shape": 1}, {"shape": [-1]}, {"dtype": 1}, {"sha256": None}))]
NO_PARTS = [
    *(None, [], {"whole": [3]}, {"whole": [3], "indices": 5}, {"whole": [3], "indices": []}),
    *({"whole": [3], "indices": [ranges]} for ranges in ([[0, 4]], [[2, 1]], [[1, 1]], [[0, 1, 2]], [["0", 1]], [1])),
    *({"whole": [size], "indices": [[[0, 1]]]} for size in (-1, 0.5, True)),
]


@pytest.mark.parametrize(
    "change",
    [
        *({"step": "3"}, {"step": -2}, {"identity": []}, {"config": []}, {"scalars": None}, {"shards": {"a": 1}}),
        *({"shards": [{**SHARD, **wrong}]} for wrong in ({"file": 5}, {"file": "../a"}, {"tensors": {"name": []}})),
        *({"shards": [{**SHARD, "bytes": wrong}]} for wrong in ("2", None, -1, 1.0, True)),
        *({"shards": [{**SHARD, "file": wrong}]} for wrong in ("", "..", "a\0", "a" * 256)),
        *({"shards": [{**SHARD, "tensors": {"x": {"value": wrong}}}]} for wrong in NO_TENSORS),
        *({"shards": [{**SHARD, "parts": []}]}, {"format": 1.5}, {"format": False}),
        *({"shards": [{**SHARD, "parts": {"x": wrong}}]} for wrong in NO_PARTS),
    ],
    ids=str,
)
def test_a_manifest_that_no_save_wrote_is_named(tmp_path, change):
    manifest = save(tmp_path, 1, [NAMES]) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged .*; resume from another checkpoint"):
        open_checkpoint(tmp_path)


def test_a_checkpoint_without_a_manifest_is_named(tmp_path):
    path = save(tmp_path, 1, [NAMES])
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000001 has no readable manifest.json"):
        open_checkpoint(path)


def test_a_newer_format_is_refused(tmp_path):
    manifest = save(tmp_path, 1, [NAMES]) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 3}))
    with pytest.raises(CheckpointError, match=r"newer version \(format: 3, known up to: 2\); update"):
        open_checkpoint(tmp_path)


def test_a_step_that_is_not_there_lists_those_that_are(tmp_path):
    save(tmp_path, 1, [NAMES])
    with pytest.raises(CheckpointError, match=r"no checkpoint .*step-00000002 \(there: step-00000001\)"):
        open_checkpoint(tmp_path / "step-00000002")


def test_a_name_that_was_not_saved_is_refused(tmp_path):
    save(tmp_path, 1, [NAMES])
    with pytest.raises(CheckpointError, match=r"lacks lm_head.weight \(missing: 1, saved: 5\)"):
        open_checkpoint(tmp_path).load([*NAMES, "lm_head.weight"])


def test_two_owners_of_one_parameter_are_refused_and_nothing_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"weight was written twice \(shard-00-of-02.safetensors and shard-01"):
        save(tmp_path, 1, [NAMES, NAMES[:1]])
    assert checkpoint.latest(tmp_path) is None


def test_a_shard_on_another_disk_is_noticed_before_the_name_is_given(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    records = [checkpoint.write_shard(place, 1, r, 2, {}) for r, place in enumerate([here, elsewhere])]
    with pytest.raises(
        CheckpointError, match=r"shard-01-of-02.safetensors is missing .*directory that all of them share"
    ):
        checkpoint.commit(here, meta(1), records, keep=1)


def test_a_save_that_another_run_wrote_over_is_refused_and_the_other_is_kept(tmp_path):
    save(tmp_path, 9, [NAMES])
    ours, theirs = (checkpoint.write_shard(tmp_path, 10, 0, 1, state(value=value)) for value in (2.0, 3.0))
    with pytest.raises(CheckpointError, match=r"shard-00-of-01.safetensors was written over by another run \(hash"):
        checkpoint.commit(tmp_path, meta(10), [ours], keep=1)
    same(open_checkpoint(tmp_path).load(NAMES), state())
    checkpoint.commit(tmp_path, meta(10), [theirs], keep=1)
    same(open_checkpoint(tmp_path).load(NAMES), state(value=3.0))


@pytest.mark.parametrize("theirs", [10, 11])
def test_two_saves_with_tokens_of_their_own_both_succeed(tmp_path, theirs):
    runs = {"a": (10, 2.0), "b": (theirs, 3.0)}
    records = {
        run: checkpoint.write_shard(tmp_path, step, 0, 1, state(value=v), token=run) for run, (step, v) in runs.items()
    }
    for run, (step, value) in runs.items():
        path = checkpoint.commit(tmp_path, meta(step), [records[run]], 2, run)
        same(open_checkpoint(path).load(NAMES), state(value=value))


def test_a_write_that_fails_leaves_no_bytes_behind(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = {"x": {"value": torch.ones(1 << 16)}}
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        with pytest.raises(CheckpointError, match=r"cannot write .*free or choose another place"):
            checkpoint.write_shard(tmp_path, 2, 0, 1, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_save_that_failed_is_removed_before_the_next_writes(tmp_path):
    checkpoint.write_shard(tmp_path, 8, 0, 2, state(), token="one")
    checkpoint.clean(tmp_path)
    assert list(tmp_path.iterdir()) == []
    checkpoint.write_shard(tmp_path, 8, 0, 2, state(), token="other")
    checkpoint.discard(tmp_path, 8, "other")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named_with_the_rank(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"rank 3 cannot write .*Not a directory"):
        checkpoint.write_shard(tmp_path / "file", 1, 3, 4, state())


def test_a_checkpoint_is_judged_without_torch(tmp_path):
    save(tmp_path, 1, [NAMES])
    program = f"""
import sys
from functools import partial
from pipelined.state.checkpoints import checkpoint
try:
    checkpoint.open_checkpoint({str(tmp_path)!r}).require({{"layers": 5}})
except checkpoint.CheckpointError:
    sys.exit("torch" in sys.modules)
sys.exit(2)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
