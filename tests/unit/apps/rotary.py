"""What tests read of a rotary model: the sizes in an export, and how many numbers it learns."""

import json
from dataclasses import fields
from math import prod

from apps.lm.huggingface.rotary import OF_TRAINING
from apps.lm.models.rotary_presets import RotaryConfig, layer_shapes


def exported_config(directory):
    """The sizes that config.json has, without dropout."""
    about = json.loads((directory / "config.json").read_text())
    sizes = {field.name: about[field.name] for field in fields(RotaryConfig) if field.name not in OF_TRAINING}
    return RotaryConfig(**sizes | {"narrow": tuple(sizes["narrow"])}, dropout=0.0)


def parameters(config):
    """How many numbers the model learns."""
    return sum(prod(shape) for layer in layer_shapes(config) for shape in layer.values())
