"""Train a Llama-like model, or fine-tune one: `mpirun -n 4 python -m apps.llama`, or without a launcher.

Its flags are those of any row of layers that learns from text, and its own.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from apps.common.flags.command_flags import check_sample
from apps.common.flags.paths import ROTARY_TYPE, read_config_json
from apps.common.flags.presets import find_preset
from apps.common.lm.generate import main as generate
from apps.common.lm.huggingface.llama import read_llama
from apps.common.lm.huggingface.rotary import read_rotary
from apps.common.lm.models.llama_presets import LLAMA_PRESETS, LlamaConfig
from apps.common.lm.models.rotary_presets import ROTARY_PRESETS, RotaryConfig
from apps.common.rows.program import main
from apps.common.rows.text_task import TextRowFlags, TextTask
from pipelined.process.exit import end_process
from pipelined.programs.plan import Plan

if TYPE_CHECKING:
    from apps.llama.training import LlamaTraining, RotaryTraining

Sizes = LlamaConfig | RotaryConfig
PRESETS: Mapping[str, Sizes] = {**LLAMA_PRESETS, **{f"swarm-{name}": sizes for name, sizes in ROTARY_PRESETS.items()}}
"""Llama-like models, and that of SWARM."""


@dataclass(frozen=True)
class LlamaFlags(TextRowFlags):
    """Train a Llama-like model on text, or fine-tune one; `generate --from DIR` continues prompts with it."""

    preset: str = "tiny"
    """Model: tiny, smollm2-135m, smollm2-360m, tinyllama-1.1b, llama2-7b, llama3-8b, qwen2.5-0.5b or qwen3-0.6b; or
    SWARM's: swarm-tiny, -base, -xxlarge, -gpt3, -ours (the one that its paper trains, 4.3) or -ours-unshared."""
    init: Path | None = None
    """Start from a Hugging Face directory of a Llama, SmolLM, Qwen2 or Qwen3, or from the export of a swarm, which
    determines the sizes."""
    sample: int = 200
    """Tokens to sample at the end."""
    prompt: str = "ROMEO"
    """Text at the beginning of the sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sample(self.sample, self.prompt)

    def task(self) -> "LlamaTask":
        model = find_preset(self.preset, PRESETS) if self.init is None else _read_sizes(self.init)
        return LlamaTask(self, replace(model, **self.size_overrides(model)))


def _read_sizes(directory: Path) -> Sizes:
    """Raises UsageError: it is neither a Llama-like model nor SWARM's."""
    is_rotary = read_config_json(directory).get("model_type") == ROTARY_TYPE
    return read_rotary(directory) if is_rotary else read_llama(directory)


class LlamaTask(TextTask):
    """A Llama-like model on text, or SWARM's."""

    config: LlamaFlags

    def __init__(self, config: LlamaFlags, model: Sizes):
        super().__init__(config, model, model.kind, model.row_layers - model.layers)
        self.model = model

    def training(self, plan: Plan) -> "LlamaTraining | RotaryTraining":
        from apps.llama.training import LlamaTraining, RotaryTraining

        flags = plan, self.config.prompt, self.config.sample
        if isinstance(self.model, RotaryConfig):
            return RotaryTraining(self, self.model, *flags)
        return LlamaTraining(self, self.model, *flags)


def start(arguments: list[str]) -> int:
    """Train, or with `generate` as the first argument generate; returns the exit code."""
    if arguments[:1] == ["generate"]:
        return generate("apps.llama", arguments[1:])
    return main("apps.llama", LlamaFlags(), arguments)


if __name__ == "__main__":
    end_process(start(sys.argv[1:]))
