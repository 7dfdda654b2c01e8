"""A swarm's stage beside hivemind when a peer is killed inside the sum: `python -m benchmarks.swarm_hivemind`.

Four peers of 32 MB, a target of 200 samples a step, one peer killed (-9) inside the second step's sum of gradients, as
soon as it was brought a share of what it is to sum that is drawn at random; both in turns, with the same shares.
hivemind needs an environment of its own:

    python -m venv HM && HM/bin/pip install hivemind==1.1.12
    python -m benchmarks.swarm_hivemind --hivemind-python HM/bin/python
"""

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from benchmarks.harness.ranks import ROOT, check, program
from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.children import Child, address_of, child
from pipelined.errors import UsageError

WIDE, PEER = "benchmarks.swarm.wide_stage", "benchmarks/swarm/hivemind_peer.py"
PEERS, STRUCK_STEP = 4, 2
LIMIT_S = 90.0
"""How long a run may take; what has not come by then has not."""
Lines = list[tuple[float, str, list[str]]]
"""The moment, the process, and its words."""


@dataclass(frozen=True)
class Options(Reported):
    """Kill a peer of a swarm's stage and one of hivemind's."""

    hivemind_python: Path | None = None
    """The Python of an environment with hivemind 1.1.12. Open: only ours is run."""
    runs: int = 5
    """Runs of each."""
    nbytes: int = 32_000_000
    """Bytes of parameters of each peer."""
    target: int = 200
    """Samples of a step."""
    samples: int = 5
    """Samples of a microbatch."""
    microbatch_s: float = 0.5
    """Seconds that a peer takes for one."""
    epochs: int = 4
    """Steps of a run."""
    matchmaking_s: float = 4.0
    """hivemind's time for finding a group: its guide says 3 to 5 for small local runs, and more than its 3 s for one
    request."""
    averaging_s: float = 15.0
    """hivemind's limit for finding a group and for an all-reduce: its guide says twice what that takes (60 by
    default)."""
    lease_s: float = 3.0
    """Ours: seconds without a heartbeat after which a peer is removed."""
    seed: int = 0
    """Of the shares at which a peer dies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(runs=[self.runs], epochs=[self.epochs - STRUCK_STEP])
        if self.hivemind_python is not None and not self.hivemind_python.exists():
            raise UsageError(f"there is no {self.hivemind_python}; see the top of benchmarks/swarm_hivemind.py")

    def task(self) -> dict[str, Any]:
        """The task of every process."""
        options = {name: value for name, value in asdict(self).items() if name != "hivemind_python"}
        return {**options, "peers": PEERS, "dies": None, "struck_after": STRUCK_STEP - 1}


@dataclass(frozen=True)
class Run:
    """What came of one.

    Args:
        struck: whether a peer died inside a sum.
        samples: what each step from the death on held, the struck one first; by the survivors alone, where each tells
            its own.
        apart: steps from the death on after which survivors held different parameters.
        stall_s: longest time between steps from the death on, less an ordinary one; infinite where none came.
        share: of what the dead peer was to sum that it had been brought.
    """

    name: str
    struck: bool
    samples: tuple[int, ...]
    apart: int
    stall_s: float
    share: float = 0.0


def judged(name: str, lines: Lines, dead: str, exact: bool) -> Run:
    """What the lines of all peers say.

    Args:
        exact: each peer tells the samples of the whole step, not its own alone.
    """
    took: dict[int, dict[str, tuple[float, int, str]]] = {}
    for at, who, words in lines:
        if words[0] == "took" and who != dead:
            took.setdefault(int(words[1]), {})[who] = (at, int(words[2]), words[3])
    struck = [at for at, _, words in lines if words[0] == "struck"]
    if not struck:
        return Run(name, False, (), 0, 0.0)
    stood = {step: max(at for at, _, _ in each.values()) for step, each in took.items()}
    after = [step for step in sorted(stood) if stood[step] >= struck[0]]
    samples = [[count for _, count, _ in took[step].values()] for step in after]
    held = tuple(min(each) if exact else sum(each) for each in samples)
    apart = sum(len({digest for _, _, digest in took[step].values()}) > 1 for step in after)
    return Run(name, True, held, apart, _stall([stood[step] for step in sorted(stood)], struck[0]))


def _stall(stood: Sequence[float], struck: float) -> float:
    """What the longest gap from the strike on has more than an ordinary one, of those before it if there were any."""
    gaps = [(after, after - before) for before, after in pairwise(stood)]
    since, before = ([gap for at, gap in gaps if (at >= struck) == late] for late in (True, False))
    return max(since) - statistics.median(before or since) if since else float("inf")


async def ours(task: dict[str, Any], share: float) -> Run:
    """One run of a swarm with a single stage."""
    lines, names = Lines(), [f"peer{place}" for place in range(PEERS)]
    each = (PEERS - 1) * _pieces(task)  # brought to a peer in a step
    dies = each * (STRUCK_STEP - 1) + int(share * each) + 1
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(child(WIDE, "coordinator"))
        address = await address_of(coordinator)
        tasks = {name: {**task, "dies": dies if name == names[-1] else None} for name in names}
        peers = [
            await stack.enter_async_context(child(WIDE, "peer", address, name, json.dumps(tasks[name]), name=name))
            for name in names
        ]
        trainer = await stack.enter_async_context(child(WIDE, "train", address, "trainer", json.dumps(task)))
        listening = [asyncio.ensure_future(each.listen()) for each in peers]
        try:
            async with asyncio.timeout(LIMIT_S):
                await trainer.process.wait()
                while not all(_has_taken_all(each, task) for each in peers[:-1]):  # noqa: ASYNC110 (nothing tells)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        for task_ in listening:
            task_.cancel()
        lines = [(at, each.name, words) for each in peers for at, words in each.said]
    return replace(judged("swarm", sorted(lines), names[-1], exact=True), share=share)


def _has_taken_all(peer: Child, task: dict[str, Any]) -> bool:
    return any(words[:2] == ["took", str(task["epochs"])] for _, words in peer.said)


def _pieces(task: dict[str, Any]) -> int:
    """Pieces of 4 MiB in each peer's share of the sum."""
    return -(-task["nbytes"] // PEERS // (4 << 20))


async def theirs(python: str, task: dict[str, Any], share: float) -> Run:
    """One run of hivemind; each of its steps has an all-reduce of gradients and one of parameters."""
    lines, started = Lines(), list[asyncio.subprocess.Process]()
    addresses = list[str]()
    try:
        for rank in range(PEERS):
            said = json.dumps({**task, "rank": rank, "dies": share if rank == PEERS - 1 else None})
            process = await _peer(python, said, addresses)
            started.append(process)
            if not addresses:
                addresses.append((await process.stdout.readline()).decode().split()[1])
        for process in started[1:]:
            await process.stdout.readline()
        for process in started:
            process.stdin.write(b"go\n")
        listening = [_listen(process, f"peer{rank}", lines) for rank, process in enumerate(started)]
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*listening)
        except TimeoutError:
            pass
    finally:
        for process in started:
            _end(process)
            await process.wait()
    return replace(judged("hivemind", sorted(lines), f"peer{PEERS - 1}", exact=False), share=share)


