"""Every flag of the VGG program: those of any training program, and its own. No torch."""

from dataclasses import dataclass

from apps.common.flags import RunFlags, parse_flags
from pipelined.errors import UsageError


@dataclass(frozen=True)
class Config(RunFlags):
    """Train VGG13's shape on handwritten digits, across ranks, beside a logistic regression."""

    tensor: int = 1
    """Ranks of a worker (T), which split every tensor of its stages: rank = (group * workers + worker) * T + member."""
    layout: str | None = None
    """How the ranks of a worker split the model: data, megatron, or ROWS.COLUMNS.CONTRACTION by layer, such as
    conv1_1=2.1.1,fc6=1.2.1; other layers are as in megatron. Default: convolutions by images, dense layers as in
    megatron."""
    preset: str = "digits"
    """Model: digits (images of 32 x 32, channels and dense layers cut down), or vgg13 (the published one)."""
    dropout: float | None = None
    """Dropout probability in training, instead of the preset's."""
    lr: float = 2e-3
    """Highest learning rate."""
    resume: str | None = None
    """auto (the latest under --checkpoint, if any) or a checkpoint's directory. Give the flags of its run again; the
    arrangement may be another one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tensor == 1 and self.layout is not None:
            raise UsageError(f"one rank splits nothing (--layout {self.layout}, --tensor 1); add --tensor")


def parse(arguments: list[str]) -> Config:
    """Make a Config of a command line; see `parse_flags`."""
    return parse_flags(arguments, Config(), "python -m apps.vgg")
