"""A store keeps what is whole and of its model: it comes back to the bit, at the latest step that every stage has."""

import errno
import fcntl
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import CheckpointError
from pipelined.state.stages.chunks import describe
from pipelined.state.stages.stage_lock import UNNAMED
from pipelined.state.stages.store import DiskStore, StoreError, load, saved_stages
from pipelined.state.stages.versions import SavedStage, SavedStages, Version, common_step, saved_steps
from pipelined.state.stages.whole_model import find_whole_model
from pipelined.state.tensor_specs import specs_of
from transports import Block

MODEL = {"model": "toy", "layers": 4}


def state(stage: int, seed: int = 0, layers: int = 2) -> dict[str, np.ndarray]:
    """What a stage of some layers holds."""
    held = {}
    for layer in range(stage * layers, (stage + 1) * layers):
        draw = np.random.default_rng((seed, layer))
        for field in ("value", "exp_avg"):
            held[f"h.{layer}.weight/{field}"] = draw.standard_normal((3, layer + 1)).astype(np.float32)
    return {**held, "updates/count": np.array(seed)}


def save_all(directory: Path, step: int, lineage: str = "a", seed: int = 0, stages: int = 2) -> None:
    for stage in range(stages):
        DiskStore(directory, MODEL).save(SavedStage(step, stage, stages, lineage), state(stage, seed))


def same(mine: dict, theirs: dict) -> bool:
    return describe(mine).root == describe(theirs).root


def test_what_was_saved_comes_back_to_the_bit(tmp_path: Path):
    save_all(tmp_path, 7)
    at = common_step(saved_stages(tmp_path))
    assert at == SavedStage(7, 0, 2, "a")
    assert all(same(load(tmp_path, at, specs_of(state(stage)), MODEL), state(stage)) for stage in (0, 1))


def test_a_swarm_may_be_cut_into_other_stages_than_the_one_that_saved(tmp_path: Path):
    save_all(tmp_path, 7)
    at, whole = common_step(saved_stages(tmp_path)), {**state(0), **state(1)}
    assert same(load(tmp_path, at, specs_of(whole), MODEL), whole)
    narrow = state(2, layers=1)
    assert same(load(tmp_path, at, specs_of(narrow), MODEL), narrow)


def test_a_step_that_a_stage_lacks_is_not_gone_back_to(tmp_path: Path):
    save_all(tmp_path, 5)
    DiskStore(tmp_path, MODEL).save(SavedStage(6, 1, 2, "a"), state(1))
    assert common_step(saved_stages(tmp_path)) == SavedStage(5, 0, 2, "a")


def test_a_model_that_cannot_be_read_whole_is_refused_with_the_steps_of_each_stage(tmp_path: Path):
    DiskStore(tmp_path, MODEL).save(SavedStage(6, 1, 2, "a"), state(1))
    with pytest.raises(CheckpointError, match="no step: stage 0; steps 6: stage 1"):
        find_whole_model([tmp_path])


@pytest.mark.parametrize(
    "saved, told",
    [
        ([], ""),
        ([(5, 0, 3, "a"), (9, 0, 3, "b"), (9, 1, 3, "b"), (5, 1, 3, "a")], "steps 5, 9: stage 0, 1; no step: stage 2"),
        ([(10, 0, 2, "run-aaaa"), (10, 1, 2, "run-bbbb")], "steps 10 (aaaa): stage 0; steps 10 (bbbb): stage 1"),
        ([(10, 0, 1, "c0-14"), (10, 0, 1, "c0-1")], "steps 10 (1), 10 (14): stage 0"),
        ([(5, 0, 1, "a"), (9, 1, 2, "b")], "steps 5: stage 0 of 1; no step: stage 0 of 2; steps 9: stage 1 of 2"),
    ],
)
def test_the_saved_steps_of_each_stage_in_words(saved: list, told: str):
    assert saved_steps(SavedStage(*each) for each in saved) == told


def test_stages_of_two_lineages_are_not_mixed(tmp_path: Path):
    save_all(tmp_path, 5)
    save_all(tmp_path, 6, "a", seed=1)
    DiskStore(tmp_path, MODEL).save(SavedStage(6, 1, 2, "b"), state(1, seed=2))
    assert common_step(saved_stages(tmp_path)) == SavedStage(5, 0, 2, "a")
    DiskStore(tmp_path, MODEL).save(SavedStage(6, 0, 2, "b"), state(0, seed=2))
    at = common_step(saved_stages(tmp_path))
    assert at == SavedStage(6, 0, 2, "b")
    assert same(load(tmp_path, at, specs_of(state(1)), MODEL), state(1, seed=2))


