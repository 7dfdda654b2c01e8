"""An all-reduce's time beside MPI's, gloo's and a bare copy's: `mpirun -n 4 python -m benchmarks.all_reduce`.

All sum the same arrays in interleaved rounds of one run; ours from a coroutine, while another task of the loop means to
run every millisecond. After each sum all ranks compare their bits. MPI is started as mpi4py does it, and its rounds
come first, in processes that hold nothing but numpy: once torch.distributed is loaded, memory comes at another price.
"""

import asyncio
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from time import perf_counter
from typing import TYPE_CHECKING

import tyro

from pipelined.errors import UsageError
from pipelined.launch import detect
from transports import Transport, new_event_loop, open_transport

if TYPE_CHECKING:  # MPI is loaded with the transport
    from mpi4py import MPI

    from benchmarks._sums import Contents, Sum

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
HALVES = (MIB, 16 * MIB, 64 * MIB)
SHORT, SHORT_MORE_S = 64 * KIB, {2: 15e-6, 4: 40e-6}
MPI_RATIO = {4 * MIB: {2: 1.0, 4: 0.85}, 16 * MIB: {2: 1.5, 4: 1.2}, 64 * MIB: {2: 3.0, 4: 2.2}}
GLOO_RATIO, LATE_S, HALF_PER_BYTE = {4 * MIB: 3.0}, 5e-3, 2.5
"""What is promised: seconds beyond MPI's up to 64 KiB and ratios to it, by ranks; ratios to gloo (4 where none is
named); how late the other task may run; and how much longer a byte of a half may take than one of float32."""

Taken = Mapping[str, Sequence[float]]
"""Seconds of one sum by contender, round by round; of the slowest rank."""
Pairs = Mapping[str, Sequence[tuple[float, float]]]
"""Our seconds and a peer's in the same rounds, by peer."""

FIRST, SECOND = ("ours", "mpi", "copy"), ("ours", "gloo")
"""Who takes part before and after torch.distributed is loaded."""


