"""An all-reduce's time beside MPI's, gloo's and a bare pass's: `mpirun -n 4 python -m benchmarks.all_reduce`; with
`--collective all_gather`, `reduce_scatter` or `all_to_all` another collective's beside MPI's.

All sum the same arrays in interleaved rounds of one run; ours from a coroutine, while another task of the loop means to
run every millisecond. After each sum all ranks compare their bits. MPI's rounds come first, in processes that hold
nothing but numpy: once torch.distributed is loaded, memory comes at another price.
"""

import asyncio
import gc
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import log
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.collectives.sum_row import HEAD, KIB, MIB, Row, Taken, pairs
from benchmarks.harness.flags import flags, lacks_ranks
from benchmarks.harness.results import Reported, tell
from pipelined.errors import UsageError
from pipelined.process.memory import frozen_objects
from transports import Transport, new_event_loop, open_transport

if TYPE_CHECKING:  # MPI is loaded with the transport
    from mpi4py import MPI

    from benchmarks.collectives.sums import Contents, Sum

SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
HALVES = (MIB, 16 * MIB, 64 * MIB)
FIRST, SECOND, ALONE = ("ours", "mpi", "pass", "alone"), ("ours", "gloo"), ("alone",)
"""The contenders before and after torch.distributed is loaded, and those that also sum halves after it."""


