"""One digest of a swarm's parameters, whatever happens to its members: `python -m benchmarks.exact_swarms`.

Swarms of real processes over TCP train the same GPT-2 with `--exact-sums`: 3, 6 and 9 peers, 1 to 3 trainers. At random
moments a peer is killed (`kill -9`; another one joins), or stopped for up to twice the lease and continued, and the
leader moves peers between stages. Only a peer with another one serving its stage is struck. Each digest is compared
with that of the first swarm, which has one peer a stage and is left alone.
"""

import asyncio
import random
import signal
import sys
from collections.abc import Container, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tyro

from apps.common.commands.local_processes import Child, next_line, started, started_coordinator
from apps.swarm.config import read_goal
from benchmarks.harness.ranks import check, program
from benchmarks.harness.results import ROOT, Reported, tell
from pipelined.membership.connection import connected
from pipelined.swarm.records.members import Phase
from pipelined.swarm.status.reader import StatusReader
from pipelined.swarm.status.swarm_status import PeerStatus
from transports import Nursery

MODULE, LISTEN = "pipelined.apps.swarm", "tcp://127.0.0.1:0"
STAGES, LEASE_S = 3, 2.0
TRAINED = (
    f"--exact-sums --preset gpt2-tiny --layers 6 --d-model 64 --heads 4 --dropout 0.1 --stages {STAGES} --batch 16 "
    f"--microbatch 2 --seq 32 --warmup 2 --lease {LEASE_S} --rebalance 1"
)
DATA = ["--data", str(ROOT / "LICENSE")]
SWARMS = ((3, 1), (6, 1), (6, 2), (9, 3))
"""Peers and trainers; the first swarm is left alone."""
PAUSE_S = (0.2, 1.0)
"""Seconds between two strikes."""