@dataclass(frozen=True)
class Options:
    """Time sums over all ranks."""

    sizes: tuple[int, ...] = SIZES
    """Bytes of the float32 arrays."""
    halves: tuple[int, ...] = HALVES
    """Bytes of the bfloat16 and float16 arrays; each of them a size of float32, too."""
    rounds: int = 11
    """Rounds timed, after one that is not."""
    algorithm: str = "auto"
    """How we sum."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.rounds <= 0:
            raise UsageError(f"--rounds must be above 0 (it is {self.rounds}); leave it out or raise it")
        if not self.sizes or min(self.sizes) < 4:
            raise UsageError(f"--sizes must be bytes of one number at least (they are {self.sizes}); leave them out")
        if missing := set(self.halves) - set(self.sizes):
            raise UsageError(f"--halves names sizes that float32 is not timed at ({sorted(missing)}); add to --sizes")

    def calls(self, dtype: str, nbytes: int, ranks: int) -> int:
        """How many sums are timed at a time: what takes milliseconds, and does not overflow."""
        if dtype != "float32":
            return 1
        most = int(40 / log(max(ranks, 2), 10))
        return max(1, min(32, most, 4 * MIB // nbytes))


@dataclass(frozen=True)
class Row:
    """One dtype and size.

    Args:
        late_s: how late the other task was at the worst, in all rounds, on any rank.
        per_byte: our seconds over those of as many bytes of float32; 1 for float32.
    """

    dtype: str
    nbytes: int
    ranks: int
    pairs: Pairs
    late_s: float
    per_byte: float = 1.0

    @property
    def seconds(self) -> float:
        """Our median, in the rounds with the first peer."""
        return statistics.median(ours for ours, _ in next(iter(self.pairs.values())))

    @property
    def algbw(self) -> float:
        """Bytes of the array a second."""
        return self.nbytes / self.seconds

    @property
    def busbw(self) -> float:
        """Bytes a second that each rank sends and receives in the best algorithm for a network: 2(n-1)/n algbw."""
        return 2 * (self.ranks - 1) / self.ranks * self.algbw

    def ratios(self, peer: str) -> list[float]:
        """The peer's time over ours in each round, the least first."""
        return sorted(theirs / ours for ours, theirs in self.pairs[peer])

    def ratio(self, peer: str) -> float:
        return statistics.median(self.ratios(peer))

    @property
    def more_s(self) -> float:
        """Median of the rounds' seconds beyond MPI's."""
        return statistics.median(ours - mpi for ours, mpi in self.pairs["mpi"])

    @property
    def short_of(self) -> list[str]:
        """What is promised and was not seen."""
        found = ["late"] if self.late_s > LATE_S else []
        if "mpi" in self.pairs and not self._beside_mpi():
            found.append("mpi")
        if self.ratio("gloo") < GLOO_RATIO.get(self.nbytes, 4.0) and self.dtype == "float32":
            found.append("gloo")
        return found + (["per byte"] if self.per_byte > HALF_PER_BYTE else [])

    def _beside_mpi(self) -> bool:
        if self.nbytes <= SHORT:
            return self.more_s <= SHORT_MORE_S.get(self.ranks, float("inf"))
        least = next((MPI_RATIO[size] for size in sorted(MPI_RATIO) if self.nbytes <= size), {})
        return self.ratio("mpi") >= least.get(self.ranks, 0.0)

    def plain(self) -> dict[str, object]:
        """As JSON can hold it."""
        derived = ("seconds", "algbw", "busbw", "short_of")
        ratios = {peer: self.ratio(peer) for peer in self.pairs}
        return {**asdict(self), **{name: getattr(self, name) for name in derived}, "ratios": ratios}

    def line(self) -> str:
        """As a row of the table."""
        mpi, copy = f"{'':28}", f"{'':5}"
        if "mpi" in self.pairs:
            mpi, copy = f"{self._spread('mpi')} {self.more_s * 1e6:+9.1f}", f"{self.ratio('copy'):5.2f}"
        verdict = f"  short: {', '.join(self.short_of)}" if self.short_of else ""
        return (
            f"{self.dtype:8} {self.nbytes:9} {self.seconds * 1e6:9.1f} {self.algbw / 1e9:6.2f} {self.busbw / 1e9:6.2f} "
            f"{mpi} {self._spread('gloo')} {copy} {self.late_s * 1e3:4.1f} {self.per_byte:4.2f}{verdict}"
        )

    def _spread(self, peer: str) -> str:
        ratios = self.ratios(peer)
        return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})".ljust(18)


HEAD = (
    f"{'dtype':8} {'bytes':>9} {'us':>9} {'algbw':>6} {'busbw':>6} {'x MPI':18} {'more us':>9} {'x gloo':18} "
    f"{'limit':>5} {'late':>4} {'byte':>4}"
)


class Bench:
    """One rank.

    Args:
        comm: of barriers and comparisons; nothing of it is timed.
        sums: who takes part, by name; others may join.
    """

    def __init__(self, comm: "MPI.Comm", options: Options, sums: "dict[str, Sum]"):
        self._comm, self._options, self.sums, self.late_s = comm, options, sums, defaultdict[tuple, float](float)

    async def rounds(self, dtype: str, nbytes: int, names: Sequence[str]) -> Taken:
        """Rounds of some contenders at one size, the first forgotten."""
        from benchmarks._sums import Contents

        contents = Contents(dtype, nbytes, self._comm.rank)
        calls = self._options.calls(dtype, nbytes, self._comm.size)
        taken = defaultdict[str, list[float]](list)
        for round_ in range(self._options.rounds + 1):
            turn = round_ % len(names)
            for name in (*names[turn:], *names[:turn]):
                seconds, late = await self._timed(name, contents, calls)
                taken[name].append(seconds)
                if name == "ours" and round_:
                    self.late_s[dtype, nbytes] = max(self.late_s[dtype, nbytes], late)
        return {name: several[1:] for name, several in taken.items()}

    async def _timed(self, name: str, contents: "Contents", calls: int) -> tuple[float, float]:
        """Seconds of one sum and the other task's lateness, of the worst rank.

        Raises:
            RuntimeError: ranks ended with different bits, or with another sum.
        """
        from benchmarks._sums import Ticker

        contents.refill()
        self._comm.Barrier()
        async with Ticker() as ticker:
            start = perf_counter()
            for _ in range(calls):
                await self.sums[name](contents.array)
            seconds = (perf_counter() - start) / calls
        self._check(name, contents, calls)
        return tuple(map(max, zip(*self._comm.allgather((seconds, ticker.late_s)), strict=True)))

    def _check(self, name: str, contents: "Contents", calls: int) -> None:
        if name == "copy":
            return
        checksums = self._comm.allgather(contents.checksum())
        if len(set(checksums)) > 1:
            raise RuntimeError(f"{name}: ranks ended with different bits (checksums: {checksums})")
        if calls == 1 and not contents.right(self._comm):
            raise RuntimeError(f"{name}: the sum is wrong")


