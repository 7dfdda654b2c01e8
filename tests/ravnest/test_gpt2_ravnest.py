"""`apps.gpt2 --schedule ravnest`: ranks of one process become nodes that train what a plain loop trains."""

import asyncio
import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.weights import Weights
from apps.gpt2.config import parse
from apps.gpt2.ravnest.job import resolve_ravnest
from apps.gpt2.ravnest.run import train_ravnest
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.task_training import training_of
from pipelined.errors import UsageError
from pipelined.process.launch import ALONE
from pipelined.process.stop_request import StopRequest
from pipelined.state.stages.store import saved_stages
from pipelined.state.stages.versions import common_step
from tests.numerics.test_ravnest_rounds import on_loop
from tests.ravnest.test_overlapped import Plain
from transports.local import world

FLAGS = (
    "--schedule ravnest --layers 2 --d-model 16 --heads 2 --vocab 256 --seq 16 --data LICENSE --batch 2 --microbatch 2 "
    "--warmup 2 --lr 1e-2 --sample 0 --average-every 2 --ahead 1"
)


def trained(words, ranks, stop=None, checkpoints=None):
    """Train with these flags on this many ranks, each with its directory if there are some; returns job and text."""
    job = resolve_ravnest(parse([*FLAGS.split(), *map(str, words)]), ranks)
    job.check()
    text = job.read_text()

    async def everyone():
        jobs = [replace(job, config=replace(job.config, checkpoint=own)) for own in checkpoints or []] or [job] * ranks
        running = (
            train_ravnest(end, own, ALONE, text, stop or StopRequest())
            for end, own in zip(world(ranks), jobs, strict=True)
        )
        return await asyncio.gather(*running)

    assert on_loop(everyone()) == [0] * ranks
    return job, text


def rows_of(path):
    return {row["step"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_a_codec_between_nodes_changes_the_losses_a_little(tmp_path):
    found = {}
    for codec in ("none", "zstd", "bf16"):
        trained(["--clusters", 1, "--steps", 3, "--compress", codec, "--metrics", tmp_path / codec], 2)
        found[codec] = [row["loss"] for row in rows_of(tmp_path / codec).values()]
    assert found["zstd"] == found["none"] != found["bf16"]
    assert found["bf16"] == pytest.approx(found["none"], rel=1e-2)


def test_one_cluster_trains_what_a_plain_loop_trains_and_exports_it(tmp_path):
    """One microbatch is alive, so that the cluster is a plain loop."""
    flags = ["--clusters", 1, "--steps", 6, "--metrics", tmp_path / "rows", "--export", tmp_path / "model"]
    job, text = trained(flags, 3)
    plain = Plain(training_of(RavnestTask(job.settings, 256, text.digest), text), 0, 1)
    for step in range(6):
        plain.update(step)
    rows = rows_of(tmp_path / "rows")
    assert {step: row["loss"] for step, row in rows.items()} == pytest.approx(
        {n: x for (n, _), x in plain.losses.items()}
    )
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    for name, value in plain.tensors.items():
        assert tensors[f"{name}"] == pytest.approx(value.detach(), abs=1e-6), name


def test_two_clusters_print_the_digest_of_the_average_that_they_export(tmp_path, capsys):
    flags = ["--clusters", 2, "--steps", 8, "--metrics", tmp_path / "rows", "--export", tmp_path / "model"]
    job, _ = trained([*flags, "--checkpoint", tmp_path / "saved"], 3)
    told = capsys.readouterr().out.splitlines()
    weights = Weights(UntiedGPT2(job.model), load_file(tmp_path / "model" / "model.safetensors"))
    assert f"average {weights.digest()}" in told
    rows = rows_of(tmp_path / "rows")
    assert sorted(rows) == list(range(8)) and {row["cluster"] for row in rows.values()} == {0, 1}
    assert sorted(path.name for path in (tmp_path / "saved").glob("stage-00/step-*"))[-1] == "step-00000008"


def test_another_job_goes_on_from_what_was_saved_as_a_plain_loop_does(tmp_path):
    flags = ["--clusters", 1, "--average-every", 3, "--checkpoint", tmp_path / "saved", "--metrics", tmp_path / "rows"]
    job, text = trained([*flags, "--steps", 3], 2)
    before = Plain(training_of(RavnestTask(job.settings, 256, text.digest), text), 0, 1)
    for step in range(3):
        before.update(step)
    job, _ = trained([*flags, "--steps", 6, "--resume", "auto"], 3)
    after = Plain(replace(training_of(RavnestTask(job.settings, 256, text.digest), text), start=3), 0, 1)
    after.module.load_state_dict(before.module.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    for step in range(3):
        after.update(step)
    losses = {step: loss for (step, _), loss in [*before.losses.items(), *after.losses.items()]}
    assert {step: row["loss"] for step, row in rows_of(tmp_path / "rows").items()} == pytest.approx(losses)
    with pytest.raises(UsageError, match=r"an earlier run \(the latest: step 6\); add --resume auto"):
        trained([*flags, "--steps", 6], 2)


def test_ranks_with_directories_of_their_own_go_on_from_what_they_hold_together(tmp_path):
    """The second job has the directories in another order, and a rank with an empty one."""
    own = [tmp_path / name for name in "abc"]
    flags = ["--clusters", 1, "--average-every", 3, "--metrics", tmp_path / "rows", "--checkpoint", own[2]]
    trained([*flags, "--steps", 3], 2, checkpoints=own[:2])
    assert all(len([*each.glob("stage-*")]) == 1 for each in own[:2])
    with pytest.raises(UsageError, match=r"a rank's .* holds checkpoints of an earlier run \(the latest: step 3\)"):
        trained([*flags, "--steps", 5], 3, checkpoints=[own[2], *own[:2]])
    trained([*flags, "--steps", 5, "--resume", "auto"], 3, checkpoints=[own[2], *own[:2]])
    assert sorted(rows_of(tmp_path / "rows")) == list(range(5)) and len(own) == 3
    assert common_step([saved for each in own for saved in saved_stages(each)]).step == 5


def test_a_stop_request_ends_all_ranks(capsys):
    stop = StopRequest()
    stop._receive(0, None)
    trained(["--steps", 100000], 2, stop)
    assert "stopped on request; the last round is saved to nowhere: give --checkpoint" in capsys.readouterr().out
