"""The task and the result of a contender: JSON on the command line, and JSON on stdout.

The same launcher starts both in the same way, and only the work between two barriers is timed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.pipelines.contest import Contest, Ends

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 300.0
"""How long a launch may take; reached only if a contender hangs."""


@dataclass(frozen=True)
class Trial:
    """One schedule on one cut."""

    schedule: str
    ends: Ends


@dataclass(frozen=True)
class Result:
    """What a trial came to.

    Args:
        tokens_per_s: over all timed steps.
        cpu_s: of one core, all ranks together, a step; it hardly depends on what else the machine does.
        losses: of every step, the untimed ones too. With the norm they show that the contenders do the same work.
        norm: the global gradient norm of the last step, which is not timed.
    """

    schedule: str
    ends: Ends
    tokens_per_s: float
    cpu_s: float
    losses: tuple[float, ...]
    norm: float


@dataclass(frozen=True)
class Task:
    """What one launch does.

    Args:
        folder: where ranks that know no launcher may meet.
    """

    contest: Contest
    trials: tuple[Trial, ...]
    folder: str

    def dumps(self) -> str:
        trials = [asdict(trial) for trial in self.trials]
        return json.dumps({"contest": self.contest.to_dict(), "trials": trials, "folder": self.folder})

    @classmethod
    def loads(cls, text: str) -> "Task":
        plain = json.loads(text)
        trials = tuple(Trial(t["schedule"], tuple(t["ends"])) for t in plain["trials"])
        return cls(Contest(**plain["contest"]), trials, plain["folder"])


def tell(results: Sequence[Result]) -> None:
    """Print what the trials came to; rank 0 alone calls this."""
    print(json.dumps([asdict(result) for result in results]), flush=True)


def launch(module: str, ranks: int, contest: Contest, trials: Sequence[Trial]) -> list[Result]:
    """Start a contender on so many ranks, one thread each, and wait for what it tells.

    Raises:
        subprocess.CalledProcessError: it failed; its words are on stderr.
    """
    with TemporaryDirectory() as folder:
        task = Task(contest, tuple(trials), folder)
        done = subprocess.run(
            ["mpirun", "-n", str(ranks), sys.executable, "-m", module, task.dumps()],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
            timeout=START_LIMIT_S,
        )
    plain = json.loads(done.stdout.splitlines()[-1])
    lists = ("ends", "losses")
    return [Result(**{**result, **{name: tuple(result[name]) for name in lists}}) for result in plain]
