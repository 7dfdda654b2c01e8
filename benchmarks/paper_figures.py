"""Figures 1, 14 and 15 of the Chimera paper by simulation: `python -m benchmarks.paper_figures`.

Everything that the paper's text states is taken as stated (models, sequence lengths, batch sizes, the schedules that
recompute, a backward of twice a forward, stages of equal cost, Rabenseifner's all-reduce). The rest is one knob: the
bytes that a link moves while a GPU does a thousand floating-point operations. The gain of a larger microbatch on a GPU
is not stated, so it is zero here. Source: Li and Hoefler, Chimera (2021), sections 3.4, 4.1 and 4.2, Table 4.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import tyro

from apps.common.flags.presets import find_preset
from apps.common.lm.models.gpt2_presets import PRESETS, ModelConfig, layer_costs
from apps.gpt2.planning.memory import activation_bytes, boundary_bytes
from benchmarks.harness.results import Reported, tell
from collectives import Links
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine, Simulated, StageCosts, Workload, simulate

BERT = ModelConfig(layers=48, d_model=1024, heads=16, vocab=30522, positions=512, tied=False)
"""Bert-48: at Bert-large's width, its blocks, embeddings and heads have Table 4's 669,790,012 parameters."""
MOVED = (float("inf"), 1.0, 0.25)
"""Bytes a link moves in a GPU's 1,000 floating-point operations: no end; 10 GB/s at 10 TFLOP/s; a quarter of it."""


@dataclass(frozen=True)
class Approach:
    """One line of a figure.

    Args:
        label: the paper's name.
        depths: those the text names for it; the fastest is taken.
        microbatch: B.
        recompute: R in the paper.
        printed: how many times Chimera's throughput is this one's; None for Chimera itself.
    """

    label: str
    schedule: str
    depths: tuple[int, ...]
    microbatch: int = 1
    recompute: bool = False
    printed: float | None = None


@dataclass(frozen=True)
class Figure:
    """A weak-scaling figure at its largest number of nodes.

    Args:
        nodes: P.
        batch: sequences a step, over all nodes.
        sequence: tokens a sequence.
        fewest: nodes of the left end of the figure, with as many sequences a node.
        approaches: Chimera first.
    """

    name: str
    model: ModelConfig
    nodes: int
    batch: int
    sequence: int
    fewest: int
    approaches: tuple[Approach, ...]


