"""docs/swarm-model.md lists the presets as they are, and what an exported model consists of."""

import re
from dataclasses import replace
from pathlib import Path

from apps.common.lm.huggingface.rotary import describe_rotary
from apps.common.lm.models.rotary_presets import ROTARY_PRESETS, RotaryConfig, cut_for, layer_shapes

PAGE = Path(__file__).parents[2] / "docs" / "swarm-model.md"


def row(name: str, config: RotaryConfig) -> str:
    sizes = (config.layers, config.shared, config.d_model, config.heads)
    return f"| `{name}` | {' | '.join(map(str, sizes))} | {config.parameters:,} |"


def rows_of(heading: str) -> list[str]:
    """The rows of the tables below a heading."""
    section = PAGE.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    return re.findall(r"^\| `.*\|$", section, flags=re.MULTILINE)


def test_the_table_lists_every_preset_with_its_sizes():
    rows = rows_of("# What a swarm trains")
    assert rows == [row(name, config) for name, config in ROTARY_PRESETS.items()]


def test_an_exported_models_modules_and_sizes_are_those_of_the_tables():
    config, _ = cut_for(replace(ROTARY_PRESETS["tiny"], squeeze="bottleneck"), 3, 8)
    first = [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows_of("## Exported")]
    told = [name for names in first for name in names]
    modules = {re.sub(r"\.\d+", ".N", name).rpartition(".")[0] for layer in layer_shapes(config) for name in layer}
    sizes = describe_rotary(config, "float32", None).keys() - {"architectures", "model_type", "dtype", "tied"}
    assert len(told) == len(set(told))
    assert set(told) == modules | {name for name in sizes if not name.endswith("_token_id")}