async def _peer(python: str, said: str, addresses: Sequence[str]) -> asyncio.subprocess.Process:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        python,
        PEER,
        said,
        *addresses,
        stdin=pipe,
        stdout=pipe,
        stderr=null,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


async def _listen(process: asyncio.subprocess.Process, name: str, lines: Lines) -> None:
    """Until it has done or died."""
    while line := await process.stdout.readline():
        words = line.decode().split()
        lines.append((time.perf_counter(), name, words))
        if words[0] in ("done", "struck"):
            return


def _end(process: asyncio.subprocess.Process) -> None:
    """Its daemons, too: they are in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def line(name: str, runs: Sequence[Run]) -> str:
    """A row: over all runs in which a peer died inside a sum."""
    struck = [run for run in runs if run.struck]
    if not any(run.samples for run in struck):
        return f"{name:9} 0 of {len(runs)} runs with a step after a death inside a sum"
    first = [run.samples[0] for run in struck if run.samples]
    later = [each for run in struck for each in run.samples[1:]]
    stalls = sorted(run.stall_s for run in struck)
    apart = f"{sum(run.apart > 0 for run in struck)} of {len(struck)}"
    return (
        f"{name:9} {len(struck):4}  {_spread(first):18} {_spread(later):18} {apart:15} "
        f"{statistics.median(stalls):6.2f} ({stalls[0]:.2f} to {stalls[-1]:.2f})"
    )


def _spread(samples: Sequence[int]) -> str:
    return f"{statistics.median(samples):g} ({min(samples)} to {max(samples)})" if samples else "never"


HEAD = f"{'':9} runs  {'samples, struck':18} {'in later steps':18} {'survivors apart':15} stall, s (least to most)"


def _runs(options: Options) -> Iterator[Run]:
    """Ours and theirs in turns, with the same shares."""
    draw = random.Random(options.seed)
    for _ in range(options.runs):
        share = draw.random()
        yield asyncio.run(ours(options.task(), share))
        if options.hivemind_python:
            yield asyncio.run(theirs(str(options.hivemind_python.absolute()), options.task(), share))


def main() -> None:
    """Read the flags, run both in turns, and print."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_hivemind")
    found = dict[str, list[Run]]()
    for run in _runs(options):
        print(run, file=sys.stderr, flush=True)
        found.setdefault(run.name, []).append(run)
    last = f"medians; the target is {options.target} samples a step"
    raw = {**options.task(), "runs": {k: [asdict(each) for each in v] for k, v in found.items()}}
    tell(options, raw, lambda: "\n".join([HEAD, *(line(name, runs) for name, runs in found.items()), last]))


if __name__ == "__main__":
    sys.exit(program(main))
