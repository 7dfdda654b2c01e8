"""The families of models that Ravnest trains: a new kind of model is one entry. No torch until a model is built.

The name of a preset says the family, so the record of the directory does.
"""

from collections.abc import Mapping

from apps.common.flags.command_flags import TextFlags
from apps.common.flags.presets import find_preset
from apps.common.lm.data.text import Text
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.ravnest.families.digits import Digits, DigitsConfig
from apps.ravnest.families.digits_family import DigitsFamily
from apps.ravnest.families.gpt2_family import GPT2Family

ModelSizes = ModelConfig | DigitsConfig
TrainingData = Text | Digits
RavnestFamily = GPT2Family | DigitsFamily
FAMILIES: Mapping[type[ModelSizes], RavnestFamily] = {ModelConfig: GPT2Family(), DigitsConfig: DigitsFamily()}
"""The families by the type of the sizes of their models."""


def find_family(preset: str) -> RavnestFamily:
    """The family of a preset. Raises UsageError: there is no such preset."""
    return find_preset(preset, {name: family for family in FAMILIES.values() for name in family.presets})


def read_data(preset: str, flags: TextFlags) -> TrainingData:
    """What a preset is trained on. Raises UsageError: it cannot be read, or there are files for a model without."""
    return find_family(preset).read(flags)


def family_of(model: ModelSizes) -> RavnestFamily:
    """The family of a model, by its sizes."""
    return FAMILIES[type(model)]


def family_saved_as(kind: object) -> RavnestFamily:
    """The family of saves with this name; GPT-2 where no other family has it."""
    return next((family for family in FAMILIES.values() if family.kind == kind), FAMILIES[ModelConfig])