def test_a_model_is_whole_where_each_stage_lies_somewhere(tmp_path: Path):
    for stage, place in enumerate(("one", "other")):
        DiskStore(tmp_path / place, MODEL).save(SavedStage(5, stage, 2, "a"), state(stage))
    DiskStore(tmp_path / "one", MODEL).save(SavedStage(6, 0, 2, "a"), state(0, seed=1))
    whole = find_whole_model([tmp_path / "one", tmp_path / "other"])
    assert (whole.first_save, whole.identity) == (SavedStage(5, 0, 2, "a"), MODEL)
    expected = {key: value for stage in (0, 1) for key, value in state(stage).items() if key.endswith("/value")}
    assert same({f"{name}/value": value for name, value in whole.values.items()}, expected)


def test_a_model_that_is_not_whole_anywhere_is_refused(tmp_path: Path):
    DiskStore(tmp_path / "one", MODEL).save(SavedStage(5, 0, 2, "a"), state(0))
    with pytest.raises(CheckpointError, match="name every folder"):
        find_whole_model([tmp_path / "one"])
    DiskStore(tmp_path / "other", {**MODEL, "layers": 5}).save(SavedStage(5, 1, 2, "a"), state(1))
    with pytest.raises(CheckpointError, match="layers"):
        find_whole_model([tmp_path / "one", tmp_path / "other"])


@given(st.lists(st.builds(SavedStage, st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.sampled_from("ab"))))
def test_the_common_step_is_the_latest_that_is_whole(saved: list[SavedStage]):
    def whole(step: int, stages: int, lineage: str) -> bool:
        return all(SavedStage(step, stage, stages, lineage) in saved for stage in range(stages))

    found = common_step(saved)
    steps = [step for step in range(4) for stages in (1, 2, 3) for lineage in "ab" if whole(step, stages, lineage)]
    assert (found.step if found else None) == max(steps, default=None)
    assert found is None or whole(found.step, found.stages, found.lineage)


def test_only_the_newest_are_kept(tmp_path: Path):
    for step in range(5):
        DiskStore(tmp_path, MODEL, keep=2).save(SavedStage(step, 0, 1, "a"), state(0))
    assert [saved.step for saved in saved_stages(tmp_path)] == [3, 4]


def test_another_peers_save_of_the_same_state_writes_nothing(tmp_path: Path):
    saved = SavedStage(3, 0, 1, "a")
    first = tmp_path / "stage-00" / "step-00000003"
    DiskStore(tmp_path, MODEL).save(saved, state(0))
    written = (first / "manifest.json").stat().st_mtime_ns
    assert DiskStore(tmp_path, MODEL).save(saved, {name: Block.of(value) for name, value in state(0).items()}) == ""
    assert (first / "manifest.json").stat().st_mtime_ns == written
    DiskStore(tmp_path, MODEL).save(saved, state(0, seed=1))
    assert same(load(tmp_path, saved, specs_of(state(0)), MODEL), state(0, seed=1))


def test_of_two_that_save_one_stage_at_once_one_steps_back(tmp_path: Path):
    DiskStore(tmp_path, MODEL).save(SavedStage(3, 0, 1, "a"), state(0))
    with (tmp_path / "stage-00" / "saving").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert DiskStore(tmp_path, MODEL).save(SavedStage(4, 0, 1, "a"), state(0)) == UNNAMED
    assert DiskStore(tmp_path, MODEL).save(SavedStage(4, 0, 1, "a"), state(0)) == ""


def test_a_save_that_is_being_written_stays_when_another_peer_saves_this_stage(tmp_path, monkeypatch):
    """Two peers may save in one directory: the second one removed the unfinished files of the first."""
    second, write_shard = [], checkpoint.write_shard

    def with_another_save(*args, **options):
        monkeypatch.undo()
        record = write_shard(*args, **options)
        second.append(DiskStore(tmp_path, MODEL).save(SavedStage(5, 0, 1, "a"), state(0)))
        return record

    monkeypatch.setattr(checkpoint, "write_shard", with_another_save)
    assert DiskStore(tmp_path, MODEL, name="rank0").save(SavedStage(4, 0, 1, "a"), state(0)) == ""
    assert second == ["rank0"]
    assert [saved.step for saved in saved_stages(tmp_path)] == [4]


def test_what_a_dead_save_of_a_stage_left_is_removed_before_the_next_is_written(tmp_path: Path):
    left = tmp_path / "stage-00" / "step-00000003.part"
    left.mkdir(parents=True)
    (left / "shard-00-of-01.safetensors").write_bytes(bytes(100))
    DiskStore(tmp_path, MODEL).save(SavedStage(4, 0, 1, "a"), state(0))
    assert not left.exists()


