"""How busy slow lines leave a cluster: `python -m benchmarks.ravnest_pipeline`.

Each stage is a process with an endpoint of its own over TCP and delayed lines; the worker, the versions of the weights,
the updates and the agreement on each step are the real ones, and its device takes a given time for a forward and a
backward. `share` is the rate in the middle half of the run over that of the slowest stage. Beside it stand this
project's 1F1B of the same devices and, with `--backups`, the same with a second process for each stage.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import tyro

from apps.common.commands.local_processes import Child, next_line
from benchmarks.harness.ranks import ROOT
from benchmarks.harness.results import Reported, tell
from pipelined.errors import UsageError
from pipelined.ravnest.planning.stage_sizes import littles_law

Measured = list[dict[str, Any]]


@dataclass(frozen=True)
class Options(Reported):
    """Measure the rate of a cluster over slow lines."""

    forward_ms: str = "10,10,10"
    """Milliseconds of a forward, by stage."""
    backward_ms: str = "20,20,20"
    """Milliseconds of a backward, by stage."""
    delay_ms: float = 30.0
    """Milliseconds of a message."""
    ahead: int | None = None
    """Microbatches alive in the first stage; in later ones by the law, in proportion. Open: the law's."""
    microbatches: int = 4
    """Of a step, N."""
    steps: int = 60
    """Steps."""
    backups: bool = False
    """Measure it with a backup for every node, too."""

    @property
    def seconds(self) -> list[tuple[float, float]]:
        """Of a forward and a backward, by stage.

        Raises:
            UsageError: not one of each for each stage.
        """
        forward, backward = (
            [float(ms) / 1e3 for ms in text.split(",")] for text in (self.forward_ms, self.backward_ms)
        )
        if len(forward) != len(backward):
            fact = f"--forward-ms {self.forward_ms} and --backward-ms {self.backward_ms} have not as many stages"
            raise UsageError(f"{fact}; give one number for each stage")
        return list(zip(forward, backward, strict=True))

    @property
    def limits(self) -> list[int]:
        """Most microbatches alive, by stage."""
        full = littles_law([f + b for f, b in self.seconds], [self.delay_ms / 1e3] * (len(self.seconds) - 1))
        return full if self.ahead is None else [-(-self.ahead * each // full[0]) for each in full]


def run_of(
    options: Options, schedule: str, addresses: Sequence[str], backups: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """What each stage is to run, and then each backup."""
    ahead = ",".join(map(str, options.limits)) if schedule == "async_1f1b" else ""
    sizes = {"microbatches": options.microbatches, "steps": options.steps}
    run = {"addresses": addresses, "backups": backups, "schedule": schedule, "ahead": ahead, **sizes}
    stages = [{**run, "forward": forward, "backward": backward} for forward, backward in options.seconds]
    return stages * (2 if backups else 1)


async def measure(options: Options, schedules: Sequence[str]) -> list[Measured]:
    """Run these schedules on the same processes; returns what each stage measured, by schedule.

    With `--backups` the last entry is what each stage measured of the first schedule with a backup for every node.
    """
    async with AsyncExitStack() as stack:
        stages = await _started(stack, options)
        found = [await _ran(stages, run_of(options, schedule, [*stages])) for schedule in schedules]
        if options.backups:
            backups = await _started(stack, options)
            runs = run_of(options, schedules[0], [*stages], [*backups])
            found.append((await _ran({**stages, **backups}, runs))[: len(stages)])
    return found


async def _started(stack: AsyncExitStack, options: Options) -> dict[str, Child]:
    """A process for each stage, by the address of its endpoint."""
    url = f"tcp://127.0.0.1:0?delay={options.delay_ms:g}ms" if options.delay_ms else "tcp://127.0.0.1:0"
    processes = [await _process(stack, url) for _ in options.seconds]
    return {(await next_line(process)).strip(): process for process in processes}


async def _process(stack: AsyncExitStack, url: str) -> Child:
    words = [sys.executable, "-m", "benchmarks.ravnest.stage", url]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, cwd=ROOT, limit=1 << 24)

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return process


async def _ran(stages: Mapping[str, Child], runs: Sequence[dict[str, Any]]) -> Measured:
    """What these processes measured of a run."""
    for stage, run in zip(stages.values(), runs, strict=True):
        assert stage.stdin is not None
        stage.stdin.write(json.dumps(run).encode() + b"\n")
    return [json.loads(await next_line(stage)) for stage in stages.values()]


def rate(ends: Sequence[float]) -> float:
    """Microbatches a second in the middle half."""
    first, last = len(ends) // 4, len(ends) * 3 // 4
    return (last - first) / (ends[last] - ends[first])


def plain(options: Options, ours: Measured, flushed: Measured, backed: Measured | None = None) -> dict[str, Any]:
    """The figures as JSON. `backups`: the rate with a backup for every node over that without; None: not measured."""
    works = [sum(each) for each in options.seconds]
    here, depth, many = rate(ours[0]["ends"]), len(works), options.microbatches
    return {
        "share": here * max(works),
        "limits": options.limits,
        "alive": [stage["alive"] for stage in ours],
        "staleness": ours[0]["staleness"],
        "idle": [1 - here * work for work in works],
        "beside_1f1b": here / rate(flushed[0]["ends"]),
        "bound_1f1b": (many + depth - 1) / many,
        "backups": backed and rate(backed[0]["ends"]) / here,
    }


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = ["stage   limit   alive   late   idle"]
    rows = zip(found["limits"], found["alive"], found["staleness"], found["idle"], strict=True)
    for stage, (limit, alive, late, idle) in enumerate(rows):
        lines.append(f"{stage:>5} {limit:>7} {alive:>7} {late:>6.1f} {idle:>6.1%}")
    lines.append(f"share of the slowest stage's rate: {found['share']:.1%}")
    beside, bound = found["beside_1f1b"], found["bound_1f1b"]
    lines.append(f"{beside:.2f} times 1F1B, whose bubble alone gives {bound:.2f} where lines are fast")
    if found["backups"] is not None:
        lines.append(f"with a backup for every node: {found['backups']:.1%} of the rate without")
    return "\n".join(lines)


def main() -> None:
    """Run it as the flags say."""
    options = tyro.cli(Options, prog="python -m benchmarks.ravnest_pipeline")
    found = plain(options, *asyncio.run(measure(options, ("async_1f1b", "one_f_one_b"))))
    tell(options, found, lambda: table(found))


if __name__ == "__main__":
    main()
