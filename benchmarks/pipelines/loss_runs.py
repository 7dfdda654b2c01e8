"""The fixed list of short runs of which `benchmarks.losses` keeps every loss.

A run is the commands that a user would type, one after another in an empty directory with the files of `FILES` in it.
`COMMON` says what the commands share; a flag of the command itself wins. Every command appends its losses to one file.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

METRICS = "losses.jsonl"
MODEL = "--layers 4 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 4 --warmup 2"
COMMON = {
    "apps.gpt2": f"{MODEL} --data text.txt --sample 0 --metrics {METRICS}",
    "apps.swarm": f"--layers 3 --d-model 16 --heads 2 --seq 16 --batch 8 --microbatch 2 --steps 4 --warmup 2 "
    f"--data text.txt --sample 0 --rebalance 0 --metrics {METRICS}",
}
"""By program, the flags that stand before each command's own."""
BARE = f"--sample 0 --metrics {METRICS}"
"""The same of a run of the program's own model and text."""
FILES = {
    "text.txt": "".join(f"{n} times {n} is {n * n}.\n" for n in range(3000)),
    "own.csv": "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n",
}
"""Files of every run's directory: the text to train on, and a schedule of one's own (1F1B, its first backward late)."""


@dataclass(frozen=True)
class Run:
    """One run: its name and its commands, in order.

    Args:
        bare: whether it trains the program's own model and text instead of the small ones here.
    """

    name: str
    commands: tuple[str, ...]
    bare: bool = False

    def words(self) -> list[list[str]]:
        """The words of each command, ready to start.

        Raises:
            FileNotFoundError: this environment lacks a launcher.
        """
        return [_words(command, self.bare) for command in self.commands]


def _words(command: str, bare: bool) -> list[str]:
    words = shlex.split(command)
    program = words.index("-m") + 1
    at = program + (2 if words[program] == "apps.swarm" else 1)  # after the subcommand
    words[at:at] = shlex.split(BARE if bare else COMMON.get(words[program], ""))
    return [_found(word) if word in ("python", "mpirun", "torchrun") else word for word in words]


def _found(program: str) -> str:
    """This Python, or a launcher of its environment."""
    if program == "python":
        return sys.executable
    found = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if found is None:
        raise FileNotFoundError(
            f"{program} is not in this environment; install the extra mpich, or name runs by --only"
        )
    return found


def chosen(names: Sequence[str]) -> list[Run]:
    """The runs of these names, all where none is named.

    Raises:
        KeyError: a run is not in the list.
    """
    by_name = {run.name: run for run in RUNS}
    return [by_name[name] for name in names] if names else list(RUNS)


def _alone(name: str, flags: str, *more: str) -> Run:
    """A run in one process, with the further commands `more`."""
    return Run(name, (f"python -m apps.gpt2 {flags}", *more))


def _ranks(name: str, ranks: int, flags: str) -> Run:
    """A run under mpirun."""
    return Run(name, (f"mpirun -n {ranks} python -m apps.gpt2 {flags}",))


RESUMED = "--schedule chimera --depth 2 --checkpoint saved"
TRACED = "--schedule chimera --depth 2 --microbatches 4"

RUNS: Sequence[Run] = (
    _alone("plain", "--depth 1 --eval-every 2"),
    _alone("gpipe, clipped", "--schedule gpipe --depth 4 --microbatches 4 --clip 0.5"),
    _alone("1F1B, recomputed", "--schedule one_f_one_b --depth 4 --microbatches 8 --recompute"),
    _alone("interleaved", "--schedule interleaved --depth 4 --chunks 2 --microbatches 4"),
    _alone(
        "chimera, doubled, width 2", "--schedule chimera --depth 2 --width 2 --microbatches 4 --scale forward-doubling"
    ),
    _alone("chimera_w, 4 pipes", "--schedule chimera_w --depth 4 --pipes 4 --microbatches 8"),
    _alone("zb_h1, evaluated", "--schedule zb_h1 --depth 4 --microbatches 4 --eval-every 2"),
    _alone("zb_v, float64", "--schedule zb_v --depth 4 --microbatches 4 --dtype float64"),
    _alone("dualpipe, bfloat16", "--schedule dualpipe --depth 4 --microbatches 8 --dtype bfloat16"),
    _alone("gems, ring", "--schedule gems --depth 2 --width 2 --microbatches 2 --all-reduce ring"),
    _alone("2BW", "--schedule pipedream_2bw --depth 4 --microbatches 4"),
    _alone("pipedream, zstd", "--schedule pipedream --depth 2 --microbatches 4 --compress zstd"),
    _alone("own table, blockwise8", "--schedule own.csv --compress blockwise8"),
    _ranks("mpirun -n 1", 1, "--depth 1"),
    _ranks("mpirun -n 2", 2, "--schedule chimera --depth 2 --microbatches 4 --compress bf16"),
    _ranks("mpirun -n 4", 4, "--schedule chimera --depth 4 --microbatches 4"),
    _ranks("mpirun, width 4", 4, "--schedule gpipe --depth 1 --width 4 --microbatches 2 --all-reduce rabenseifner"),
    Run("torchrun", ("torchrun --nproc-per-node 2 -m apps.gpt2 --schedule one_f_one_b --depth 2 --compress fp16",)),
    _alone("resumed", f"{RESUMED} --steps 2", f"python -m apps.gpt2 {RESUMED} --steps 4 --resume auto"),
    _alone("replayed", f"{TRACED} --trace trace.json", f"python -m apps.gpt2 {TRACED} --replay trace.json"),
    Run(
        "planned",
        (
            "python -m pipelined plan --ranks 2 --global-batch 8 --layers 4 --d-model 16 --heads 2 --seq 16 "
            "--costs flops=1e10,overhead=1e-4 --out plan.json",
            "python -m apps.gpt2 --plan plan.json",
        ),
    ),
    _alone(
        "dropout, multi_ring",
        "--schedule one_f_one_b --depth 2 --width 2 --microbatches 2 --dropout 0.2 --recompute --all-reduce multi_ring",
    ),
    _ranks("mpirun, shared", 4, "--schedule chimera --depth 2 --width 2 --microbatches 2 --all-reduce shared"),
    _alone(
        "2BW, then chimera",
        "--schedule pipedream_2bw --depth 2 --microbatches 2 --clip 0 --steps 2 --checkpoint saved",
        "python -m apps.gpt2 --schedule chimera --depth 2 --clip 0 --checkpoint saved --resume auto",
    ),
    Run("README", ("mpirun -n 4 python -m apps.gpt2 --schedule chimera --depth 4 --steps 10",), bare=True),
    _ranks("swarm of ranks", 2, "--schedule swarm --stages 2 --width 1"),
    Run("swarm", ("python -m apps.swarm local --peers 3 --stages 3 --slots 1",)),
)
"""Every family of schedules, launcher, codec and number format, and what goes on from a file."""

LEFT_OUT = {
    "async_1f1b": "a weight version depends on the moment at which a gradient arrives, so two runs differ in step 0",
}
"""What is not in the list, and why."""
