"""Figures 3, 9 and 10 and Table 3 of AutoDDL by its own cost model: `python -m benchmarks.autoddl_figures`.

Each row is a call of `python -m pipelined shard`, at prices stated here: the paper fits alpha and beta on its machines
and prints neither. Compared is the share of communication that the best strategy saves of the best of the paper's
baselines. The paper prints no speed of computing. So a runtime follows from its own two shares alone: the saved share
of the runtime over that of communication is what communication was of the baseline's step. Needs no ranks and no torch.

Source: Chen et al., AutoDDL (2023), sections 5.2 to 5.4.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import tyro

from benchmarks.harness.results import Reported, tell

PIZ_DAINT = "--links alpha=2e-5,beta=1.1765e-10"
"""8.5 GB/s, the lower end of what section 5.2 states; the latency is ours."""
TEXT = "--seq 1024"
GOOGLE = "--links alpha=5e-6,beta=5e-12 --far alpha=2e-5,beta=8e-11"
"""100 Gb/s between nodes (section 5.3), and of NVLink's 600 GB/s the 200 that are reached; the latencies are ours."""
MI = 2**20


@dataclass(frozen=True)
class Options(Reported):
    """Find the strategies of the paper's figures, and what they save."""


@dataclass(frozen=True)
class Setting:
    """A bar of a figure, or a line of the table.

    Args:
        flags: of `shard`, without prices.
        replicas: the most replicas of a weight that fit: 64 nodes have four, as the weights need "more than 16 nodes"
            (Figure 3); 0: any.
        baselines: those of the paper that fit into its memory.
        dense: of VGG the ranks of data parallelism beside splits of its dense layers that are tried by hand.
        saved: the printed share of communication that was saved, beside the second best; None: not printed.
        faster: the printed share of the runtime.
        stages: of a pipeline; `flags` have the ranks of one stage, and the whole model stands for its layers.
    """

    label: str
    flags: str
    prices: str = PIZ_DAINT
    replicas: int = 0
    baselines: tuple[str, ...] = ("data", "megatron", "summa")
    dense: tuple[int, ...] = ()
    saved: float | None = None
    faster: float | None = None
    stages: int = 1


def _vgg(ranks: int, saved: float, faster: float) -> Setting:
    flags = f"--program apps.vgg --preset vgg13 --ranks {ranks} --batch {8 * ranks}"
    halves = tuple(2**power for power in range(1, ranks.bit_length() - 1))
    return Setting(f"VGG13, {ranks} nodes", flags, dense=halves, saved=saved, faster=faster, baselines=("data",))


def _wide(ranks: int, layers: int, saved: float, faster: float) -> Setting:
    flags = f"--preset autoddl-{layers} --ranks {ranks} --batch 1024 {TEXT}"
    fit = ("megatron", "summa")
    return Setting(f"{layers} x 8,192, {ranks} nodes", flags, replicas=4, baselines=fit, saved=saved, faster=faster)


def _google(label: str, flags: str, fit: tuple[str, ...], saved: float | None, faster: float | None) -> Setting:
    return Setting(label, flags, GOOGLE, baselines=fit, saved=saved, faster=faster)


FIGURE_9 = (
    _vgg(16, 0.10, 0.03),
    _vgg(32, 0.18, 0.088),
    _vgg(64, 0.29, 0.177),
    _wide(64, 8, 0.239, 0.12),
    _wide(128, 20, 0.464, 0.361),
    _wide(256, 44, 0.353, 0.311),
)
FIGURE_10 = (
    _google(
        "VGG13, 2 x 4", "--program apps.vgg --preset vgg13 --ranks 8 --node 4 --batch 128", ("data",), 0.847, 0.715
    ),
    _google(
        "VGG13, 2 x 8", "--program apps.vgg --preset vgg13 --ranks 16 --node 8 --batch 256", ("data",), 0.777, 0.635
    ),
    _google(
        "24 x 1,024, 2 x 16",
        f"--preset autoddl-small --ranks 32 --node 16 --batch 2048 {TEXT}",
        ("data", "megatron"),
        0,
        0,
    ),
    _google(
        "28 x 4,096, 2 x 16",
        f"--preset autoddl-large --ranks 32 --node 16 --batch 2048 {TEXT}",
        ("megatron",),
        0.216,
        0.10,
    ),
)


def _table(label: str, ranks: int, preset: str, batch: int, seconds: tuple[int, int], stages: int = 1) -> Setting:
    flags = f"--preset {preset} --ranks {ranks // stages} --batch {batch} {TEXT}"
    faster = 1 - seconds[0] / seconds[1]
    return Setting(label, flags, replicas=4 * stages, baselines=("megatron",), faster=faster, stages=stages)


TABLE_3 = (
    _table("wide, 64 nodes", 64, "autoddl-20", 512, (335, 533)),
    _table("wide, 128 nodes", 128, "autoddl-20", 1024, (315, 503)),
    _table("deep, 64 nodes", 64, "autoddl-deep", 512, (443, 710), stages=2),
    _table("deep, 128 nodes", 128, "autoddl-deep", 1024, (508, 807), stages=2),
)
BLOCK = "1048576:8192-24576/8192-8192"
"""Attention's multiplications of width 8,192, with 2^20 tokens (Figure 3)."""
WHOLE_BLOCK = f"{BLOCK}-32768-8192 --closed"
RANKS = (8, 16, 64, 256)


