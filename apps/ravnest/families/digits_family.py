"""The residual network on the digits as a family of Ravnest's models. No torch until it is built."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.common.flags.command_flags import FinalFlags, OutputFlags, TextFlags
from apps.common.flags.run_flags import flag
from apps.ravnest.families.digits import DIGITS, DIGITS_MODEL, Digits, DigitsConfig
from pipelined.errors import UsageError
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.planning.stage_sizes import LayerSize
from pipelined.state.stages.whole_model import WholeModel

if TYPE_CHECKING:
    import torch

    from pipelined.training.job.model import Model
    from pipelined.training.job.rank_context import MicrobatchSource


class DigitsFamily:
    """The residual network on the digits; see `GPT2Family` for what the methods do."""

    presets: Mapping[str, DigitsConfig] = {DIGITS: DIGITS_MODEL}
    kind = DIGITS

    def sizes(
        self, preset: str, overrides: Mapping[str, Any], sequence: int, vocabulary: int | None = None
    ) -> DigitsConfig:
        """The sizes of the network. Raises UsageError: other ones are given."""
        if overrides:
            raise UsageError(f"--preset {preset} has sizes of its own; leave {', '.join(map(flag, overrides))} out")
        return self.presets[preset]

    def layer_sizes(self, model: Any, rows: int, sequence: int, dtype: str) -> Iterator[LayerSize]:
        """Those of float32."""
        return model.layer_sizes(rows)

    def check(self, files: Sequence[Path] = (), sample: int = 0, export: Path | None = None) -> None:
        if files:
            raise UsageError(f"--preset {DIGITS} learns from scikit-learn's digits; leave --data out")
        if sample:
            raise UsageError(f"--preset {DIGITS} has no text to sample (--sample {sample}); leave --sample out")

    def read(self, flags: TextFlags) -> Digits:
        self.check(flags.data)
        return Digits.read()

    def symbols(self, data: Any) -> int:
        return DIGITS_MODEL.classes

    def build(self, model: Any, settings: Any, data: Any, dtype: "torch.dtype") -> "tuple[Model, MicrobatchSource]":
        from apps.ravnest.families.digits_model import DigitsFeed, digits_model

        return digits_model(settings.seed), DigitsFeed(data, dtype, settings.seed, settings.batch, settings.microbatch)

    async def write(
        self, tensors: "Mapping[str, torch.Tensor]", task: Any, data: Any, flags: FinalFlags, say: Say
    ) -> None:
        from apps.ravnest.families.digits_model import export_digits

        await asyncio.to_thread(export_digits, tensors, flags.export, say)

    async def export(self, model: WholeModel, output: OutputFlags, say: Say) -> None:
        from apps.ravnest.families.digits_model import export_digits

        say(f"all {model.first_save.stages} stages, as they saved after {model.first_save.step} steps")
        await asyncio.to_thread(export_digits, model.values, output.to, say)
