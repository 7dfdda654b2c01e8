"""Whether a fixed list of short runs still gives every loss to the last bit: `python -m benchmarks.losses --check`.

`--save` makes each run twice and keeps the losses, norms and evaluations of those that agree in
`benchmarks/results/losses.json`; `--check` makes each once and compares. Another processor or another torch rounds
otherwise: then the file must be made anew from a commit that is known to be right.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.harness.flags import flags
from benchmarks.harness.results import FOLDER, ROOT, circumstances
from benchmarks.pipelines.loss_runs import FILES, LEFT_OUT, METRICS, RUNS, Run, chosen
from pipelined.errors import UsageError

FILE = FOLDER / "losses.json"
KEPT = ("step", "loss", "grad_norm", "eval_loss")
"""What of each line of the metrics is kept."""
ROUNDING = ("processor", "torch")
"""What a run's bits depend on beside the code."""
LIMIT_S = 120.0

Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Options:
    """Compare or keep the losses of a fixed list of runs.

    Raises:
        UsageError: not one of --check and --save, or an unknown run.
    """

    check: bool = False
    """Compare with what is kept; the exit code is 1 where anything differs."""
    save: bool = False
    """Make each run twice and keep what agrees."""
    only: tuple[str, ...] = ()
    """Names of runs. Open: all of them."""

    def __post_init__(self) -> None:
        if self.check == self.save:
            raise UsageError("one of --check and --save is needed; give one of them")
        known = [run.name for run in RUNS]
        if unknown := [name for name in self.only if name not in known]:
            raise UsageError(f"unknown runs: {'; '.join(unknown)} (known: {'; '.join(known)})")


class RunError(Exception):
    """A run failed or took too long; the text has the end of what it said."""


def rows_of(run: Run) -> Rows:
    """Make a run in a directory of its own; returns what it measured, in the order of its steps.

    Raises:
        RunError: a command ends with another code than 0, or after `LIMIT_S`.
    """
    with tempfile.TemporaryDirectory(prefix="losses-") as name:
        folder = Path(name)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        for words in run.words():
            _done(words, folder)
        lines = (folder / METRICS).read_text().splitlines()
    return [{key: row[key] for key in KEPT if key in row} for row in map(json.loads, lines)]


def _done(words: Sequence[str], folder: Path) -> None:
    """Run one command to its end, in a process group that ends with it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True, **output) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise RunError(f"no end (seconds: {LIMIT_S:.0f}): {' '.join(words)}") from error
    if process.returncode:
        raise RunError(f"code {process.returncode}: {' '.join(words)}\n{said[-2000:]}")


def difference(kept: Rows, found: Rows) -> str:
    """The first figure in which two runs differ, as a sentence; empty where none does."""
    if len(kept) != len(found):
        return f"{len(found)} lines, {len(kept)} kept"
    for before, now in zip(kept, found, strict=True):
        for key in KEPT:
            if before.get(key) != now.get(key):
                return f"step {before.get('step')}: {key} {now.get(key)!r}, kept {before.get(key)!r}"
    return ""


def check(run: Run, kept: Mapping[str, Any]) -> str:
    """Make a run and say how it differs from what is kept of it; empty where it does not."""
    if run.name not in kept:
        return "nothing is kept of it; use --save"
    if kept[run.name]["commands"] != list(run.commands):
        return "its commands are not those that were kept; use --save"
    try:
        return difference(kept[run.name]["rows"], rows_of(run))
    except RunError as error:
        return str(error)


def save(run: Run, kept: dict[str, Any]) -> str:
    """Make a run twice and keep what it measured; says why not, where that cannot be."""
    kept.pop(run.name, None)
    try:
        first, second = rows_of(run), rows_of(run)
    except RunError as error:
        return str(error)
    if changed := difference(first, second):
        return f"not the same twice: {changed}"
    kept[run.name] = {"commands": list(run.commands), "rows": first}
    return ""


def written() -> dict[str, Any]:
    """What is kept: `runs` by name, and the circumstances they were made in."""
    return json.loads(FILE.read_text()) if FILE.exists() else {"runs": {}}


def rounding(kept: Mapping[str, Any]) -> str:
    """How this machine differs from the one that the losses are of; empty where bits may be compared."""
    here = circumstances()
    other = [
        f"{name}: {here.get(name)}, kept {kept.get(name)}" for name in ROUNDING if here.get(name) != kept.get(name)
    ]
    return "; ".join(other)


def main() -> int:
    """Run the program; returns the exit code."""
    options = flags(Options, "losses")
    kept = written()
    if options.check and (cause := rounding(kept)):
        print(f"warning: bits may differ for another reason than the code ({cause})", flush=True)
    wrong = [run.name for run in chosen(options.only) if not _went_well(run, options, kept["runs"])]
    if options.save:
        order = [run.name for run in RUNS if run.name in kept["runs"]]
        runs = {name: kept["runs"][name] for name in order}
        FILE.write_text(json.dumps({**circumstances(), "runs": runs}, indent=1) + "\n")
    print("\n".join(f"left out: {name} ({why})" for name, why in LEFT_OUT.items()))
    print(f"wrong: {', '.join(wrong)}" if wrong else "all the same")
    return 1 if wrong else 0


def _went_well(run: Run, options: Options, kept: dict[str, Any]) -> bool:
    began = monotonic()
    problem = save(run, kept) if options.save else check(run, kept)
    print(f"{run.name:28} {monotonic() - began:5.1f} s  {problem or 'same'}", flush=True)
    return not problem


if __name__ == "__main__":
    sys.exit(main())