def test_a_save_of_a_stage_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipelined.state.checkpoints.checkpoint.write_manifest", full)
    with pytest.raises(StoreError, match="No space left"):
        DiskStore(tmp_path, MODEL).save(SavedStage(4, 0, 1, "a"), state(0))
    assert [path.name for path in (tmp_path / "stage-00").iterdir()] == ["saving"]


def test_a_stage_is_saved_where_the_file_system_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    save_all(tmp_path, 7)
    assert common_step(saved_stages(tmp_path)) == SavedStage(7, 0, 2, "a")


def test_a_damaged_stage_is_passed_over(tmp_path: Path):
    save_all(tmp_path, 5)
    save_all(tmp_path, 6, seed=1)
    (shard,) = (tmp_path / "stage-01" / "step-00000006").glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    assert common_step(saved_stages(tmp_path)) == SavedStage(5, 0, 2, "a")


def test_one_changed_byte_is_found(tmp_path: Path):
    DiskStore(tmp_path, MODEL).save(SavedStage(5, 0, 1, "a"), state(0))
    (shard,) = (tmp_path / "stage-00" / "step-00000005").glob("*.safetensors")
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(CheckpointError, match="not the bytes that were saved"):
        load(tmp_path, common_step(saved_stages(tmp_path)), specs_of(state(0)), MODEL)


def test_a_damaged_stage_is_written_again_when_its_bits_are_saved_again(tmp_path: Path):
    save_all(tmp_path, 7)
    at = common_step(saved_stages(tmp_path))
    file = next((tmp_path / "stage-01" / "step-00000007").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    save_all(tmp_path, 7)
    assert same(load(tmp_path, at, specs_of(state(1)), MODEL), state(1))


def test_a_state_of_another_model_or_shape_is_refused(tmp_path: Path):
    save_all(tmp_path, 5)
    at = common_step(saved_stages(tmp_path))
    with pytest.raises(CheckpointError, match="layers: 4 saved, 5 asked"):
        load(tmp_path, at, specs_of(state(0)), {**MODEL, "layers": 5})
    with pytest.raises(CheckpointError, match=r"does not hold h.4.weight/value \(saved: nothing"):
        load(tmp_path, at, specs_of(state(2)), MODEL)
    other = {"h.0.weight/value": np.zeros((3, 2), np.float32)}
    with pytest.raises(CheckpointError, match=r"\(saved: \('float32', \(3, 1\)\), expected: \('float32', \(3, 2\)\)\)"):
        load(tmp_path, at, specs_of(other), MODEL)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"there is no folder .*none; name those"):
        find_whole_model([tmp_path, tmp_path / "none"])


def test_an_empty_or_absent_directory_holds_nothing(tmp_path: Path):
    assert saved_stages(tmp_path) == saved_stages(tmp_path / "none") == []
    assert common_step([]) is None


STATE = {"h.weight/value": np.arange(6, dtype=np.float32).reshape(2, 3), "updates/count": np.array(4)}
MARK = SavedStage(4, 1, 3, "run-ab")


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "store", {"layers": 2})


def test_what_was_saved_is_found_and_comes_back_to_the_bit(store: DiskStore):
    assert list(store.saved_stages()) == []
    store.save(MARK, STATE)
    assert list(store.saved_stages()) == [MARK]
    assert describe(store.load(MARK, specs_of(STATE))).root == describe(STATE).root


def test_what_another_model_saved_is_not_there(store: DiskStore):
    store.save(MARK, STATE)
    assert list(DiskStore(store.directory, {"layers": 3}).saved_stages()) == []


def test_what_is_damaged_or_missing_is_not_loaded(store: DiskStore):
    store.save(MARK, STATE)
    with pytest.raises(StoreError, match=r"other\.weight"):
        store.load(MARK, {"other.weight/value": ("float32", (2,))})
    (file,) = store.directory.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StoreError):
        store.load(MARK, specs_of(STATE))


def test_an_impossible_directory_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        DiskStore(tmp_path / "file", {}).save(MARK, STATE)


def test_saved_stages_survive_packing():
    assert SavedStages.unpack(SavedStages([list(MARK)]).pack()).all() == [MARK]
    assert MARK.version == Version(4, "run-ab") and MARK.version.run == "run"


@pytest.mark.parametrize("mark", [[4, 3, 3, ""], [-1, 0, 1, ""], [1, 0, 1 << 40, ""], [1, 0, 1], [1.0, 0, 1, ""], 7])
def test_saved_stages_of_no_stage_are_refused(mark):
    with pytest.raises(ValueError, match=r"SavedStages\.saved"):
        SavedStages.unpack(msgpack.packb({"marks": [mark]}))
