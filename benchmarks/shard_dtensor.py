"""Our sharded GPT-2 blocks beside torch's DTensor over gloo: `mpirun -n 2 python -m benchmarks.shard_dtensor`.

Both take turns in the same processes, in rounds of an order of their own, each with the plain blocks' initial values,
input and gradient. Before a size is timed, every output and gradient of each contender must be the plain blocks'.
"""

import asyncio
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from apps.common.lm.sharded.layouts import divides, factors_of
from benchmarks.harness.flags import flags, lacks_ranks
from benchmarks.harness.results import Reported, tell
from benchmarks.pipelines.blocks import HEAD, Contender, SplitBlocks, Whole, Work, apart
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.process.launch import detect
from pipelined.process.memory import frozen_objects, keep_freed
from pipelined.process.refusal import refuse
from pipelined.sharding import MeshGroups
from transports import Transport, new_event_loop, open_transport

if TYPE_CHECKING:  # MPI is loaded with the transport
    from mpi4py import MPI

TORCH = {"dtensor": False, "dtensor sequence": True}
"""Torch's contenders, by whether the stream between multiplications is split by tokens."""
PROMISED = {2: 1.1, 4: 1.2}
"""By number of ranks: the seconds of torch's faster contender over ours."""
NEAR = 1e-4
"""The most by which a result may differ, beside the largest element: sums in float32 are made in another order."""


@dataclass(frozen=True)
class Options(Reported):
    """Time blocks of GPT-2, split over all ranks by this project and by torch."""

    widths: tuple[int, ...] = (256, 512)
    """C."""
    sequences: tuple[int, ...] = (64, 128)
    """Tokens a sequence."""
    batch: int = 4
    """Sequences (B)."""
    layers: int = 4
    """Blocks."""
    layout: str = "megatron"
    """How ours are split: data, megatron or factors, as `apps.gpt2 --layout` has them, without states."""
    algorithm: Literal["auto", "ring"] = "auto"
    """Of our moves: auto, as teams train by default, goes through memory that ranks share; ring sends messages."""
    rounds: int = 11
    """Rounds timed, after one that is not."""
    repeats: int = 3
    """Steps of a contender in its turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch", "layers", "rounds", "repeats"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1 (it is {getattr(self, name)}); leave it out or raise it")
        if divides(self.layout):
            fact = f"whole weights are timed (--layout {self.layout})"
            raise UsageError(f"{fact}; take data, megatron or factors alone")

    def require_fitting(self, ranks: int) -> None:
        """Refuse sizes that torch's contenders cannot split evenly: they split heads and, by `sequence`, tokens.

        Raises:
            UsageError: names the flag, the size, and what fits.
        """
        for name, sizes, unit in (("widths", self.widths, HEAD), ("sequences", self.sequences, 1)):
            for size in sizes:
                if not size or size % (unit * ranks):
                    fact = f"--{name} {size} does not split evenly (ranks: {ranks}, numbers of a head: {HEAD})"
                    raise UsageError(f"{fact}; take multiples of {unit * ranks}")

    @property
    def works(self) -> list[Work]:
        """What is done, one size after another."""
        return [Work(c, t, self.batch, self.layers) for c in self.widths for t in self.sequences]


@dataclass(frozen=True)
class Row:
    """One size.

    Args:
        taken: seconds of a step of the slowest rank, one a round, by contender.
        apart: the largest difference of each contender's results from the plain blocks'.
    """

    work: Work
    ranks: int
    taken: Mapping[str, Sequence[float]]
    apart: Mapping[str, float]

    @property
    def peer(self) -> str:
        """Torch's contender with the least median."""
        return min(TORCH, key=lambda name: statistics.median(self.taken[name]))

    @property
    def ratios(self) -> list[float]:
        """The peer's seconds over ours in each round, the least first."""
        return sorted(theirs / ours for ours, theirs in zip(self.taken["ours"], self.taken[self.peer], strict=True))

    @property
    def kept(self) -> bool | None:
        """Whether the promise is kept; None where nothing is promised."""
        promised = PROMISED.get(self.ranks)
        return None if promised is None else statistics.median(self.ratios) >= promised

    def line(self) -> str:
        """As a row of the table."""
        times = "".join(f"{_spread([1e3 * s for s in seconds], 1):>24}" for seconds in self.taken.values())
        verdict = {None: "", True: "  kept", False: f"  short of {PROMISED.get(self.ranks)}"}[self.kept]
        return f"{self.work.width:>5}{self.work.sequence:>5}{times}  {_spread(self.ratios, 2)}{verdict}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "peer": self.peer, "ratio": statistics.median(self.ratios), "kept": self.kept}


