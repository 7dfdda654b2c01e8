"""Many peers that start at once: `python -m benchmarks.swarm_start`.

The system's own actors on the virtual clock: a directory with a journal that takes 2 ms to write, one trainer, and so
many peers without an assigned stage. Virtual seconds are the same on any machine; the seconds of a core are this
machine's.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tyro

from benchmarks.harness.memory_disk import MemoryDisk
from benchmarks.swarm.devices import Relay
from pipelined.aio.clock import run_virtual
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.swarm_stage import Microbatch
from tests.swarm.virtual_parties import DIRECTORY, VirtualParties
from transports.rpc.virtual.network import VirtualNetwork

DELAY_S, JITTER_S, WRITE_S = 1e-3, 5e-4, 2e-3
PASS_S = 3600.0
"""Of a device: nothing of a step is done while peers come."""
PROMISED_S = 3.0


@dataclass(frozen=True)
class Options:
    """Say how long it takes until all know all."""

    peers: tuple[int, ...] = (64, 128, 256, 400)
    """How many start."""
    stages: int = 4
    json: bool = False
    """Print one JSON object instead of a table."""


@dataclass(frozen=True)
class Start:
    """What came of one start.

    Args:
        seconds: virtual ones, until every peer knows that its stage serves.
        core_s: of this machine's core.
        spread: peers of the largest stage less those of the smallest.
    """

    peers: int
    stages: int
    seconds: float
    core_s: float
    spread: int

    @property
    def kept(self) -> bool:
        return self.seconds <= PROMISED_S and self.spread <= 1


def start(peers: int, stages: int) -> Start:
    """Let so many peers start at once."""
    began = time.process_time()
    seconds, sizes = run_virtual(_play(peers, stages))
    return Start(peers, stages, seconds, time.process_time() - began, max(sizes) - min(sizes))


async def _play(peers: int, stages: int) -> tuple[float, list[int]]:
    """Seconds until all know all, and how many are at each stage."""
    rules = Rules("start", stages, stages, 1.0, rebalance_s=0.0)
    parties = VirtualParties(VirtualNetwork(delay=DELAY_S, jitter=JITTER_S), rules, patience=30.0)
    parties.start_directory(MemoryDisk(lambda: parties.clock(DIRECTORY).sleep(WRITE_S)))
    for number in range(peers):
        parties.start_peer(f"peer-{number:04}", lambda _: Relay(1), {"forward": PASS_S, "backward": PASS_S})
    parties.start_trainer("trainer", _data, 1)
    trainer = parties.trainers["trainer"].view
    views = [trainer, *(each.view for each in parties.peers.values())]
    await asyncio.gather(*(_sees(view, peers, stages) for view in views))
    now = asyncio.get_running_loop().time()
    sizes = [len(trainer.serving(stage)) for stage in range(stages)]
    await parties.close()
    return now, sizes


async def _sees(view: SwarmView, peers: int, stages: int) -> None:
    """Wait until a trainer sees all peers serve, or a peer all of its stage: an even part of them."""
    if view.stages is None:
        await view.wait_for(lambda: sum(len(view.serving(stage)) for stage in range(stages)) == peers)
    else:
        await view.wait_for(lambda: any(len(view.serving(stage)) >= peers // stages for stage in view.stages))


def _data(microbatch: Microbatch) -> tuple[Sequence[Any], Sequence[Any]]:
    return Relay(1).forward(microbatch, []), Relay(1).forward(microbatch, [])


def line(found: Start) -> str:
    verdict = "kept" if found.kept else "NOT kept"
    return f"{found.peers:5} {found.stages:6} {found.seconds:12.3f} {found.core_s:12.1f} {found.spread:6}  {verdict}"


def main() -> int:
    """Read the flags, play, and show what came of it."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_start")
    found = [start(each, options.stages) for each in options.peers]
    if options.json:
        print(json.dumps({"starts": [asdict(each) | {"kept": each.kept} for each in found]}))
        return 0
    print(f"peers stages  virtual, s  of a core, s spread  within {PROMISED_S:g} s, and even")
    print("\n".join(map(line, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
