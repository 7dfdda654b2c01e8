"""Which source files one frame runs through: `mpirun -n 2 python -m benchmarks.frame_files`.

The same under torchrun (TCP) and without a launcher (two ranks in this process). Rank 0 sends a message of each size to
rank 1, and every function that starts or goes on meanwhile is noted with its file, from the call of `send` until the
sender has its arrays back and the receiver the frame. With `--swarm` one quiet step of a swarm in this
process is watched instead, from commit to commit: no member joins, leaves or is late. The virtual clock, the virtual
network and its slow links are left out of the files of a step: they stand for a machine's clock and for sockets.
"""

import asyncio
import json
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.harness.flags import flags
from benchmarks.harness.launch import run_ranks
from benchmarks.harness.results import ROOT
from collectives.objects import gather_objects
from pipelined.aio.clock import run_virtual
from pipelined.programs.addresses import Activation
from transports import Transport

STAND_INS = ("pipelined/aio/clock.py", "transports/emulation/", "transports/rpc/virtual/")
"""Of a step on the virtual clock, the files that stand for a clock and a network; a step on real ones runs none."""
FLOORS = ("transports", "collectives", "pipelined", "apps")
WARM_UP, WATCHED = 3, 20
"""Frames of each size that come first and are not watched, and that are; of the swarm one step is, after as many."""


@dataclass(frozen=True)
class Options:
    """Name the source files that one frame, or one step of a swarm, runs through."""

    sizes: tuple[int, ...] = (1 << 10, 1 << 18)
    """Bytes of the frames' bodies."""
    swarm: bool = False
    """Watch a step of a swarm instead of a frame."""
    json: bool = False
    """Print JSON."""


class Watch:
    """Notes the project's files with a function that runs while it is on; on the thread that turned it on.

    Attributes:
        files: relative to the root, with the functions of each.
    """

    def __init__(self, root: Path = ROOT):
        self._root = f"{root}/"
        self.files = dict[str, set[str]]()

    @contextmanager
    def on(self) -> Iterator[None]:
        """A block in which it notes; its own frames do not count."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(self._root):
            path = name.removeprefix(self._root)
            if path.split("/")[0] in FLOORS:
                self.files.setdefault(path, set()).add(frame.f_code.co_qualname)

    def to_dict(self) -> dict[str, list[str]]:
        return {path: sorted(functions) for path, functions in sorted(self.files.items())}


async def frame(transport: Transport, watch: Watch, key: tuple[int | str, ...], body: np.ndarray) -> None:
    """Send one frame from rank 0 to rank 1, in a task of its own at each end, and watch both."""
    if transport.rank == 0:
        await transport.receive(1, ("ready", *key))
        await watched(watch, transport.send(1, key, body))
    elif transport.rank == 1:
        await transport.send(0, ("ready", *key))
        await watched(watch, transport.receive(0, key))


async def watched(watch: Watch, work: Coroutine[Any, Any, Any]) -> None:
    """Do this in a task of its own: so the coroutines that wait for it do not go on while it is watched."""

    async def alone() -> None:
        with watch.on():
            await work

    await asyncio.create_task(alone())


async def files_of_frames(transport: Transport, sizes: Sequence[int]) -> list[dict[str, list[str]]]:
    """One rank: send frames of each size; rank 0 returns what ran at either end, the others nothing."""
    watch, unwatched = Watch(), Watch()
    for step in range(WARM_UP + WATCHED):
        for size in sizes:
            key = Activation(step=step, pipe=0, stage=1, microbatch=size).key
            await frame(transport, watch if step >= WARM_UP else unwatched, key, np.zeros(size, np.uint8))
    return await gather_objects(transport, "files", watch.to_dict())


def together(ends: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    """What ran at either end."""
    return {
        path: sorted({each for end in ends for each in end.get(path, [])})
        for path in sorted({p for e in ends for p in e})
    }


def files_of_a_step() -> dict[str, list[str]]:
    """One step of a swarm of two stages with two peers each, and a trainer, on the virtual clock."""
    from benchmarks.swarm.devices import Work
    from benchmarks.swarm.parties import training
    from benchmarks.swarm.setting import Actors

    actors = Actors([[1.0, 1.0], [1.0, 1.0]], Work(0.01, 0.02), slots=2, batch=8, rtt=0.01, tensor=1024.0, sums=4096.0)
    watch = Watch()

    async def play() -> None:
        async with training(actors) as swarm:
            await swarm.stands(WARM_UP)
            with watch.on():
                await swarm.stands(WARM_UP + 1)

    run_virtual(play())
    return {path: functions for path, functions in watch.to_dict().items() if not path.startswith(STAND_INS)}


def report(files: dict[str, list[str]], what: str, options: Options) -> str:
    """The files with the functions of each, for people; with --json for programs."""
    if options.json:
        return json.dumps({"what": what, "count": len(files), "files": files})
    lines = [f"{path:44} {', '.join(functions)}" for path, functions in files.items()]
    return "\n".join([f"{what}: {len(files)} files", *lines])


def main() -> int:
    """Run the program; returns the exit code."""
    options = flags(Options, "frame_files")
    if options.swarm:
        print(report(files_of_a_step(), "a quiet step of a swarm", options))
        return 0

    async def program(transport: Transport) -> int:
        if ends := await files_of_frames(transport, options.sizes):
            print(report(together(ends), f"a frame by {type(transport).__name__}", options), flush=True)
        return 0

    return run_ranks(program, alone=2, exactly=2)


if __name__ == "__main__":
    sys.exit(main())
