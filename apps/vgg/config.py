"""Every flag of the VGG program: those of any row of layers, and its own. No torch."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from apps.common.flags.presets import find_preset
from apps.common.images.digits import require_scikit_learn
from apps.common.rows.config import RowFlags, RowTask
from apps.vgg.presets import PRESETS, VGGConfig
from pipelined.programs.plan import Plan

if TYPE_CHECKING:
    from apps.vgg.model import VGGTraining


@dataclass(frozen=True)
class VGGFlags(RowFlags):
    """Train VGG13's shape on handwritten digits, across ranks, beside a logistic regression."""

    layout: str | None = None
    """How the ranks of a worker split the model: data, megatron, auto (searched), or ROWS.COLUMNS.CONTRACTION by layer,
    such as conv1_1=2.1.1,fc6=1.2.1; other layers are as in megatron. Default: convolutions by images, dense layers as
    in megatron."""
    preset: str = "digits"
    """Model: digits (images of 32 x 32, channels and dense layers cut down), or vgg13 (the published one)."""
    dropout: float | None = None
    """Dropout probability in training, instead of the preset's."""

    def task(self) -> "VGGTask":
        model = find_preset(self.preset, PRESETS)
        return VGGTask(self, model if self.dropout is None else replace(model, dropout=self.dropout))


class VGGTask(RowTask):
    """VGG on digits.

    Args:
        config: the flags.
        model: its sizes.
    """

    config: VGGFlags

    def __init__(self, config: VGGFlags, model: VGGConfig):
        self.config = config
        self.model = model
        self.depth = model.depth

    def describe(self) -> str:
        side = self.model.side
        return f"model: VGG {self.config.preset}, {self.model.parameters:,} parameters, images of {side} x {side}"

    def sizes(self) -> dict[str, Any]:
        return {"dropout": self.model.dropout}

    def check(self) -> None:
        require_scikit_learn()

    def layout(self, plan: Plan) -> str | None:
        """As given, else convolutions by images."""
        if plan.tensor == 1:
            return None
        return self.config.layout or ",".join(
            f"{convolution.name}={plan.tensor}.1.1" for convolution in self.model.convolutions
        )

    def training(self, plan: Plan) -> "VGGTraining":
        from apps.vgg.model import VGGTraining

        return VGGTraining(self.model, self.config, plan)
