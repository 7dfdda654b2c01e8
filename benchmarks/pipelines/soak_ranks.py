"""One rank of a soak: a tiny GPT-2 in Chimera over whatever transport its launcher means.

python -m benchmarks.pipelines.soak_ranks TASK (JSON: steps, settled, looks): rank 0 prints the levels of every rank
as JSON.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from benchmarks.harness.levels import Levels, least, look
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.process.exit import end_process
from pipelined.process.launch import detect
from pipelined.process.run import run
from pipelined.programs.plan import Plan
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from transports import Transport

RANKS, SEQUENCE, ROWS = 2, 8, 2
MODEL = ModelConfig(layers=2, d_model=8, heads=2, vocab=17, positions=SEQUENCE, dropout=0.1)
PLAN = Plan("chimera", RANKS, 1, ROWS, 2)


class Feed:
    """Rows that follow from step and microbatch alone."""

    def inputs(self, step: int, microbatch: int) -> torch.Tensor:
        return torch.arange(ROWS * SEQUENCE).view(ROWS, SEQUENCE).add(step + microbatch).remainder(MODEL.vocab)

    def targets(self, step: int, microbatch: int) -> torch.Tensor:
        return self.inputs(step + 1, microbatch)


async def soak(transport: Transport, steps: int, settled: int, looks: int) -> int:
    """Train, look at the levels after `settled` steps and at the end, and let rank 0 print those of all ranks."""
    executor = TorchExecutor("cpu", RealClock(), transport.set_computing)
    try:
        async with Actor(transport) as actor:
            optimizer_settings = OptimizerConfig(lr=1e-3, steps=steps, warmup=0)
            job = JobDescription(
                model=GPT2(MODEL), plan=PLAN, feed=Feed(), optimizer_settings=optimizer_settings,
                numerics=Numerics(), sequence=SEQUENCE, seed=1,
            )  # fmt: skip
            trainer = build_rank(actor, job, executor=executor, tracer=NullTracer())
            before, after = list[Levels](), list[Levels]()
            for step in range(steps):
                await trainer.step(step)
                if 0 <= step - settled < looks:
                    before.append(await _look_together(transport))
                if step >= steps - looks:
                    after.append(await _look_together(transport))
            levels = await gather_objects(transport, "levels", [asdict(least(before)), asdict(least(after))])
            if transport.rank == 0:
                print(json.dumps(levels), flush=True)
    finally:
        executor.close()
    return 0


async def _look_together(transport: Transport) -> Levels:
    """Look on one rank after the other, while all others have sent what they had and wait for its word."""
    for rank in range(transport.world_size):
        await gather_objects(transport, "done", True, rank)
        if rank == transport.rank:
            found = look()
        await broadcast_object(transport, "looked", True, rank)
    return found


def main() -> int:
    """One process of the ranks."""
    torch.set_num_threads(1)
    task: dict[str, Any] = json.loads(sys.argv[1])
    return run(detect(os.environ), RANKS, lambda transport: soak(transport, **task))


if __name__ == "__main__":
    end_process(main())
