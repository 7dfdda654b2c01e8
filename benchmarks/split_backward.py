"""What a backward in two halves costs beside the whole one: `python -m benchmarks.split_backward`.

A GPT-2 block on one core, the whole backward and both halves in turns, round after round, so that what else the machine
does meets both alike. The measure is the ratio within a round.
"""

import statistics
import sys
import time
from dataclasses import asdict, dataclass

import torch
import tyro
from torch import nn

from apps.common.lm.models.gpt2 import Block
from apps.common.lm.models.gpt2_presets import ModelConfig
from benchmarks.harness.results import Reported, tell
from pipelined.training.graph.split_backward import backward_input


@dataclass(frozen=True)
class Options(Reported):
    """Time both halves of a block's backward beside the whole."""

    d_model: int = 768
    """Width of the block."""
    heads: int = 12
    """Attention heads."""
    sequences: int = 1
    """Sequences in the microbatch."""
    tokens: int = 256
    """Tokens a sequence."""
    rounds: int = 40
    """Rounds timed, after five that are not."""


@dataclass(frozen=True)
class Round:
    """Seconds of the three things timed in one round."""

    whole: float
    input_half: float
    weight_half: float

    @property
    def ratio(self) -> float:
        return (self.input_half + self.weight_half) / self.whole

    @property
    def input_share(self) -> float:
        return self.input_half / (self.input_half + self.weight_half)


class Bench:
    """A block with its gradients in place, one input, and one gradient of its output.

    Args:
        options: the sizes.
    """

    def __init__(self, options: Options):
        torch.manual_seed(0)
        sizes = ModelConfig(1, options.d_model, options.heads, 1, options.tokens, 0.0, True)
        self.block = Block(sizes, "h.0")
        for parameter in self.block.parameters():
            nn.init.normal_(parameter, std=0.02)
            parameter.grad = torch.zeros_like(parameter)
        self.x = torch.randn(options.sequences, options.tokens, options.d_model)
        self.gradient = torch.randn_like(self.x)

    def round(self) -> Round:
        """One whole backward, then one in halves, each after a forward that is not timed."""
        _, output = self._forward()
        start = time.perf_counter()
        torch.autograd.backward(output, self.gradient)
        whole = time.perf_counter() - start
        x, output = self._forward()
        start = time.perf_counter()
        _, half = backward_input([output], [self.gradient], [x])
        middle = time.perf_counter()
        half.run()
        return Round(whole, middle - start, time.perf_counter() - middle)

    def _forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x.clone().requires_grad_()
        return x, self.block(x)


def report(options: Options, rounds: list[Round]) -> dict[str, object]:
    """Medians and the middle half of the ratios."""
    lower, middle, upper = statistics.quantiles([r.ratio for r in rounds], n=4)
    return {
        **asdict(options),
        "whole_s": statistics.median(r.whole for r in rounds),
        "input_share": statistics.median(r.input_share for r in rounds),
        "ratio": middle,
        "ratio_lower_quartile": lower,
        "ratio_upper_quartile": upper,
    }


def main() -> int:
    """Read the flags, time, tell."""
    options = tyro.cli(Options, prog="python -m benchmarks.split_backward")
    torch.set_num_threads(1)
    bench = Bench(options)
    row = report(options, [bench.round() for _ in range(options.rounds + 5)][5:])
    spread = f"{row['ratio_lower_quartile']:.3f}-{row['ratio_upper_quartile']:.3f}"
    text = (
        f"block of width {options.d_model}, {options.sequences} x {options.tokens} tokens: halves {row['ratio']:.3f} "
        f"({spread}) of the whole ({row['whole_s'] * 1e3:.1f} ms); the input half is {row['input_share']:.0%} of both"
    )
    tell(options, row, lambda: text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