@dataclass(frozen=True)
class Options(Reported):
    """Time sums over all ranks, or another collective beside MPI's alone."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"] = "all_reduce"
    """What is timed."""
    sizes: tuple[int, ...] = SIZES
    """Bytes of the float32 arrays."""
    halves: tuple[int, ...] = HALVES
    """Bytes of the bfloat16 and float16 arrays; each of them a size of float32, too."""
    rounds: int = 11
    """Rounds timed, after one that is not."""
    algorithm: str = "auto"
    """How we sum."""
    arrays: Literal["own", "allocated"] = "own"
    """What we sum: arrays of the caller's own, or such as `collectives.allocate` gives. The others sum the former."""
    threads: Literal["funneled", "multiple"] = "funneled"
    """Which threads may call MPI: one, as programs of this runtime start it, or all, as mpi4py does by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds <= 0:
            raise UsageError(f"--rounds must be above 0 (it is {self.rounds}); leave it out or raise it")
        if not self.sizes or min(self.sizes) < 4:
            raise UsageError(f"--sizes must be bytes of one number at least (they are {self.sizes}); leave them out")
        if self.collective == "all_reduce" and (missing := set(self.halves) - set(self.sizes)):
            raise UsageError(f"--halves names sizes that float32 is not timed at ({sorted(missing)}); add to --sizes")

    def calls(self, dtype: str, nbytes: int, ranks: int) -> int:
        """How many sums are timed at a time: what takes milliseconds, and does not overflow."""
        most = int((40 if dtype == "float32" else 4) / log(max(ranks, 2), 10))
        return max(1, min(32, most, 4 * MIB // nbytes))


class Bench:
    """One rank.

    Args:
        comm: of barriers and comparisons; nothing of it is timed.
        sums: the contenders, by name; others may join.
    """

    def __init__(self, comm: "MPI.Comm", options: Options, sums: "dict[str, Sum]"):
        self._comm, self._options, self.sums = comm, options, sums
        self.late_s, self.held_s = defaultdict[tuple, float](float), defaultdict[tuple, float](float)
        self.extra = dict[tuple, int]()

    async def rounds(self, dtype: str, nbytes: int, names: Sequence[str]) -> Taken:
        """Rounds of some contenders at one size, the first forgotten; each in an order of its own, because a long
        computation leaves the ranks unevenly spread over the cores that they share.
        """
        from benchmarks.collectives.sums import Contents

        contents = Contents(dtype, nbytes, self._comm.rank)
        memory = await self.sums["ours"].memory(nbytes)
        ours = contents if memory is None else Contents(dtype, nbytes, self._comm.rank, memory)
        calls = self._options.calls(dtype, nbytes, self._comm.size)
        self.extra[dtype, nbytes] = max(self._comm.allgather(await self.sums["ours"].extra(contents.array)))
        taken, which, order = defaultdict[str, list[float]](list), (dtype, nbytes), Random(nbytes)
        for round_ in range(self._options.rounds + 1):
            for name in order.sample(names, len(names)):
                seconds, late, held = await self._timed(name, ours if name == "ours" else contents, calls)
                taken[name].append(seconds)
                if name == "ours" and "alone" in names:
                    self.sums["alone"].seconds = seconds
                if round_:
                    self.late_s[name, *which] = max(self.late_s[name, *which], late)
                    self.held_s[name, *which] = max(self.held_s[name, *which], held)
        return {name: several[1:] for name, several in taken.items()}

    async def _timed(self, name: str, contents: "Contents", calls: int) -> tuple[float, float, float]:
        """Seconds of one sum and the other task's lateness, in all and by the rank's own work, of the worst rank.

        Raises:
            RuntimeError: ranks ended with different bits, or with another sum.
        """
        from benchmarks.collectives.sums import Ticker
        from benchmarks.harness.turns import meet

        contents.refill()
        meet(self._comm)
        self._comm.Barrier()
        async with Ticker() as ticker:
            start = perf_counter()
            for _ in range(calls):
                await self.sums[name](contents.array)
            seconds = (perf_counter() - start) / calls
        meet(self._comm)
        self._check(name, contents, calls)
        return tuple(map(max, zip(*self._comm.allgather((seconds, ticker.late_s, ticker.held_s)), strict=True)))

    def _check(self, name: str, contents: "Contents", calls: int) -> None:
        if name in ("pass", "alone"):
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
    gc.freeze()  # torch, too, which a training process loads before all else
    wanted = [("float32", nbytes) for nbytes in options.sizes]
    wanted += [(dtype, nbytes) for dtype in ("bfloat16", "float16") for nbytes in options.halves]
    second = {
        (dtype, nbytes): await bench.rounds(dtype, nbytes, SECOND if dtype == "float32" else SECOND + ALONE)
        for dtype, nbytes in wanted
    }
    rows = []
    for (dtype, nbytes), taken in second.items():
        beside_mpi = pairs(first[nbytes]) if dtype == "float32" else {}
        per_byte = statistics.median(taken["ours"]) / statistics.median(second["float32", nbytes]["ours"])
        late, floor = (bench.late_s[name, dtype, nbytes] for name in ("ours", "alone"))
        held, extra = bench.held_s["ours", dtype, nbytes], bench.extra[dtype, nbytes]
        rows.append(Row(dtype, nbytes, ranks, {**beside_mpi, **pairs(taken)}, late, held, floor, extra, per_byte))
    return rows


def plain(options: Options, library: str, rows: Sequence[Row]) -> dict[str, Any]:
    """As JSON can hold it."""
    machine = {"mpi": library, "ranks": rows[0].ranks, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    return {**asdict(options), **machine, "rows": [row.to_dict() for row in rows]}


def report(options: Options, library: str, rows: Sequence[Row]) -> str:
    """The table."""
    kept = sum(not row.short_of for row in rows)
    last = f"{library}, threads: {options.threads}; arrays: {options.arrays}; ranks: {rows[0].ranks}, "
    last += f"cores: {os.cpu_count()}, load {os.getloadavg()[0]:.1f}"
    return "\n".join([HEAD, *[row.line() for row in rows], f"{last}; {kept} of {len(rows)} rows as promised"])


async def bench(options: Options) -> None:
    """All ranks take part; rank 0 tells."""
    async with await open_transport("mpi://") as transport:
        await _bench(transport, options)


async def _bench(transport: Transport, options: Options) -> None:
    from mpi4py import MPI

    from benchmarks.collectives.sums import Alone, ByGloo, ByMpi, OnePass, Ours

    comm = MPI.COMM_WORLD.Dup()
    library = " ".join(MPI.Get_library_version().splitlines()[0].partition(",")[0].strip("\0").split())
    if options.collective != "all_reduce":
        await _bench_shards(transport, comm, options, library)
        return comm.Free()
    sums = {
        "ours": Ours(transport, options.algorithm, options.arrays == "allocated"),
        "mpi": ByMpi(comm),
        "pass": OnePass(),
        "alone": Alone(),
    }
    here = Bench(comm, options, sums)
    rows = await table(here, options, comm.size, lambda: ByGloo(comm))
    if comm.rank == 0:
        tell(options, plain(options, library, rows), lambda: report(options, library, rows))
    here.sums["gloo"].close()
    comm.Free()


async def _bench_shards(transport: Transport, comm: "MPI.Comm", options: Options, library: str) -> None:
    """Every size of one of the other collectives, beside MPI's."""
    from benchmarks.collectives.shard_row import HEAD
    from benchmarks.collectives.shards import shard_row
    from collectives import Group

    group, rounds = Group(transport, range(comm.size), 1), options.rounds
    rows = [
        await shard_row(group, comm, options.collective, nbytes=nbytes, arrays=options.arrays, rounds=rounds)
        for nbytes in options.sizes
    ]
    if comm.rank == 0:
        last = f"{library}; arrays: {options.arrays}; ranks: {comm.size}, cores: {os.cpu_count()}"
        lines = [HEAD, *(row.line() for row in rows), f"{last}, load {os.getloadavg()[0]:.1f}"]
        machine = {"mpi": library, "ranks": comm.size, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
        plain = {**asdict(options), **machine, "rows": [row.to_dict() for row in rows]}
        tell(options, plain, lambda: "\n".join(lines))


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = flags(Options, "all_reduce")
    if refused := lacks_ranks("all_reduce"):
        return refused
    if options.threads == "multiple":
        import mpi4py.MPI  # noqa: F401 (before the transport loads it: with what mpi4py asks for by itself)

    with frozen_objects(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bench(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