async def table(bench: Bench, options: Options, ranks: int, gloo: "Callable[[], Sum]") -> list[Row]:
    """Every size of float32, then of the halves.

    Args:
        gloo: makes the peer that needs torch.distributed.
    """
    first = {nbytes: await bench.rounds("float32", nbytes, FIRST) for nbytes in options.sizes}
    bench.sums["gloo"] = gloo()
    wanted = [("float32", nbytes) for nbytes in options.sizes]
    wanted += [(dtype, nbytes) for dtype in ("bfloat16", "float16") for nbytes in options.halves]
    second = {which: await bench.rounds(*which, SECOND) for which in wanted}
    rows = []
    for (dtype, nbytes), taken in second.items():
        beside_mpi = pairs(first[nbytes]) if dtype == "float32" else {}
        per_byte = statistics.median(taken["ours"]) / statistics.median(second["float32", nbytes]["ours"])
        late = bench.late_s[dtype, nbytes]
        rows.append(Row(dtype, nbytes, ranks, {**beside_mpi, **pairs(taken)}, late, per_byte))
    return rows


def pairs(taken: Taken) -> Pairs:
    """Ours beside each other's."""
    return {name: list(zip(taken["ours"], theirs, strict=True)) for name, theirs in taken.items() if name != "ours"}


def told(options: Options, library: str, rows: Sequence[Row]) -> str:
    """The table, or one JSON object."""
    machine = {"mpi": library, "ranks": rows[0].ranks, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    if options.json:
        return json.dumps({**asdict(options), **machine, "rows": [row.plain() for row in rows]})
    kept = sum(not row.short_of for row in rows)
    last = f"{library}; ranks: {machine['ranks']}, cores: {machine['cores']}, load {machine['load']:.1f}"
    return "\n".join([HEAD, *[row.line() for row in rows], f"{last}; {kept} of {len(rows)} rows as promised"])


async def bench(options: Options) -> None:
    """All ranks take part; rank 0 tells."""
    async with await open_transport("mpi://") as transport:
        await _bench(transport, options)


async def _bench(transport: Transport, options: Options) -> None:
    from mpi4py import MPI

    from benchmarks._sums import ByGloo, ByMpi, Copying, Ours

    comm = MPI.COMM_WORLD.Dup()
    here = Bench(comm, options, {"ours": Ours(transport, options.algorithm), "mpi": ByMpi(comm), "copy": Copying()})
    rows = await table(here, options, comm.size, lambda: ByGloo(comm))
    if comm.rank == 0:
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        print(told(options, library, rows), flush=True)
    here.sums["gloo"].close()
    comm.Free()


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = tyro.cli(Options, prog="python -m benchmarks.all_reduce")
    launch = detect(os.environ)
    if launch.url != "mpi://" or (launch.world_size or 1) < 2:
        raise SystemExit("error: ranks of MPI are needed; mpirun -n 4 python -m benchmarks.all_reduce")
    import mpi4py.MPI  # noqa: F401 (before our transport does: with the threads that mpi4py asks for by itself)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bench(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
