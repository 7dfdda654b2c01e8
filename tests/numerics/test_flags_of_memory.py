"""The flags of precision and memory, from the command line to the losses: what docs/memory.md promises of each.

Every command trains four ranks of one process: two stages, each on two ranks.
"""

import json
from functools import cache

import pytest
import torch

from apps.gpt2 import __main__ as gpt2
from apps.gpt2 import train
from pipelined.state.checkpoints.saving import CheckpointSaver
from pipelined.training.job.numerics import Numerics

SMALL = "--layers 1 --d-model 16 --heads 2 --seq 8 --batch 8 --depth 2 --width 2 --tokenizer bytes --sample 0".split()
FLAGS = [*SMALL, "--schedule", "one_f_one_b", "--dropout", "0.1", "--lr", "1e-2", "--warmup", "1", "--steps", "4"]
HALF, WHOLE = torch.bfloat16, torch.float32

SAME = {
    "--recompute attention": {"recompute_attention": True},
    "--shard-optimizer": {"shard_optimizer": True},
    "--offload-optimizer": {"offload_optimizer": True},
    "--shard-optimizer --offload-optimizer": {"shard_optimizer": True, "offload_optimizer": True},
}
NEAR = {
    "--dtype bfloat16": {"autocast": HALF},
    "--dtype float16": {"autocast": torch.float16},
    "--dtype bfloat16-parameters": {"dtype": HALF, "masters": WHOLE},
}
"""By flags, what of `Numerics` is not as in a plain run, where losses have the same bits, or nearly the same."""
DELAYED = {"offload_optimizer": True, "delayed_update": True}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs a command, once; returns its reports of steps, and the numerics of its ranks, which must be equal."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "text").write_text("the losses of a command are those that its flags promise; " * 40)

    @cache
    def run(flags):
        metrics, found, build = folder / f"{abs(hash(flags))}.jsonl", [], train.build_rank

        def noting(actor, job, **more):
            found.append(job.numerics)
            return build(actor, job, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(train, "build_rank", noting)
            words = [*FLAGS, *flags.split(), "--data", str(folder / "text"), "--metrics", str(metrics)]
            assert gpt2.main(words) == 0
        assert len(found) == 4 and len(set(found)) == 1
        return [json.loads(line) for line in metrics.read_text().splitlines()], found[0]

    return run


def losses(rows):
    return [row["loss"] for row in rows]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(("flags", "numerics"), SAME.items(), ids=SAME)
def test_a_flag_of_memory_reaches_the_run_and_changes_no_bit_of_a_loss(trained, flags, numerics):
    rows, found = trained(flags)
    assert found == Numerics(**numerics)
    assert losses(rows) == losses(trained("")[0])


@pytest.mark.parametrize(("flags", "numerics"), NEAR.items(), ids=NEAR)
def test_sixteen_bits_reach_the_run_and_its_losses_are_near(trained, flags, numerics):
    rows, found = trained(flags)
    assert found == Numerics(**numerics)
    plain = losses(trained("")[0])
    assert losses(rows) != plain
    assert losses(rows) == pytest.approx(plain, rel=1e-2)


def test_float16_alone_scales_its_loss_and_says_by_what(trained):
    scales = {
        flags: [(row.get("loss_scale"), row.get("skipped")) for row in trained(flags)[0]] for flags in ["", *NEAR]
    }
    assert scales.pop("--dtype float16") == [(65536.0, False)] * 4
    assert {each for rows in scales.values() for each in rows} == {(None, None)}


def test_a_delayed_update_is_first_in_use_two_steps_later(trained):
    """With a learning rate of 0 every step has the loss of the first values: so have the first two of a delayed run."""
    (rows, found), late = trained("--offload-optimizer --delayed-update"), [losses(trained("--lr 0")[0])]
    assert found == Numerics(**DELAYED)
    assert losses(rows)[:2] == late[0][:2]
    assert all(own != first for own, first in zip(losses(rows)[2:], late[0][2:], strict=True))
    assert losses(rows)[1] != losses(trained("")[0])[1], "without a delay the second step has the first update"


def test_a_save_beside_the_steps_has_the_bytes_of_one_that_is_waited_for(trained, tmp_path, monkeypatch):
    begun, start_save = [], CheckpointSaver.start_save

    async def noting(self, done, target):
        begun.append(done)
        await start_save(self, done, target)

    monkeypatch.setattr(CheckpointSaver, "start_save", noting)
    saved = {}
    for flags in ("--async-save", ""):
        folder = tmp_path / ("beside" if flags else "waited")
        rows, _ = trained(f"{flags} --checkpoint {folder} --save-every 2 --keep 9")
        assert losses(rows) == losses(trained("")[0])
        files = [path for path in folder.glob("step-*/*") if path.suffix != ".json"]
        saved[flags] = {path.relative_to(folder): path.read_bytes() for path in files}
    assert begun == [2] * 4, "each rank once; the last save is waited for"
    assert saved["--async-save"] == saved[""]
    assert {path.parts[0] for path in saved[""]} == {"step-00000002", "step-00000004"}
