"""docs/swarm-model.md lists the presets as they are."""

import re
from pathlib import Path

from apps._rotary_presets import ROTARY_PRESETS, RotaryConfig, parameters

PAGE = Path(__file__).parents[2] / "docs" / "swarm-model.md"


def row(name: str, config: RotaryConfig) -> str:
    sizes = (config.layers, config.shared, config.d_model, config.heads)
    return f"| `{name}` | {' | '.join(map(str, sizes))} | {parameters(config):,} |"


def test_the_table_lists_every_preset_with_its_sizes():
    rows = re.findall(r"^\| `.*\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows == [row(name, config) for name, config in ROTARY_PRESETS.items()]
