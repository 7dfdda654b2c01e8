"""Start-up and memory of runs on tokens in files: `python -m benchmarks.mapped_data`.

A GPT-2 on bytes trains some steps on a sparse file of 10 GB and on one of a megabyte: over ranks by this project, and
in one process by a plain loop that maps the same file. What the large file adds to a rank's memory is what its data
takes. With `--prepared DIR` both also train on what `python -m pipelined tokens` wrote.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.harness.results import ROOT, Reported, tell

FILES = "small", "large", "prepared"
SMALL = 10**6
"""Bytes of the file beside which the large one is seen."""
PROMISED_S, PROMISED_MIB = 10.0, 300
"""Of the first step, where a plain loop's comes as soon; and what a large file adds to a rank."""


@dataclass(frozen=True, kw_only=True)
class Options(Reported):
    """Time the first step and measure the largest rank, on a large file of tokens and on a small one."""

    gigabytes: float = 10.0
    """Size of the large file, which is sparse: it takes no room on the disk."""
    prepared: Path | None = None
    """A directory of tokens, on which both train, too; the plain loop maps its first shard."""
    ranks: int = 2
    """Ranks of our run; each of them is a stage."""
    layers: int = 4
    heads: int = 4
    vocab: int = 256
    """Symbols of the model; sparse files are read as bytes all the same."""
    width: int = 256
    seq: int = 256
    batch: int = 8
    steps: int = 5
    rounds: int = 1
    """Runs of each program on each file, in turns; the quickest first step counts."""

    @property
    def ours(self) -> list[str]:
        """The command of our run, but for its data."""
        sizes = f"--layers {self.layers} --d-model {self.width} --heads {self.heads} --vocab {self.vocab}"
        data = f"--seq {self.seq} --eval-windows 1 --dropout 0"
        run = f"--schedule gpipe --depth {self.ranks} --batch {self.batch} --steps {self.steps} --sample 0"
        command = f"mpirun -n {self.ranks} {sys.executable} -m apps.gpt2 {sizes} {data} {run}"
        return command.split()

    @property
    def plain(self) -> list[str]:
        """The command of the plain loop, but for its data."""
        numbers = self.layers, self.width, self.heads, self.vocab, self.seq, self.batch, self.steps
        return [sys.executable, "-m", "benchmarks.pipelines.mapped_plain", *map(str, numbers)]


def measure(command: list[str]) -> dict[str, float]:
    """Run a command to its end: seconds until it prints its first step, and MiB of its largest process."""
    began, first = time.perf_counter(), None
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if first is None and re.match(r"step +1\b", line):
            first = time.perf_counter() - began
    _, status, usage = os.wait4(process.pid, 0)  # of the process and of all that it waited for
    if status or first is None:
        raise RuntimeError(f"{' '.join(command)} ended before its first step (status: {status})")
    return {"first_step_s": first, "largest_mib": usage.ru_maxrss / 1024}


def compare(options: Options, folder: Path) -> dict[str, Any]:
    """Both programs on each file in turns, and what the large one adds to the small one."""
    files = {"small": folder / "small.bin", "large": folder / "large.bin"}
    for name, size in (("small", SMALL), ("large", round(options.gigabytes * 1e9))):
        with files[name].open("wb") as sparse:
            sparse.truncate(size)
    if options.prepared:
        files["prepared"] = options.prepared / "tokens-00000.bin"
    runs = [_round(options, files) for _ in range(options.rounds)]
    found: dict[str, Any] = {name: _summed_up(name, file, runs) for name, file in files.items()}
    for program in ("ours", "plain"):
        added = found["large"][program]["largest_mib"] - found["small"][program]["largest_mib"]
        found[f"{program}_added_mib"] = added
    ours, plain = (found["large"][program]["first_step_s"] for program in ("ours", "plain"))
    found["kept"] = ours <= max(PROMISED_S, plain) and found["ours_added_mib"] <= PROMISED_MIB
    return found


def _round(options: Options, files: dict[str, Path]) -> dict[tuple[str, str], dict[str, float]]:
    found = {}
    for name, file in files.items():
        data = [str(options.prepared)] if name == "prepared" else [str(file), "--tokenizer", "bytes"]
        found[name, "ours"] = measure([*options.ours, "--data", *data])
        found[name, "plain"] = measure([*options.plain, str(file)])
    return found


def _summed_up(name: str, file: Path, runs: list[dict[tuple[str, str], dict[str, float]]]) -> dict[str, Any]:
    """Of each program the quickest first step, as other work only adds to one, and the largest process."""
    found: dict[str, Any] = {"bytes": file.stat().st_size}
    for program in ("ours", "plain"):
        each = [run[name, program] for run in runs]
        first, largest = min(one["first_step_s"] for one in each), max(one["largest_mib"] for one in each)
        found[program] = {"first_step_s": first, "largest_mib": largest, "rounds": each}
    return found


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = ["file               ours: first step   largest rank   plain: first step   largest"]
    for name in [name for name in FILES if name in found]:
        ours, plain = found[name]["ours"], found[name]["plain"]
        lines.append(
            f"{name:8} {found[name]['bytes'] / 1e9:6.3f} GB "
            f"{ours['first_step_s']:14.1f} s {ours['largest_mib']:10.0f} MiB "
            f"{plain['first_step_s']:17.1f} s {plain['largest_mib']:5.0f} MiB"
        )
    added = (
        f"the large file adds {found['ours_added_mib']:.0f} MiB to a rank, {found['plain_added_mib']:.0f} to the loop"
    )
    promised = f"promised: {PROMISED_S:.0f} s, or the loop's, and {PROMISED_MIB} MiB"
    return "\n".join([*lines, f"{added} ({promised}: {'kept' if found['kept'] else 'not kept'})"])


def main() -> int:
    """Run it as the flags say; 1 if a promise is not kept."""
    options = tyro.cli(Options, prog="python -m benchmarks.mapped_data")
    with tempfile.TemporaryDirectory() as folder:
        found = compare(options, Path(folder))
    tell(options, found, lambda: table(found))
    return 0 if found["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