FIGURES = (
    Figure(
        "Figure 14, Bert-48", BERT, 64, 1024, 128, 16,
        (
            Approach("Chimera", "chimera", (4,), 8),
            Approach("DAPPLE", "one_f_one_b", (4,), 4, printed=1.19),
            Approach("GPipe", "gpipe", (4,), 4, recompute=True, printed=1.32),
            Approach("GEMS", "gems", (4,), 32, printed=2.41),
            Approach("PipeDream-2BW", "pipedream_2bw", (4,), 16, recompute=True, printed=1.17),
        ),
    ),
    Figure(
        "Figures 1 and 15, GPT-2", find_preset("chimera", PRESETS), 2048, 2048, 632, 512,
        (
            Approach("Chimera", "chimera", (32,)),
            Approach("DAPPLE", "one_f_one_b", (8, 16), recompute=True, printed=1.38),
            Approach("GPipe", "gpipe", (16,), recompute=True, printed=1.42),
            Approach("GEMS", "gems", (8,), printed=2.34),
            Approach("PipeDream-2BW", "pipedream_2bw", (8, 16), recompute=True, printed=1.16),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Options(Reported):
    """Simulate the paper's figures."""

    figure: str = ""
    """Only figures with this in their name."""


@dataclass(frozen=True)
class Line:
    """What one approach comes to in one figure and on one kind of link.

    Args:
        moved: bytes a link moves in 1,000 floating-point operations.
        depth: the fastest of those tried.
        microbatches: N.
        bubble: idle share of all ranks' time until the last backward; without a flush, of a further step.
        memory: the least and the most bytes a rank holds, with AdamW and a fused attention.
        operations: floating-point operations in the time of a step.
        speedup: how many times Chimera's throughput is this one's.
        efficiency: throughput a node, beside that at the figure's left end.
    """

    figure: str
    label: str
    moved: float
    depth: int
    microbatches: int
    recompute: bool
    bubble: float
    memory: tuple[float, float]
    operations: float
    speedup: float
    printed: float | None
    efficiency: float


def lines(figure: Figure, moved: float) -> Iterator[Line]:
    """Every approach of a figure on links of one kind."""
    chimera = None
    for approach in figure.approaches:
        seconds, plan, step = min(
            (priced(figure, approach, depth, figure.nodes, moved) for depth in approach.depths), key=lambda p: p[0]
        )
        fewest, _, _ = priced(figure, approach, plan.depth, figure.fewest, moved)
        chimera = chimera or seconds
        totals = [memory.total for memory in step.memory]
        yield Line(
            figure.name, approach.label, moved, plan.depth, plan.microbatches, approach.recompute,
            step.bubble_ratio,
            (min(totals), max(totals)), seconds, seconds / chimera, approach.printed, fewest / seconds,
        )  # fmt: skip


def priced(figure: Figure, approach: Approach, depth: int, nodes: int, moved: float) -> tuple[float, Plan, Simulated]:
    """Time of a step, in floating-point operations of one GPU, and what was simulated."""
    width, each = nodes // depth, figure.batch // figure.nodes * depth
    plan = Plan(approach.schedule, depth, width, approach.microbatch, each // approach.microbatch)
    machine = Machine(Links(0.0, 1000 / moved, 0.0))
    step = simulate(plan, stages(figure, depth, approach.microbatch), machine, recompute=approach.recompute)
    return step.step_s, plan, step


def stages(figure: Figure, depth: int, microbatch: int) -> Workload:
    """As many blocks in every stage, embedding and head spread evenly: the paper has one cost for all stages."""
    model, layers = replace(figure.model, dropout=0.0), figure.model.layers // depth
    block, tokens, share = layer_costs(model, figure.sequence)[1], microbatch * figure.sequence, range(1, 1 + layers)
    size = (model, share, microbatch, figure.sequence)
    forward = layers * block * tokens
    costs = StageCosts(
        forward=forward,
        backward=2 * forward,
        message_bytes=4 * tokens * model.d_model,
        activation_bytes=activation_bytes(*size),
        boundary_bytes=boundary_bytes(*size),
    )
    blocks = layers * (12 * model.d_model**2 + 13 * model.d_model)
    ends = (2 if not model.tied else 1) * model.vocab * model.d_model // depth
    return Workload.even(depth, costs, 4 * (blocks + ends))


def table(rows: Sequence[Line]) -> str:
    """Figure by figure: an approach a line, its speed-ups on each kind of link, and what is printed."""
    lines = []
    for name in dict.fromkeys(row.figure for row in rows):
        mine = [row for row in rows if row.figure == name]
        lines.append(f"{name}: Chimera's throughput over that of")
        lines.append(f"{'':>16}{'D':>4}{'N':>4}{'R':>3}{'bubble':>8}{'GiB a rank':>13}" + _heads() + f"{'paper':>8}")
        lines += [_row([row for row in mine if row.label == label]) for label in dict.fromkeys(r.label for r in mine)]
        efficient = "".join(f"{row.efficiency:>10.1%}" for row in mine if row.label == "Chimera")
        lines += [f"{'weak-scaling efficiency of Chimera':>48}{efficient}", ""]
    return "\n".join(lines)


def _heads() -> str:
    return "".join(f"{'free' if moved == float('inf') else f'{moved:g} B/kF':>10}" for moved in MOVED)


def _row(mine: Sequence[Line]) -> str:
    first = mine[0]
    memory = "-".join(f"{number / 2**30:.1f}" for number in first.memory)
    same = f"{first.label:>16}{first.depth:>4}{first.microbatches:>4}{'R' if first.recompute else '':>3}"
    speedups = "".join(f"{row.speedup:>10.2f}" for row in mine)
    return f"{same}{first.bubble:>8.1%}{memory:>13}{speedups}{first.printed or '':>8}"


def main() -> int:
    """Simulate what was asked for."""
    options = tyro.cli(Options, prog="python -m benchmarks.paper_figures")
    figures = [figure for figure in FIGURES if options.figure in figure.name]
    rows = [line for figure in figures for moved in MOVED for line in lines(figure, moved)]
    tell(options, [asdict(row) for row in rows], lambda: table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