def shard(flags: str) -> dict[str, Any]:
    """What `python -m pipelined shard --json` finds."""
    command = [sys.executable, "-m", "pipelined", "shard", "--json", *flags.split()]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def compared(setting: Setting) -> dict[str, Any]:
    """The best strategy of a setting beside the paper's baselines: the seconds of all moves in a step, in sequence."""
    flags = f"{setting.flags} {setting.prices}"
    found = shard(flags + (f" --replicas {setting.replicas}" if setting.replicas else ""))
    others = {name: found["baselines"][name]["seconds"] for name in setting.baselines if name in found["baselines"]}
    if setting.dense:
        others["megatron"] = min(shard(f"{flags} --layout {_dense(found, rows)}")["seconds"] for rows in setting.dense)
    second = min(others, key=lambda name: others[name])
    share = setting.faster / setting.saved if setting.faster and setting.saved else None
    saved = 1 - found["seconds"] / others[second]
    return {
        "setting": asdict(setting),
        "seconds": found["seconds"],
        "baselines": others,
        "second": second,
        "saved": saved,
        "share_printed": share,
        "faster": None if share is None else saved * share,
        "factors": [row["factors"] for row in found["strategy"]],
    }


def _dense(found: dict[str, Any], rows: int) -> str:
    """Data parallelism, but for the dense layers: columns and rows in turn over what is left beside some data ranks."""
    ranks, dense = found["ranks"], 0
    layout = []
    for row in found["strategy"]:
        if not row["op"].startswith("fc"):
            layout.append(f"{row['op']}={ranks}.1.1")
            continue
        columns = ranks // rows
        layout.append(f"{row['op']}={rows}.1.{columns}" if dense % 2 else f"{row['op']}={rows}.{columns}.1")
        dense += 1
    return ",".join(layout)


def elements(chain: str, ranks: int) -> dict[str, Any]:
    """Mi elements that the busiest rank sends in a step, by phase: the best with four replicas, and the baselines."""
    found = shard(f"--chain {chain} --ranks {ranks} --replicas 4 --links beta=1e-9")
    each = {"best": found, **{name: one for name, one in found["baselines"].items() if name != "zero1"}}
    sent = {name: {phase: count / MI for phase, count in one["elements"].items()} for name, one in each.items()}
    return {"ranks": ranks, "factors": [row["factors"] for row in found["strategy"]], "sent": sent}


def as_table(found: dict[str, Any]) -> str:
    """The figures for people."""
    sent = found["figure 3"]["sent"]
    lines = [
        f"Figure 3, 64 ranks: {_factors(found['figure 3'])} sends {sent['best']['forward']:,.0f} Mi elements forward, "
        f"Megatron {sent['megatron']['forward']:,.0f}, and {sent['best']['update']:,.0f} in the update",
        "",
        f"{'a block, Mi elements':<24} {'best':>8} {'data':>8} {'1-D':>8} {'2-D':>8} {'SUMMA':>8}",
    ]
    for row in found["block"]:
        every = {name: sum(phases.values()) for name, phases in row["sent"].items()}
        columns = [every.get(name) for name in ("best", "data", "megatron_1d", "megatron", "summa")]
        numbers = " ".join(f"{'' if one is None else format(one, ',.0f'):>8}" for one in columns)
        lines.append(f"{row['ranks']:>5} ranks{'':<13} {numbers}  {_factors(row)}")
    head = f"{'':<22} {'best':>8} {'second best':>20} {'saved':>7} {'printed':>8} {'runtime':>8} {'printed':>8}"
    for name in ("Figure 9", "Figure 10", "Table 3"):
        lines += ["", f"{name}, seconds of moves", head, *map(_row, found[name])]
    return "\n".join(lines)


def _row(one: dict[str, Any]) -> str:
    setting, second = one["setting"], f"{one['second']} {one['baselines'][one['second']]:8.3f}"
    shares = (one["saved"], setting["saved"], one["faster"], setting["faster"])
    columns = (
        f"{'' if share is None else format(share, '.1%'):>{width}}"
        for share, width in zip(shares, (7, 8, 8, 8), strict=True)
    )
    return f"{setting['label']:<22} {one['seconds']:>8.3f} {second:>20} {' '.join(columns)}"


def _factors(row: dict[str, Any]) -> str:
    return " ".join(f"({','.join(map(str, one))})" for one in row["factors"])


def main() -> int:
    """Find the strategies of every setting."""
    options = tyro.cli(Options, prog="python -m benchmarks.autoddl_figures")
    found: dict[str, Any] = {
        "figure 3": elements(BLOCK, 64),
        "block": [elements(WHOLE_BLOCK, ranks) for ranks in RANKS],
        "Figure 9": [compared(setting) for setting in FIGURE_9],
        "Figure 10": [compared(setting) for setting in FIGURE_10],
        "Table 3": [compared(setting) for setting in TABLE_3],
    }
    tell(options, found, lambda: as_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
