"""The plain single-process loop with delays: weights are a list of versions, and each gradient is taken at old ones.

It uses none of the runtime: one module, one loop over microbatches in their order, torch's own AdamW. Which version of
a parameter a microbatch meets is said by a function, so that a paper's recurrence reads as printed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.func import functional_call

from pipelined.programs.partition import partition
from pipelined.random.keyed_random import KeyedRandom, drawing_from
from pipelined.training.optimizer import OptimizerConfig
from tests.numerics.plain import SEQUENCE, AdamW, Case, Feed

OPTIMIZER = OptimizerConfig(lr=1e-2, steps=5, warmup=2, clip=0.0)
Stages = tuple[int, ...]
Version = Callable[[Stages, int, int], int]
"""(stages that hold a parameter, group, its microbatch counted from the run's beginning) to the parameter's version."""


def pipedream(depth: int, drains: list[int] | None = None) -> Version:
    """w(t+1) = w(t) - lr g(w_0(t-D+1), …, w_{D-1}(t)), where nothing is older than the last drain.

    Args:
        drains: the first microbatch of each segment.
    """

    def version(stages: Stages, group: int, microbatch: int) -> int:
        start = max(first for first in drains or [0] if first <= microbatch)
        return max(start, microbatch - (depth - 1 - stages[0]))

    return version


def double_buffered(microbatches: int) -> Version:
    """w(t+1) = w(t) - lr g(w(t-1)): PipeDream-2BW."""
    return lambda stages, group, microbatch: max(microbatch // microbatches - 1, 0)


@dataclass
class Outcome:
    """By step; `weights` are the last version of every parameter."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]


def delayed(case: Case, steps: int, version: Version) -> Outcome:
    """Train on one process."""
    model, feed, width, each = case.model, Feed(), case.width, case.microbatches
    every = case.plan.stage_map.updates.every
    module = model.build(range(model.layers), torch.float64, "cpu", seed=3)
    weights = dict(module.named_parameters())
    stages, optimizer = stages_of(case), adamw(weights)
    history, squares, losses = [copied(weights)], [[] for _ in range(steps)], [0.0] * steps
    for update in range(steps * each // every):
        gradients = {name: torch.zeros_like(p) for name, p in weights.items()}
        for microbatch in range(update * every, (update + 1) * every):
            step, inside = divmod(microbatch, each)
            for group in range(width):
                number = group * each + inside
                met = {n: copy_of(history[version(s, group, microbatch)][n]) for n, s in stages.items()}
                with drawing_from(KeyedRandom(3, step, number)):
                    logits = functional_call(module, met, (feed.inputs(step, number),))
                loss = model.loss(logits, feed.targets(step, number))
                (loss / (every * width)).backward()
                losses[step] += loss.item() / (each * width)
                for name, value in met.items():
                    gradients[name] += value.grad
        squares[update * every // each].append(sum(float((g**2).sum()) for g in gradients.values()))
        for name, parameter in weights.items():
            parameter.grad = gradients[name]
        for options in optimizer.param_groups:
            options["lr"] = OPTIMIZER.rate(update * every // each)
        optimizer.step()
        history.append(copied(weights))
    return Outcome(losses, [(sum(some) / len(some)) ** 0.5 for some in squares], history[-1])


def copied(weights):
    return {name: p.detach().clone() for name, p in weights.items()}


def copy_of(weight):
    return weight.clone().requires_grad_()


def adamw(weights) -> AdamW:
    matrices = [p for p in weights.values() if p.dim() >= 2]
    vectors = [p for p in weights.values() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return AdamW(groups, betas=(0.9, 0.95))


def stages_of(case: Case) -> dict[str, Stages]:
    """The stages that hold each parameter."""
    model, found = case.model, {}
    for stage, layers in enumerate(partition(model.costs(SEQUENCE), case.depth)):
        for name, _ in model.build(layers, torch.float64, "meta", None).named_parameters():
            found[name] = (*found.get(name, ()), stage)
    return found
