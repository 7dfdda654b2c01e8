"""torch.distributed.pipelining over gloo as a contender, and whole models side by side without any pipeline.

The rule: both train the contest's own parts with its own recipe, so that only the pipeline differs. The allocator is
told to keep what was freed, as our runtime tells it.
"""

import os
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from apps._model import GPT2
from benchmarks._contender import Result, Task, Trial, tell
from benchmarks._contest import Contest, stages
from pipelined.launch import detect
from pipelined.memory import keep_freed
from pipelined.optimizer import update

SCHEDULES = {"gpipe": ScheduleGPipe, "one_f_one_b": Schedule1F1B}
ALONE = "alone"
"""A trial in which every rank trains a model of its own."""
CPU = torch.device("cpu")


class Pipelined:
    """One rank's stage and its optimizer."""

    def __init__(self, contest: Contest, trial: Trial, rank: int):
        depth, model = len(trial.ends), GPT2(contest.config)
        self.contest, self.first, self.last = contest, rank == 0, rank == depth - 1
        part = model.build(stages(trial.ends)[rank], torch.float32, CPU, contest.seed)
        self.optimizer = contest.recipe.build(dict(part.named_parameters()))
        stage = PipelineStage(part, rank, depth, CPU)
        self.schedule = SCHEDULES[trial.schedule](stage, contest.microbatches, loss_fn=model.loss)

    def step(self, step: int) -> float:
        """Train one step; returns its loss where the last stage is, and 0 elsewhere."""
        rows, losses = self.contest.rows(step), list[torch.Tensor]()
        self.optimizer.zero_grad()
        inputs = (rows[:, :-1],) if self.first else ()
        self.schedule.step(*inputs, **({"target": rows[:, 1:], "losses": losses} if self.last else {}))
        update(self.optimizer, self.contest.recipe.rate(step), 1.0)
        return float(torch.stack(losses).detach().mean()) if self.last else 0.0


class Alone:
    """A whole model, trained microbatch by microbatch."""

    def __init__(self, contest: Contest):
        self.contest, self.model = contest, GPT2(contest.config)
        self.part = self.model.build(range(self.model.layers), torch.float32, CPU, contest.seed)
        self.optimizer = contest.recipe.build(dict(self.part.named_parameters()))

    def step(self, step: int) -> float:
        """Train one step; returns its loss."""
        self.optimizer.zero_grad()
        losses = []
        for rows in self.contest.rows(step).split(self.contest.batch):
            loss = self.model.loss(self.part(rows[:, :-1]), rows[:, 1:])
            (loss / self.contest.microbatches).backward()
            losses.append(float(loss.detach()))
        update(self.optimizer, self.contest.recipe.rate(step), 1.0)
        return sum(losses) / len(losses)


def trained(contest: Contest, step: Callable[[int], float]) -> tuple[float, float, float]:
    """Steps between two barriers; returns their seconds, this rank's of one core a step, and the last one's loss."""
    for number in range(contest.warm_up):
        step(number)
    distributed.barrier()
    start, used = time.perf_counter(), time.process_time()
    for number in range(contest.warm_up, contest.warm_up + contest.steps):
        loss = step(number)
    distributed.barrier()
    return time.perf_counter() - start, (time.process_time() - used) / contest.steps, loss


def contend(task: Task) -> list[Result]:
    """One rank of all trials; only what rank 0 gets is whole."""
    contest, results = task.contest, []
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    for trial in task.trials:
        alone = trial.schedule == ALONE
        seconds, *own = trained(contest, (Alone(contest) if alone else Pipelined(contest, trial, rank)).step)
        total = torch.tensor(own, dtype=torch.float64)
        distributed.all_reduce(total)
        models = ranks if alone else 1
        cpu, loss = (total / models).tolist()
        rate = models * contest.tokens * contest.steps / seconds
        results.append(Result(trial.schedule, trial.ends, rate, cpu, loss))
    return results


def main() -> int:
    """Meet the other ranks in the task's folder, and run."""
    torch.set_num_threads(1)
    keep_freed()
    started, task = detect(os.environ), Task.loads(sys.argv[1])
    meeting = f"file://{task.folder}/ranks"
    distributed.init_process_group("gloo", meeting, rank=started.rank, world_size=started.world_size)
    results = contend(task)
    if started.rank == 0:
        tell(results)
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
