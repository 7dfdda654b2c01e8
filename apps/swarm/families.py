"""The models that a swarm can train, by the names of their presets: the paper's Transformer, and GPT-2. No torch.

A name says the family, so the record of the directory does.
"""

from collections.abc import Mapping
from dataclasses import replace

from apps.common.flags.presets import find_preset
from apps.common.lm.models.gpt2_presets import PRESETS, ModelConfig, layer_costs
from apps.common.lm.models.rotary_presets import ROTARY_PRESETS, RotaryConfig, cut_for
from apps.swarm.config import TrainingConfig
from pipelined.errors import UsageError
from pipelined.programs.partition import partition


def gpt2_name(preset: str) -> str:
    """What a preset of `apps.gpt2` is called here, where both families have a tiny one."""
    return preset if preset.startswith("gpt2") else f"gpt2-{preset}"


GPT2_PRESETS: Mapping[str, ModelConfig] = {gpt2_name(name): config for name, config in PRESETS.items()}
"""GPT-2's, under their names here."""


def sizes_of(settings: TrainingConfig, vocabulary: int) -> ModelConfig:
    """The sizes of what is trained, before it is cut.

    Args:
        vocabulary: symbols of the model.
    Raises:
        UsageError: no such preset, or sizes that do not fit one another or the sequence.
    """
    config = find_preset(settings.preset, {**ROTARY_PRESETS, **GPT2_PRESETS})
    names = ("layers", "d_model", "heads", "positions", "dropout", "shared")
    sizes = {name: value for name in names if (value := getattr(settings, name)) is not None}
    if isinstance(config, RotaryConfig):
        sizes |= {"squeeze": settings.squeeze, "factor": settings.factor}
    elif "shared" in sizes or settings.squeeze != "none":
        fact = f"GPT-2 shares no layers and squeezes nothing (shared: {settings.shared}, squeeze: {settings.squeeze})"
        raise UsageError(f"{fact}; leave that out, or take one of {', '.join(ROTARY_PRESETS)}")
    config = replace(config, vocab=vocabulary, tied=settings.tied, **sizes)
    config.check_sequence(settings.seq)
    return config


def cut_of(settings: TrainingConfig, vocabulary: int) -> tuple[ModelConfig, tuple[range, ...]]:
    """The sizes of what is trained, and each stage's layers: the slowest stage is as fast as can be.

    Args:
        vocabulary: symbols of the model.
    Raises:
        UsageError: as `sizes_of`; or more stages than layers.
    """
    config = sizes_of(settings, vocabulary)
    if isinstance(config, RotaryConfig):
        return cut_for(config, settings.stages, settings.seq)
    return config, tuple(partition(layer_costs(config, settings.seq), settings.stages))


def is_untied(settings: TrainingConfig) -> bool:
    """Whether this is a GPT-2 that is tied as published, and not here."""
    preset = GPT2_PRESETS.get(settings.preset)
    return preset is not None and preset.tied and not settings.tied
