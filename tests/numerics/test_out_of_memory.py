"""Where memory runs out outside of a forward or backward, one message names rank and operation; the exit code is 2."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import pipelined as pp
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import VirtualClock
from pipelined.errors import OutOfMemory
from pipelined.process.launch import ALONE
from pipelined.process.run import run
from pipelined.state.checkpoints.saving import CheckpointSaver
from pipelined.state.checkpoints.trainer_state import RankState, SaveTarget
from pipelined.training import assemble
from pipelined.training.evaluate import evaluate
from pipelined.training.optimizer import rank_optimizer
from pipelined.training.optimizer.masters import MasterOptimizer
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.weight_versions import Versions
from pipelined.training.stages.parameters import LocalParameters
from pipelined.training.stages.stage import Stage
from pipelined.training.sums import gradient_sums
from tests.numerics.plain import OPTIMIZER, SEQUENCE, Case
from tests.numerics.trained import opened

HYBRID = Case("one_f_one_b", 2, 2, 2, layers=1, tied=False)
UNFLUSHED = Case("pipedream_2bw", 2, 1, 2, layers=1, tied=False)
ON_GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
ON_CPU = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes.")
PLACES = {
    "building": (assemble, "build_local", "building the model and its optimizer", MemoryError()),
    "forward": (Stage, "forward", "step 0: forward of microbatch 0 through stage 0 (pipe 0)", ON_GPU),
    "norm": (LocalParameters, "squares", "the gradient norm", ON_GPU),
    "update": (rank_optimizer, "update", "the update", ON_GPU),
    "sum": (gradient_sums, "all_reduce", "a gradient sum", ON_CPU),
    "masters": (MasterOptimizer, "_copy_gradient", "the update of masters", ON_CPU),
    "unflushed": (Versions, "update", "the update", ON_GPU),
    "evaluation": (Stage, "evaluate", "an evaluation", ON_GPU),
    "save": (RankState, "copy_to_host", "the copy of the state for a save", ON_CPU),
    "elsewhere": (RankTrainer, "_prepare", "", OSError(12, "Cannot allocate memory")),
}


@pytest.mark.parametrize("place", PLACES)
def test_one_message_names_rank_and_operation_and_the_code_is_2(place, monkeypatch, capsys, tmp_path):
    owner, name, operation, error = PLACES[place]
    first, working = [error], getattr(owner, name)

    def fails_once(*arguments, **more):
        if first:
            raise first.pop()
        return working(*arguments, **more)

    monkeypatch.setattr(owner, name, fails_once)
    case = UNFLUSHED if place == "unflushed" else HYBRID
    job = case.job(torch.float32, replace(OPTIMIZER, clip=0.0), offload_optimizer=place == "masters")

    async def program(transport):
        async with opened(transport, job) as trainer, CheckpointSaver(trainer) as saver:
            await trainer.step(0)
            ids = torch.zeros(case.plan.rows, SEQUENCE, dtype=torch.int64)
            await evaluate(trainer.context, trainer.model, [(ids, ids)], trainer.world, tag=0)
            await saver.start_save(1, SaveTarget(tmp_path, 1))
        return 0

    code = run(ALONE, job.plan.world_size, program, job.plan.stages_of, "train")
    said = capsys.readouterr().err
    assert not first, "the place was reached"
    assert code == 2
    assert re.fullmatch(r"train: error: rank \d[^\n]*\n", said), "one line"
    assert operation in said and repr(error) in said
    assert "--offload-optimizer" in said and "Traceback" not in said
    assert bool(re.search(r"\(free on cpu: [\d,.]+ of [\d,.]+ MiB\)", said)) is (place != "elsewhere")


def test_the_bytes_of_a_plan_are_told_beside_those_that_are_free():
    """A rank of the tiny GPT-2 plans its state and its activations, as --dry-run prints them."""
    job = resolve(GPT2Flags(depth=2, schedule="one_f_one_b"), 2)
    executor = TimedExecutor({}, VirtualClock())
    executor.configure(owner="rank 0 (stages 0)", planned_memory=lambda: job.planned_memory(0))
    with pytest.raises(OutOfMemory) as caught, executor.doing("outer"), executor.doing("inner"):
        raise MemoryError
    assert "worker 0: stages 0 (layers 0-2); 7.1 MiB of state, up to 33.1 MiB of activations" in job.table()
    assert str(caught.value).startswith(
        "rank 0 (stages 0): inner failed: MemoryError() (planned: 40.2 MiB, free on cpu:"
    )


IN, WIDE, OUT, ROWS = 512, 2048, 4, 300
ROW = [lambda: nn.Linear(IN, WIDE), nn.ReLU, lambda: nn.Linear(WIDE, OUT)]
DATA = torch.ones(4 * ROWS, IN), torch.zeros(4 * ROWS, dtype=torch.int64)
STEPS = {"a batch": [DATA], "a feed": pp.Feed(lambda *at: DATA[0][:ROWS], lambda *at: DATA[1][:ROWS])}
TIMES = {"building": (assemble, "build_local"), "training": (Stage, "forward")}


@pytest.mark.parametrize("when", TIMES)
@pytest.mark.parametrize("batches", STEPS.values(), ids=STEPS)
def test_the_bytes_of_a_users_plan_are_told(batches, when, monkeypatch):
    """A number has a gradient and two moments, a tensor a count; two microbatches are alive in stage 0."""
    entropy = ROWS * OUT * 4 + ROWS * 8 + 4  # the probabilities, the targets and their weight
    planned = [
        16 * (IN * WIDE + WIDE) + 2 * 4 + 2 * ROWS * (IN + WIDE) * 4,
        16 * (WIDE * OUT + OUT) + 2 * 4 + ROWS * (2 * WIDE + OUT) * 4 + entropy,
    ]

    def fails(*arguments, **more):
        raise ON_CPU

    monkeypatch.setattr(*TIMES[when], fails)
    losses = {"loss": nn.functional.cross_entropy, "optimizer": torch.optim.AdamW}
    with pytest.raises(pp.UsageError) as caught:
        pp.train(ROW, batches, **losses, steps=1, depth=2, microbatches=4)
    said = str(caught.value)
    rank = int(re.search(r"rank (\d)", said)[1])
    assert f"(planned: {planned[rank] / 2**20:,.1f} MiB, free on cpu" in said