@dataclass(frozen=True)
class Options(Reported):
    """Compare the digests of swarms that are struck."""

    steps: int = 40
    """Steps to train."""
    runs: int = 2
    """Runs of each swarm that is struck."""
    seed: int = 0
    """Of the strikes and their moments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(steps=[self.steps], runs=[self.runs])


@dataclass
class Run:
    """A swarm and what happened to it.

    Args:
        strikes: the step at which each was seen, the strike, and the peer.
        moves: peers that reported another stage than before.
        digest: of all parameters after the last step; "": the run failed.
    """

    peers: int
    trainers: int
    strikes: list[str] = field(default_factory=list)
    moves: int = 0
    digest: str = ""

    def count(self, word: str) -> int:
        """Strikes of one kind."""
        return sum(word in strike for strike in self.strikes)


class Swarm:
    """The processes of one swarm.

    Args:
        address: of its coordinator.
    """

    def __init__(self, run: Run, address: str, stack: AsyncExitStack, tasks: Nursery):
        self.run, self._address, self._stack, self._tasks = run, address, stack, tasks
        self._beside: list[asyncio.Task[None]] = []
        self.peers: dict[str, Child] = {}
        self._stopped: set[str] = set()

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until `end`."""
        self._beside.append(self._tasks.create_task(work))

    def end(self) -> None:
        """Cancel what runs beside the training."""
        for task in self._beside:
            task.cancel()

    async def start_peer(self) -> None:
        """Start one more peer."""
        name = f"peer{len(self.peers)}"
        self.peers[name] = await self._start("serve", "--name", name)
        self.beside(self._count_moves(self.peers[name]))

    async def start_trainer(self, name: str, *words: str) -> Child:
        """Start a trainer."""
        return await self._start("train", "--name", name, *TRAINED.split(), *DATA, *words)

    async def _start(self, command: str, *words: str) -> Child:
        at = ["--coordinator", self._address, "--listen", LISTEN]
        return await self._stack.enter_async_context(started(MODULE, [command, *at, *words]))

    async def _count_moves(self, peer: Child) -> None:
        at = ""
        while line := await next_line(peer):
            _, found, after = line.partition(": stage ")
            if found:
                stage = after.partition(":")[0]
                self.run.moves += bool(at) and stage != at
                at = stage

    async def strike(self, draw: random.Random) -> None:
        """Strike at random moments, without end."""
        async with connected(self._address, LISTEN) as (endpoint, directory):
            reader = StatusReader(endpoint, directory, read_goal)
            while True:
                await asyncio.sleep(draw.uniform(*PAUSE_S))
                status = await reader.read()
                if status.step and (spare := spare_peers(status.peers, self._stopped)):
                    name = draw.choice(spare)
                    kind = draw.choice(["SIGKILL", "SIGSTOP"])
                    self.run.strikes.append(f"step {status.step}: {kind} {name}")
                    await self._hit(name, kind, draw.uniform(0.1, 2 * LEASE_S))

    async def _hit(self, name: str, kind: str, stopped_s: float) -> None:
        child = self.peers[name]
        child.send_signal(signal.Signals[kind])
        self._stopped.add(name)
        if kind == "SIGKILL":
            await self.start_peer()
        else:
            self.beside(self._continue(name, stopped_s))

    async def _continue(self, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with suppress(ProcessLookupError):
            self.peers[name].send_signal(signal.SIGCONT)
        self._stopped.discard(name)


def spare_peers(peers: Sequence[PeerStatus], stopped: Container[str]) -> list[str]:
    """Peers that serve and reply, of stages that have another such peer."""
    serving = {
        each.record.name: each.record.stage
        for each in peers
        if each.record.phase == Phase.SERVING and each.reply and each.record.name not in stopped
    }
    stages = list(serving.values())
    return sorted(name for name, stage in serving.items() if stages.count(stage) > 1)


async def train(run: Run, steps: int, draw: random.Random | None) -> None:
    """Train one swarm to its last step, and note the digest that the first trainer prints."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        _, address = await stack.enter_async_context(started_coordinator(MODULE, None, "error"))
        async with Nursery() as tasks:
            swarm = Swarm(run, address, stack, tasks)
            for _ in range(run.peers):
                await swarm.start_peer()
            words = ["--steps", str(steps)]
            first = await swarm.start_trainer("trainer0", *words, "--export", str(Path(folder, "model")))
            for number in range(1, run.trainers):
                swarm.beside(drain(await swarm.start_trainer(f"trainer{number}", *words)))
            if draw is not None:
                swarm.beside(swarm.strike(draw))
            while line := await next_line(first):
                if "digest of all parameters" in line:
                    run.digest = line.split()[-1]
            swarm.end()


async def drain(child: Child) -> None:
    """Read what a process prints, so that it never waits for a reader."""
    while await next_line(child):
        pass


def table(runs: list[Run]) -> str:
    """A line a swarm, as Markdown."""
    lines = ["| peers | trainers | killed | stopped | moved | digest of all parameters |", "|---|---|---|---|---|---|"]
    for run in runs:
        struck = f"{run.count('SIGKILL')} | {run.count('SIGSTOP')} | {run.moves}"
        lines.append(f"| {run.peers} | {run.trainers} | {struck} | {run.digest or 'none: the run failed'} |")
    return "\n".join(lines)


def main() -> int:
    """Read the flags and train; returns the exit code, 1 where digests differ."""
    options = tyro.cli(Options, prog="python -m benchmarks.exact_swarms")
    runs = []
    for number, (peers, trainers) in enumerate(SWARMS):
        for again in range(options.runs if number else 1):
            runs.append(run := Run(peers, trainers))
            draw = random.Random(f"{options.seed} {number} {again}") if number else None
            asyncio.run(train(run, options.steps, draw))
            print(f"{peers} peers, {trainers} trainers: {run.digest} {run.strikes}", file=sys.stderr, flush=True)
    tell(options, [asdict(run) for run in runs], lambda: table(runs))
    return int(len({run.digest for run in runs}) > 1 or not runs[0].digest)


if __name__ == "__main__":
    sys.exit(program(main))
