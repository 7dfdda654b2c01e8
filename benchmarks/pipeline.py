"""How close a step comes to what its schedule allows: `mpirun -n 8 python -m benchmarks.pipeline`.

The real runtime, worker, transport and messages, on emulated devices that take a given time for each forward and
backward. The measure is the slowest rank's step beside the makespan that the virtual clock gives for the same coroutine
with free messages.
"""

import asyncio
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks._emulated import EmulatedJob, Load, slowest_of
from benchmarks._flags import flags
from benchmarks._launch import run_ranks
from benchmarks._results import Reported, tell
from pipelined.actors.actor import Actor
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.price import Costs, price
from pipelined.programs.record import record
from pipelined.schedules import find
from transports import Transport


@dataclass(frozen=True)
class Options(Reported):
    """Time steps of a schedule on emulated devices."""

    schedule: str = "chimera"
    """The schedule's name."""
    microbatches: int = 8
    """N."""
    pipes: int = 0
    """Model replicas inside the group, 2f for chimera."""
    chunks: int = 1
    """Stages a rank holds in one pipe: V for interleaved, 2 for zb_v and dualpipe_v."""
    forward_ms: float = 10.0
    """Milliseconds of a forward through one stage."""
    backward_ms: float = 20.0
    """Milliseconds of a backward through one stage."""
    backward_input_ms: float | None = None
    """Milliseconds of a backward's input half. Open: half of the backward's."""
    backward_weight_ms: float | None = None
    """Milliseconds of a backward's weight half. Open: half of the backward's."""
    activation_bytes: int = 1 << 20
    """Bytes of each activation and each gradient between stages."""
    gradient_bytes: int = 0
    """Bytes of each stage's parameter gradient; 0 leaves the sums out."""
    steps: int = 9
    """Steps timed, after two that are not."""

    @property
    def seconds(self) -> dict[str, float]:
        """What each op takes in one stage."""
        half = self.backward_ms / 2
        halves = {"backward_input": self.backward_input_ms, "backward_weight": self.backward_weight_ms}
        given = {op: half if ms is None else ms for op, ms in halves.items()}
        return {op: ms / 1e3 for op, ms in {"forward": self.forward_ms, "backward": self.backward_ms, **given}.items()}


async def bench(transport: Transport, options: Options) -> int:
    """One rank: walk the schedule again and again, and receive the slowest rank's time of each step."""
    knobs = {"pipes": options.pipes, "chunks": options.chunks}
    plan = Plan(options.schedule, transport.world_size * options.chunks, 1, 1, options.microbatches, knobs)
    gradients = (options.gradient_bytes,) * plan.depth if options.gradient_bytes else ()
    load = Load(options.seconds, options.activation_bytes, gradients)
    async with Actor(transport) as actor:
        job = await asyncio.to_thread(EmulatedJob, actor, plan, load)
        taken = [await slowest_of(actor, step, job.step) for step in range(options.steps + 2)]
    if transport.rank == 0:
        row = await asyncio.to_thread(plain, options, plan, taken[2:])
        tell(options, row, lambda: report(row))
    return 0


def plain(options: Options, plan: Plan, taken: list[float]) -> dict[str, Any]:
    """As JSON can hold it, beside the makespan on the virtual clock."""
    costs = Costs(**options.seconds)
    makespan = price(record(find(plan.schedule), plan.shape, costs), costs).makespan
    step = statistics.median(taken)
    return {
        **asdict(options),
        "depth": plan.depth,
        "cores": len(os.sched_getaffinity(0)),
        "makespan_s": makespan,
        "step_s": step,
        "step_s_min": min(taken),
        "step_s_max": max(taken),
        "ratio": step / makespan,
    }


def report(row: dict[str, Any]) -> str:
    """As a line."""
    step, low, high, ideal = (row[name] * 1e3 for name in ("step_s", "step_s_min", "step_s_max", "makespan_s"))
    shape = f"{row['schedule']} D={row['depth']} N={row['microbatches']}"
    return f"{shape}: step {step:.1f} ms ({low:.1f}-{high:.1f}) beside {ideal:.1f} ms ideal: {row['ratio']:.3f}x"


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = flags(Options, "pipeline")
    return run_ranks(lambda transport: bench(transport, options), alone=8)


if __name__ == "__main__":
    sys.exit(main())
