"""The model at the end of a training: assembled, written in Hugging Face's format, and sampled from."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from apps.common.flags.command_flags import OutputFlags
from apps.common.lm.data.text import read_text
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig
from apps.common.lm.weights import Weights, check_destination
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.errors import UsageError
from pipelined.state.stages.whole_model import WholeModel, find_whole_model

Say = Callable[[str], None]


@dataclass(frozen=True)
class FinalOutput:
    """The files to write and the text to sample at the end.

    Args:
        to: directory to write; None: none.
        sample: tokens to sample; 0: none.
        prompt: the beginning of the sample.
        context: tokens that the model sees for each new one.
        seed: of the sample.
    """

    to: Path | None
    sample: int
    prompt: str
    context: int
    seed: int

    @classmethod
    def of(cls, flags: OutputFlags, weights: Weights) -> "FinalOutput":
        """What these flags request."""
        context = flags.context or weights.model.config.positions
        return cls(flags.to, flags.sample, flags.prompt, context, flags.seed)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.to is None and not self.sample

    def check(self, model: GPT2) -> None:
        """Refuse early what would fail at the end. Raises UsageError."""
        if self.to is not None:
            check_destination("--export", self.to, model)

    async def write(self, weights: Weights, tokenizer: Tokenizer, say: Say) -> None:
        """Write and sample, as requested."""
        if self.to is not None:
            await asyncio.to_thread(weights.export, self.to, tokenizer)
            say(f"exported to {self.to}")
        if self.sample:
            request = tokenizer, self.prompt, self.sample, self.context, self.seed
            say("sample:\n" + await asyncio.to_thread(weights.sample, *request))


async def _weights_of(saved_model: WholeModel, to: Path | None, symbols: int, say: Say) -> Weights:
    """A saved model.

    Args:
        to: where it will be written; None: nowhere.
        symbols: of the tokenizer.
    Raises:
        UsageError: another tokenizer or an unknown model, or `to` holds something else.
    """
    weights = Weights(model_of_identity(saved_model.identity), saved_model.values)
    weights.model.config.check_vocabulary(symbols)
    if to is not None:
        check_destination("--to", to, weights.model)
    say(f"all {saved_model.first_save.stages} stages, as they saved after {saved_model.first_save.step} steps")
    await say_digest(weights, saved_model.first_save.step, say)
    return weights


async def say_digest(weights: Weights, steps: int, say: Say) -> None:
    """Print the digest of all parameters, in the words of a pipeline's `--digest`."""
    say(f"digest of all parameters after {steps} steps: {await asyncio.to_thread(weights.digest)}")


def model_of_identity(identity: Mapping[str, Any]) -> GPT2:
    """The model of a checkpoint.

    Raises:
        UsageError: this release does not know it.
    """
    kinds: dict[Any, tuple[type[ModelConfig], type[GPT2]]] = {
        "gpt2": (ModelConfig, GPT2),
        "rotary": (RotaryConfig, RotaryLM),
    }
    if identity.get("model") not in kinds:
        raise UsageError(f"a checkpoint of an unknown model ({identity.get('model')}); known are {', '.join(kinds)}")
    sizes, kind = kinds[identity["model"]]
    values = {field.name: identity[field.name] for field in fields(sizes) if field.name in identity}
    if "narrow" in values:
        values["narrow"] = tuple(values["narrow"])
    return kind(sizes(**values))


async def export_saved(directories: Sequence[Path], output: OutputFlags, say: Say) -> None:
    """Export the latest step that all stages saved. Raises: as `export_whole`; CheckpointError: no whole step."""
    await export_whole(await asyncio.to_thread(find_whole_model, directories), output, say)


async def export_whole(saved_model: WholeModel, output: OutputFlags, say: Say) -> None:
    """Export a saved model.

    Raises:
        UsageError: another tokenizer or an unknown model, or the directory to write holds something else.
    """
    text = await asyncio.to_thread(read_text, output.text.data, output.text.tokenizer)
    weights = await _weights_of(saved_model, output.to, text.tokenizer.vocab_size, say)
    await FinalOutput.of(output, weights).write(weights, text.tokenizer, say)
