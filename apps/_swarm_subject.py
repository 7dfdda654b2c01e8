"""From what a swarm's directory says to what its processes compute with: model, cut and rules. Imports torch."""

from dataclasses import replace

from apps._presets import find_preset
from apps._rotary_model import RotaryLM
from apps._rotary_presets import ROTARY_PRESETS, RotaryConfig, cut_for
from apps._swarm_config import Told
from pipelined.compression import NONE
from pipelined.optimizer import Recipe
from pipelined.swarm import torch_stage
from pipelined.swarm.rules import Rules
from pipelined.swarm.training import Training


def model_config(told: Told) -> RotaryConfig:
    """The model's sizes.

    Raises:
        UsageError: no such preset, or sizes that do not fit.
    """
    subject = told.subject
    given = {name: getattr(subject, name) for name in ("layers", "d_model", "heads", "shared")}
    sizes = {name: value for name, value in given.items() if value is not None}
    config = find_preset(subject.preset, ROTARY_PRESETS)
    config = replace(config, vocab=told.vocabulary, squeeze=subject.squeeze, factor=subject.factor, **sizes)
    config.check_sequence(subject.seq)
    return config


def training_of(told: Told) -> Training:
    """The training that all peers share.

    Raises:
        UsageError: it cannot be; see `model_config` and `cut_for`.
    """
    subject = told.subject
    config, cut = cut_for(model_config(told), subject.stages, subject.seq)
    recipe = Recipe(subject.lr, subject.steps, subject.warmup, clip=subject.clip, weight_decay=subject.weight_decay)
    return Training(
        model=RotaryLM(config),
        cut=cut,
        recipe=recipe,
        rows=subject.microbatch,
        sequence=subject.seq,
        seed=subject.seed,
        update=subject.optimizer,
        text=told.text,
    )


def rules_of(told: Told, training: Training) -> Rules:
    """What all processes must have alike."""
    subject = told.subject
    return Rules(
        model=training.digest([torch_stage]),
        stages=subject.stages,
        batch=subject.batch // subject.microbatch,
        samples=float(subject.batch),
        clip=subject.clip,
        lease_s=subject.lease,
        rebalance_s=subject.rebalance,
        codec=_codec(subject.compress),
        sums_codec=_codec(subject.compress_sums),
    )


def _codec(name: str) -> str:
    return "" if name == NONE else name
