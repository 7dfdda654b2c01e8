"""What a message costs over MPI beside mpi4py's own calls: `mpirun -n 2 python -m benchmarks.point_to_point`.

Ranks 0 and 1 send each other bodies of many sizes, there and back, by blocking `Send` and `Recv` (raw), as bare buffers
and as addressed messages, in interleaved rounds of one run; further ranks wait, as idle ranks do. Then both compute.
"""

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.harness.flags import flags, lacks_ranks
from benchmarks.harness.results import Reported, tell
from collectives.objects import broadcast_object, gather_objects
from pipelined.errors import UsageError
from pipelined.process.launch import detect
from pipelined.process.run import run
from transports import Transport

ROADS = ("raw", "buffer", "message")
BUFFER_MORE_S, MESSAGE_MORE_S, SMALL = 3e-6, 15e-6, 4 << 10
BANDWIDTH_SHARE, LARGE = 0.9, 1 << 20
MOVING_MORE_S, COMPUTE_SHARE = 2e-3, 0.03
"""What is promised: seconds beyond raw up to 4 KiB, shares of raw's bandwidth from 1 MiB up; beside computing, seconds
beyond those of an idle device, and the share that computing may lose."""


@dataclass(frozen=True)
class Options(Reported):
    """Time messages between two ranks."""

    sizes: tuple[int, ...] = (8, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
    """Bytes of the bodies."""
    rounds: int = 11
    """Rounds timed, after one that is not."""
    moved: int = 32 << 20
    """Bytes after which one road's turn is over, but at most 200 times there and back."""
    beside: int = 16 << 20
    """Bytes of the message that moves while both ranks compute."""
    compute_ms: float = 200.0
    """Milliseconds that both ranks compute at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "moved", "beside", "compute_ms"):
            if getattr(self, name) <= 0:
                fact = f"--{name.replace('_', '-')} must be above 0 (it is {getattr(self, name)})"
                raise UsageError(f"{fact}; leave it out or raise it")
        if not self.sizes or min(self.sizes) <= 0:
            raise UsageError(f"--sizes must be bytes above 0 (they are {self.sizes}); leave them out or name some")

    def turns(self, nbytes: int) -> int:
        """How often a body of this size goes there and back at a time."""
        return max(2, min(200, self.moved // nbytes))


@dataclass(frozen=True)
class Row:
    """One size on one road.

    Args:
        taken_s: seconds of one way, round by round.
        raw_s: those of the raw calls in the same rounds.
    """

    nbytes: int
    road: str
    taken_s: tuple[float, ...]
    raw_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(self.taken_s)

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds

    @property
    def more_s(self) -> float:
        """Median of the rounds' seconds beyond raw."""
        return statistics.median(taken - raw for taken, raw in zip(self.taken_s, self.raw_s, strict=True))

    @property
    def share(self) -> float:
        """Median of the rounds' bandwidth over raw's."""
        return statistics.median(raw / taken for taken, raw in zip(self.taken_s, self.raw_s, strict=True))

    @property
    def within(self) -> bool:
        """Whether what is promised of this size holds."""
        most = {"raw": 0.0, "buffer": BUFFER_MORE_S, "message": MESSAGE_MORE_S}[self.road]
        if self.nbytes <= SMALL:
            return self.more_s <= most
        return self.nbytes < LARGE or self.share >= BANDWIDTH_SHARE

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        derived = ("seconds", "bandwidth", "more_s", "share", "within")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def line(self) -> str:
        """As a row of the table."""
        verdict = "" if self.within else "  short"
        low, high = min(self.taken_s), max(self.taken_s)
        return (
            f"{self.nbytes:9} {self.road:8} {self.seconds * 1e6:9.1f} {self.bandwidth / 1e9:8.3f} "
            f"{self.more_s * 1e6:+9.1f} {self.share:6.2f} ({low * 1e6:.1f}-{high * 1e6:.1f}){verdict}"
        )


HEAD = f"{'bytes':>9} {'road':8} {'us':>9} {'GB/s':>8} {'more us':>9} {'share':>6} (least-most)"


@dataclass(frozen=True)
class Beside:
    """What was seen while both ranks computed; an item a round.

    Args:
        idle_s: seconds of one way while the devices were idle.
        moving_s: the same while they computed.
        lost: share by which polling made the same work longer, the mean of both ranks.
    """

    nbytes: int
    idle_s: tuple[float, ...]
    moving_s: tuple[float, ...]
    lost: tuple[float, ...]

    @property
    def more_s(self) -> float:
        return statistics.median(moving - idle for moving, idle in zip(self.moving_s, self.idle_s, strict=True))

    @property
    def lost_share(self) -> float:
        return statistics.median(self.lost)

    @property
    def within(self) -> bool:
        return self.more_s <= MOVING_MORE_S and self.lost_share <= COMPUTE_SHARE

    def line(self) -> str:
        """As a sentence under the table."""
        verdict = "within" if self.within else "short of"
        return (
            f"while both compute, {self.nbytes / 2**20:g} MiB take {self.more_s * 1e3:+.2f} ms beyond "
            f"{statistics.median(self.idle_s) * 1e3:.2f} ms idle, and polling costs the computing "
            f"{self.lost_share:.1%} ({min(self.lost):.1%} to {max(self.lost):.1%}): {verdict} what is promised"
        )


def rows_of(taken: Mapping[int, Mapping[str, Sequence[float]]]) -> list[Row]:
    """A row for every size on every road, out of seconds by size and road."""
    return [
        Row(nbytes, road, tuple(roads[road]), tuple(roads["raw"])) for nbytes, roads in taken.items() for road in ROADS
    ]


def plain(options: Options, library: str, rows: Sequence[Row], beside: Beside) -> dict[str, Any]:
    """As JSON can hold it."""
    machine = {"mpi": library, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    besides = {**asdict(beside), "more_s": beside.more_s, "lost_share": beside.lost_share, "within": beside.within}
    return {**asdict(options), **machine, "rows": [row.to_dict() for row in rows], "beside": besides}


def report(library: str, rows: Sequence[Row], beside: Beside) -> str:
    """The table."""
    within = sum(row.within for row in rows)
    lines = [HEAD, *[row.line() for row in rows], beside.line()]
    return "\n".join(
        [*lines, f"{library}; {within} of {len(rows)} within what is promised; load {os.getloadavg()[0]:.1f}"]
    )


async def bench(transport: Transport, options: Options) -> int:
    """One rank: of the pair that talks, or waiting."""
    from mpi4py import MPI

    from benchmarks.links.mpi_pair import Pair

    comm = MPI.COMM_WORLD.Dup()
    taken, beside = {}, ([], [], [])
    if transport.rank < 2:
        pair = Pair(transport, comm, options.rounds)
        taken = await pair.sizes({nbytes: options.turns(nbytes) for nbytes in options.sizes})
        beside = await pair.beside(options.beside, options.compute_ms / 1e3)
    lost = await gather_objects(transport, "lost", beside[2])
    await broadcast_object(transport, "over", True)
    comm.Free()
    if transport.rank == 0:
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        both = tuple(map(statistics.mean, zip(*lost[:2], strict=True)))
        found = library, rows_of(taken), Beside(options.beside, *map(tuple, beside[:2]), both)
        tell(options, plain(options, *found), lambda: report(*found))
    return 0


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = flags(Options, "point_to_point")
    torch.set_num_threads(1)
    if refused := lacks_ranks("point_to_point"):
        return refused
    launch = detect(os.environ)
    return run(launch, launch.world_size, lambda transport: bench(transport, options))


if __name__ == "__main__":
    sys.exit(main())
