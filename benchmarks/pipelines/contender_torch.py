"""torch.distributed.pipelining over gloo as a contender, and whole models side by side without any pipeline.

Both train the contest's own parts with its own optimizer, so only the pipeline differs. The allocator keeps what was
freed, and the search for garbage spares what lives at the start, as in our runtime.
"""

import math
import os
import sys
import time

import torch
from torch import distributed
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from apps.common.lm.models.gpt2 import GPT2
from benchmarks.pipelines.contender import Result, Task, Trial, tell
from benchmarks.pipelines.contest import Contest, stages
from pipelined.process.launch import detect
from pipelined.process.memory import frozen_objects, keep_freed
from pipelined.training.optimizer import update

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "one_f_one_b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb_v": ScheduleZBVZeroBubble,
}
"""Torch's schedules, under the names that this project's have."""
ALONE = "alone"
"""A trial in which every rank trains a model of its own."""
CPU = torch.device("cpu")


def held(schedule: str, rank: int, ranks: int) -> list[int]:
    """The stages of a rank, as torch's schedule of that name wants them."""
    if schedule == "interleaved":
        return [rank, ranks + rank]
    return [rank, 2 * ranks - 1 - rank] if schedule == "zb_v" else [rank]


class Pipelined:
    """One rank's stages and their optimizer."""

    def __init__(self, contest: Contest, trial: Trial, rank: int, ranks: int):
        depth, model = len(trial.ends), GPT2(contest.config)
        self.contest, mine = contest, held(trial.schedule, rank, ranks)
        self.first, self.last = 0 in mine, depth - 1 in mine
        cut = stages(trial.ends)
        parts = [model.build(cut[stage], torch.float32, CPU, contest.seed) for stage in mine]
        self.optimizer = contest.optimizer_settings.build({k: v for part in parts for k, v in part.named_parameters()})
        made = [PipelineStage(part, stage, depth, CPU) for part, stage in zip(parts, mine, strict=True)]
        one_or_more = made if len(made) > 1 else made[0]
        self.schedule = SCHEDULES[trial.schedule](one_or_more, contest.microbatches, loss_fn=model.loss)

    def step(self, step: int) -> float:
        """Train one step; returns its loss where the last stage is, and 0 elsewhere."""
        rows, losses = self.contest.rows(step), list[torch.Tensor]()
        self.optimizer.zero_grad()
        inputs = (rows[:, :-1],) if self.first else ()
        self.schedule.step(*inputs, **({"target": rows[:, 1:], "losses": losses} if self.last else {}))
        update(self.optimizer, self.contest.optimizer_settings.rate(step), 1.0)
        return float(torch.stack(losses).detach().mean()) if self.last else 0.0


class Alone:
    """A whole model, trained microbatch by microbatch."""

    def __init__(self, contest: Contest):
        self.contest, self.model = contest, GPT2(contest.config)
        self.part = self.model.build(range(self.model.layers), torch.float32, CPU, contest.seed)
        self.optimizer = contest.optimizer_settings.build(dict(self.part.named_parameters()))

    def step(self, step: int) -> float:
        """Train one step; returns its loss."""
        self.optimizer.zero_grad()
        losses = []
        for rows in self.contest.rows(step).split(self.contest.batch):
            loss = self.model.loss(self.part(rows[:, :-1]), rows[:, 1:])
            (loss / self.contest.microbatches).backward()
            losses.append(float(loss.detach()))
        update(self.optimizer, self.contest.optimizer_settings.rate(step), 1.0)
        return sum(losses) / len(losses)


def trained(contest: Contest, trainer: Pipelined | Alone) -> tuple[float, list[float]]:
    """Time steps between two barriers.

    Returns: their seconds, and what is summed over ranks: a step's seconds of this rank's core, the square of its
        gradients' norm in the last step, and the loss of every step.
    """
    losses = [trainer.step(step) for step in contest.before]
    distributed.barrier()
    start, used = time.perf_counter(), time.process_time()
    losses += [trainer.step(step) for step in contest.timed]
    distributed.barrier()
    seconds, cpu = time.perf_counter() - start, (time.process_time() - used) / contest.steps
    losses.append(trainer.step(contest.last))
    return seconds, [cpu, squares(trainer.optimizer), *losses]


def squares(optimizer: torch.optim.Optimizer) -> float:
    """The sum of the squares of all gradients, which an update leaves as they are."""
    gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    return sum(float(gradient.double().square().sum()) for gradient in gradients)


def contend(task: Task) -> list[Result]:
    """One rank of all trials; only what rank 0 gets is whole."""
    contest, results = task.contest, []
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    for trial in task.trials:
        alone = trial.schedule == ALONE
        seconds, own = trained(contest, Alone(contest) if alone else Pipelined(contest, trial, rank, ranks))
        total = torch.tensor(own, dtype=torch.float64)
        distributed.all_reduce(total)
        models = ranks if alone else 1
        cpu, square, *losses = (total / models).tolist()
        rate = models * contest.tokens * contest.steps / seconds
        results.append(Result(trial.schedule, trial.ends, rate, cpu, tuple(losses), math.sqrt(square)))
    return results


def main() -> int:
    """Meet the other ranks in the task's folder, and run."""
    torch.set_num_threads(1)
    keep_freed()
    started, task = detect(os.environ), Task.loads(sys.argv[1])
    meeting = f"file://{task.folder}/ranks"
    distributed.init_process_group("gloo", meeting, rank=started.rank, world_size=started.world_size)
    with frozen_objects():
        results = contend(task)
    if started.rank == 0:
        tell(results)
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
