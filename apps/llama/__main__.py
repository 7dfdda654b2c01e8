"""Train a Llama-like model, or fine-tune one: `mpirun -n 4 python -m apps.llama`, or without a launcher.

Its flags are those of any row of layers that learns from text, and its own.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from apps.common.arguments import check_sample
from apps.common.presets import find_preset
from apps.lm.generate import main as generate
from apps.lm.huggingface.llama import read_llama
from apps.lm.models.llama_presets import LLAMA_PRESETS, LlamaConfig
from apps.rows.program import main
from apps.rows.text import TextRowFlags, TextTask
from pipelined.process.exit import end_process
from pipelined.programs.plan import Plan

if TYPE_CHECKING:
    from apps.llama.training import LlamaTraining

EXTRA_LAYERS = 3
"""Layers besides the blocks: the embedding, the last norm and the head."""


@dataclass(frozen=True)
class Config(TextRowFlags):
    """Train a Llama-like model on text, across ranks, or fine-tune one of Hugging Face's."""

    preset: str = "tiny"
    """Model: tiny, smollm2-135m, smollm2-360m, tinyllama-1.1b, llama2-7b, llama3-8b, qwen2.5-0.5b or qwen3-0.6b."""
    init: Path | None = None
    """Start from a Hugging Face directory of a Llama, SmolLM, Qwen2 or Qwen3, which determines the sizes."""
    sample: int = 200
    """Tokens to sample at the end."""
    prompt: str = "ROMEO"
    """Text at the beginning of the sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sample(self.sample, self.prompt)

    def task(self) -> "LlamaTask":
        found = find_preset(self.preset, LLAMA_PRESETS) if self.init is None else read_llama(self.init)
        return LlamaTask(self, replace(found, **self.size_overrides(found)))


class LlamaTask(TextTask):
    """A Llama-like model on text."""

    config: Config

    def __init__(self, config: Config, model: LlamaConfig):
        super().__init__(config, model, model.kind, EXTRA_LAYERS)
        self.model = model

    def training(self, plan: Plan) -> "LlamaTraining":
        from apps.llama.training import LlamaTraining

        return LlamaTraining(self, self.model, plan, self.config.prompt, self.config.sample)


def start(arguments: list[str]) -> int:
    """Train, or with `generate` as the first argument generate; returns the exit code."""
    if arguments[:1] == ["generate"]:
        return generate("apps.llama", arguments[1:])
    return main("apps.llama", Config(), arguments)


if __name__ == "__main__":
    end_process(start(sys.argv[1:]))
