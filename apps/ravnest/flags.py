"""The flags of each command of Ravnest: dataclasses that make the command line. No torch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from apps.common.paths import check_file
from apps.lm.models.gpt2_presets import PRESETS, ModelConfig, find_preset
from pipelined.errors import UsageError, refuse_below
from pipelined.ravnest.planning.pool import BYTES, quantity


@dataclass(frozen=True)
class Plan:
    """Form clusters of a pool, and cut the model in each: no network, no training."""

    pool: Path
    """CSV file with a PC a line: name,ram,bandwidth and perhaps flops,reliability (8G, 200mbit, 400G, 0.99)."""
    clusters: int | None = None
    """Clusters, each with the whole model. Default: the most that differ by at most --balance of their mean."""
    balance: float = 0.25
    """Where --clusters is open: the largest spread of the clusters' seconds, as a part of their mean."""
    objective: Literal["transfer", "rate"] | None = None
    """transfer: equal transfer times, equal shares of RAM; rate: the fastest. Default: rate where speeds are known."""
    method: Literal["exhaustive", "genetic"] | None = None
    """How clusters are searched. Default: exhaustive for at most 11 nodes."""
    bytes: str | None = None
    """Instead of a model: the bytes that a cluster needs, as 13G; nodes are grouped, and nothing is cut."""
    preset: str = "tiny"
    """Model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl or chimera, always with a head of its own."""
    layers: int | None = None
    """Transformer blocks, instead of the preset's."""
    d_model: int | None = None
    """Width of the model, instead of the preset's."""
    heads: int | None = None
    """Attention heads, instead of the preset's."""
    vocab: int | None = None
    """Symbols, instead of the preset's."""
    positions: int | None = None
    """The longest sequence in tokens, instead of the preset's."""
    microbatch: int = 4
    """Sequences in a microbatch (B)."""
    seq: int = 64
    """Tokens a sequence."""
    ahead: int | None = None
    """Microbatches alive in a cluster's first stage (K). Default: what keeps all stages busy, as far as it fits."""
    weights: Literal["kept", "newest"] = "kept"
    """kept: a version of the weights for each microbatch alive; newest: one, and the backward computes anew with it."""
    json: bool = False
    """Print one JSON object instead."""
    png: Path | None = None
    """Draw clusters, cuts and rings to this file; it needs the extra draw."""

    def check(self) -> None:
        """Raises UsageError: nothing can be planned so. The command calls this, so that its message is one line."""
        for name in ("clusters", "ahead"):
            if getattr(self, name) is not None:
                refuse_below(1, f"--{name}", getattr(self, name))
        for name in ("microbatch", "seq"):
            refuse_below(1, f"--{name}", getattr(self, name))
        refuse_below(0, "--balance", self.balance)
        if self.png is not None:
            check_file("--png", self.png)
            if self.bytes is not None:
                raise UsageError("--png draws cuts, and --bytes has none; give --preset instead of --bytes")
        if self.bytes is not None:
            if self.need < 1:
                raise UsageError(f"--bytes must be at least 1 (it is {self.bytes})")
        else:
            self.model.check_sequence(self.seq)

    @property
    def need(self) -> int:
        """The bytes of --bytes; 0 where a model is given instead."""
        return 0 if self.bytes is None else int(quantity("--bytes", self.bytes, BYTES))

    @property
    def model(self) -> ModelConfig:
        """The model's sizes; its embedding and head are two matrices, as stages on two nodes need them."""
        names = ("layers", "d_model", "heads", "vocab", "positions")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(find_preset(self.preset, PRESETS), tied=False, **given)
