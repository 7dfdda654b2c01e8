"""The model, its cut and the rules of a swarm, from the directory's record of what is trained. Imports torch.

`python -m apps.swarm` and the ranks of `--schedule swarm` begin here.
"""

from dataclasses import dataclass

import torch

from apps.common.lm.models.gpt2 import GPT2, UntiedGPT2
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig
from apps.swarm.config import SwarmTask
from apps.swarm.families import cut_of, is_untied
from pipelined.swarm.process.session import SwarmSession
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages import torch_stage
from pipelined.swarm.stages.training import Training
from pipelined.training.exchange.compression import NONE
from pipelined.training.optimizer import OptimizerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
"""The dtype of parameters, sums and what stages send; bfloat16 is an autocast inside the forward."""


@dataclass(frozen=True)
class ModelSession(SwarmSession):
    """What all processes of one swarm share, with the whole model."""

    training: Training
    model: GPT2


def session_of(task: SwarmTask) -> ModelSession:
    """Build the model and the rules; blocks. Raises UsageError: see `training_of`."""
    training = training_of(task)
    (model, _) = model_and_cut(task)
    return ModelSession(training, rules_of(task, training), model.identity(), task.text, model)


def model_and_cut(task: SwarmTask) -> tuple[GPT2, tuple[range, ...]]:
    """The model, and each stage's layers: the slowest stage is as fast as can be.

    Raises:
        UsageError: no such preset, sizes that do not fit, or more stages than layers.
    """
    config, cut = cut_of(task.settings, task.vocabulary)
    if isinstance(config, RotaryConfig):
        return RotaryLM(config), cut
    kind = UntiedGPT2 if is_untied(task.settings) else GPT2
    return kind(config), cut


def training_of(task: SwarmTask) -> Training:
    """The training that all peers share.

    Raises:
        UsageError: it cannot be; see `model_and_cut`.
    """
    settings = task.settings
    model, cut = model_and_cut(task)
    optimizer_settings = OptimizerConfig(
        settings.lr, settings.steps, settings.warmup, clip=settings.clip, weight_decay=settings.weight_decay
    )
    return Training(
        model=model,
        cut=cut,
        optimizer_settings=optimizer_settings,
        rows=settings.microbatch,
        sequence=settings.seq,
        seed=settings.seed,
        update=settings.optimizer,
        dtype=DTYPES[settings.dtype],
        autocast=settings.dtype == "bfloat16",
        text=task.text,
        exact_sums=settings.batch // settings.microbatch if settings.exact_sums else 0,
    )


def rules_of(task: SwarmTask, training: Training) -> Rules:
    """The rules that all processes must share."""
    settings = task.settings
    return Rules(
        model=training.digest([torch_stage]),
        stages=settings.stages,
        batch=settings.batch // settings.microbatch,
        samples=float(settings.batch),
        clip=settings.clip,
        lease_s=settings.lease,
        rebalance_s=settings.rebalance,
        codec=_codec(settings.compress),
        sums_codec=_codec(settings.compress_sums),
        delayed=settings.delayed_updates,
        eval_every=settings.eval_every,
        eval_batch=task.held_out,
    )


def _codec(name: str) -> str:
    return "" if name == NONE else name
