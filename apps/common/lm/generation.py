"""The models that generate, and one rank of their pipeline. Needs torch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import pipelined as pp
from apps.common.flags.paths import GPT2_TYPE, ROTARY_TYPE
from apps.common.lm.huggingface.initial import load_initial
from apps.common.lm.huggingface.llama import each_llama_tensor, read_llama
from apps.common.lm.huggingface.read import each_tensor, read_sizes
from apps.common.lm.huggingface.rotary import each_rotary_tensor, read_rotary
from apps.common.lm.models.gpt2 import GPT2, token_loss
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.models.llama import builders
from apps.common.lm.models.llama_presets import KINDS
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.sampling import Picker
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.lm.sharded.layouts import LAYOUT, factors_of
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.planner.trial import RandomTokens
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.state.checkpoints.trainer_state import load
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.evaluate import sample
from pipelined.training.job.description import JobDescription
from pipelined.training.job.model import Model
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.user_model import bind
from pipelined.training.optimizer import OptimizerConfig
from transports import Transport

Tensors = Callable[[Iterable[str]], Iterable[tuple[str, torch.Tensor]]]


@dataclass(frozen=True)
class Source:
    """A trained model.

    Args:
        model: its layers.
        vocab: its symbols.
        positions: the most tokens that it looks back on.
        tensors: its parameters by name, or the checkpoint that has them.
    """

    model: Model
    vocab: int
    positions: int
    tensors: Tensors | Path


def read_gpt2_export(directory: Path) -> Source:
    """A GPT-2 of a Hugging Face directory."""
    config = read_sizes(directory)
    return Source(GPT2(config), config.vocab, config.positions, partial(each_tensor, directory))


def read_llama_export(directory: Path) -> Source:
    """A Llama or Qwen of a Hugging Face directory."""
    config = read_llama(directory)
    model = bind(pp.Sequential(builders(config), initial="keyed"), token_loss, 0)
    return Source(model, config.vocab, config.positions, partial(each_llama_tensor, directory))


def read_rotary_export(directory: Path) -> Source:
    """The model of SWARM, as a swarm exports it."""
    config = read_rotary(directory)
    return Source(RotaryLM(config), config.vocab, config.positions, partial(each_rotary_tensor, directory))


def read_gpt2_checkpoint(path: Path) -> Source:
    """A GPT-2 of a checkpoint."""
    sizes = {name: value for name, value in open_checkpoint(path).meta.identity.items() if name != "model"}
    config = ModelConfig(**sizes)
    return Source(GPT2(config), config.vocab, config.positions, path)


SOURCES: dict[str, Callable[[Path], Source]] = {
    GPT2_TYPE: read_gpt2_export,
    **dict.fromkeys(KINDS, read_llama_export),
    ROTARY_TYPE: read_rotary_export,
}
"""What reads an export, by its `model_type`."""


async def generate(
    transport: Transport,
    launch: Launch,
    source: Source,
    *,
    tensor: int,
    prompts: Sequence[Sequence[int]],
    count: int,
    pick: Picker,
) -> list[list[int]]:
    """One rank of the pipeline.

    Args:
        tensor: the ranks of a stage, T, which split its tensors as `--layout megatron` does.
        prompts, count, pick: see `sample`.
    Returns: the prompts and their continuations on the ranks of the first stage; an empty list elsewhere.
    Cost: each token is computed once while all fit the positions; see `sample`.
    Raises:
        UsageError: the model has fewer heads than T.
    """
    executor = TorchExecutor.of_rank(transport, share_devices=launch.share_devices)
    description = JobDescription(
        model=source.model if tensor == 1 else _split(source.model, tensor),
        plan=Plan("gpipe", transport.world_size // tensor, 1, microbatch_size=1, microbatches=1, tensor=tensor),
        feed=RandomTokens(source.vocab, (1, 1)),
        optimizer_settings=OptimizerConfig(lr=0.0, steps=1),
        numerics=Numerics(),
        seed=0,
        fresh=False,
    )
    try:
        async with Actor(transport) as actor:
            trainer = build_rank(actor, description, executor=executor, tracer=NullTracer())
            if isinstance(source.tensors, Path):
                await load(trainer, source.tensors)
            else:
                await load_initial(trainer, source.tensors)
            return await sample(trainer.context, prompts, count, source.positions, pick, cached=True)
    finally:
        executor.close()


def _split(model: Model, ranks: int) -> ShardedGPT2:
    assert isinstance(model, GPT2)  # `Generate.kind` refuses others
    return ShardedGPT2(model.config, factors_of(LAYOUT, ranks))
