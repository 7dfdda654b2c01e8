"""How long the simulator takes for a whole supercomputer: `python -m benchmarks.simulator`.

One step of Chimera with its gradient sums, one coroutine a rank, no group standing for another. The process reads its
own time and its own largest resident memory, so each run is a process of its own.
"""

import resource
import sys
import time
from dataclasses import asdict, dataclass

import tyro

from benchmarks.harness.results import Reported, tell
from collectives import Links
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine, Simulated, StageCosts, Workload, simulate

MACHINE = Machine(Links(alpha=1e-5, beta=1e-10, gamma=5e-11))
STAGE = StageCosts(forward=0.01, backward=0.02, message_bytes=1 << 20, activation_bytes=1 << 26)
PARAMETER_BYTES = 1 << 26
LIMIT_S, LIMIT_BYTES = 10.0, 2 << 30
"""What 2,048 ranks may take."""


@dataclass(frozen=True)
class Options(Reported):
    """Simulate one step and say what that took."""

    schedule: str = "chimera"
    """The schedule's name."""
    depth: int = 32
    """D."""
    microbatches: int = 32
    """N."""
    width: int = 64
    """W."""

    @property
    def plan(self) -> Plan:
        return Plan(self.schedule, self.depth, self.width, 1, self.microbatches)


@dataclass(frozen=True)
class Taken:
    """What simulating one step took.

    Args:
        instructions: of all ranks together.
        step_s: length of the simulated step, in seconds of the virtual clock.
        cpu_s: seconds of one core.
        resident: largest resident memory of the process, in bytes.
    """

    ranks: int
    instructions: int
    step_s: float
    cpu_s: float
    resident: int

    @property
    def within(self) -> bool:
        return self.cpu_s < LIMIT_S and self.resident < LIMIT_BYTES


def simulated(options: Options) -> Simulated:
    """The step."""
    return simulate(options.plan, Workload.even(options.depth, STAGE, PARAMETER_BYTES), MACHINE)


def taken(options: Options) -> Taken:
    """Simulate it under the process's clock."""
    start = time.process_time()
    step = simulated(options)
    seconds = time.process_time() - start
    instructions = sum(len(worker) for group in step.groups for worker in group.workers)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Taken(options.plan.world_size, instructions, step.step_s, seconds, resident)


def main() -> int:
    """Read the flags, simulate, and say what it took."""
    options = tyro.cli(Options, prog="python -m benchmarks.simulator")
    done = taken(options)
    each = done.cpu_s / done.instructions * 1e6
    tell(
        options,
        {**asdict(options), **asdict(done), "within": done.within},
        lambda: (
            f"{options.schedule} D={options.depth} N={options.microbatches} W={options.width}: {done.ranks} ranks, "
            f"{done.instructions} instructions in {done.cpu_s:.1f} s of one core ({each:.0f} us each), "
            f"{done.resident / 2**20:.0f} MiB at most"
        ),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