def _spread(numbers: Sequence[float], digits: int) -> str:
    return f"{statistics.median(numbers):.{digits}f} ({min(numbers):.{digits}f}-{max(numbers):.{digits}f})"


def table(options: Options, rows: Sequence[Row]) -> str:
    """A line a size: milliseconds of a step, and the ratio within a round."""
    names = "".join(f"{name + ', ms':>24}" for name in rows[0].taken)
    head = f"{'C':>5}{'T':>5}{names}  torch's faster over ours"
    cores, load = os.cpu_count(), os.getloadavg()[0]
    last = f"{options.layers} blocks, B = {options.batch}, ours by {options.layout}; ranks: {rows[0].ranks}, "
    return "\n".join([head, *(row.line() for row in rows), f"{last}cores: {cores}, load {load:.1f}"])


async def bench(transport: Transport, options: Options) -> None:
    """All ranks take part; rank 0 tells."""
    from mpi4py import MPI
    from torch.distributed.device_mesh import init_device_mesh

    from benchmarks.collectives.sums import ByGloo

    comm, executor = MPI.COMM_WORLD.Dup(), TorchExecutor("cpu", RealClock(), transport.set_computing)
    gloo = ByGloo(comm)
    mesh = init_device_mesh("cpu", (comm.size,))
    network = MeshGroups(transport, 1, through_memory=options.algorithm == "auto")
    try:
        with frozen_objects():
            rows = [await _row(comm, work, options, network, executor, mesh=mesh) for work in options.works]
    finally:
        executor.close()
    if comm.rank == 0:
        plain = {**asdict(options), "ranks": comm.size, "rows": [row.to_dict() for row in rows]}
        tell(options, plain, lambda: table(options, rows))
    gloo.close()
    comm.Free()


async def _row(
    comm: "MPI.Comm", work: Work, options: Options, network: MeshGroups, executor: TorchExecutor, *, mesh: Any
) -> Row:
    """One size.

    Raises:
        RuntimeError: a contender's results are not the plain blocks'.
    """
    from benchmarks.harness.turns import take_turns
    from benchmarks.pipelines.dtensor_blocks import DTensorBlocks

    each: dict[str, Contender] = {"ours": SplitBlocks(work, network, executor, factors_of(options.layout, comm.size))}
    each |= {name: DTensorBlocks(work, mesh, sequence=sequence) for name, sequence in TORCH.items()}
    whole, most = Whole.of(work), dict[str, float]()
    for name, contender in each.items():
        await contender.step()
        most[name], of = max(comm.allgather(apart(contender.results(whole))))
        if not most[name] <= NEAR:
            raise RuntimeError(f"{name}: {of} differs from the plain blocks' by {most[name]:.1e}; times mean nothing")
    calls = {name: contender.step for name, contender in each.items()}
    seed, what = work.width + work.sequence, f"blocks of width {work.width}"
    taken = await take_turns(comm, what, calls, rounds=options.rounds, seed=seed, repeats=options.repeats)
    return Row(work, comm.size, taken, most)


async def _main(options: Options) -> None:
    async with await open_transport("mpi://") as transport:
        await bench(transport, options)


def main() -> int:
    """Read the flags and run on the ranks of MPI that there are."""
    options = flags(Options, "shard_dtensor")
    if refused := lacks_ranks("shard_dtensor"):
        return refused
    launch = detect(os.environ)
    try:
        options.require_fitting(launch.world_size or 1)
    except UsageError as error:
        return refuse(error, launch)
    torch.set_num_threads(1)
    keep_freed()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_main(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
