"""A timeline: the start and end of each instruction of a pipeline group, and figures derived from them."""

from dataclasses import dataclass

from pipelined.programs.instructions import Instruction, Program
from pipelined.programs.staleness import peak_alive, versions_held
from pipelined.schedules import StageMap


@dataclass(frozen=True, slots=True)
class Timed:
    """An instruction with its start and end, in seconds from the start of the step."""

    instruction: Instruction
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The timed instructions of every worker."""

    stage_map: StageMap
    workers: tuple[tuple[Timed, ...], ...]

    @property
    def program(self) -> Program:
        """The instructions of every worker, in order."""
        return Program(self.stage_map, tuple(tuple(timed.instruction for timed in worker) for worker in self.workers))

    @property
    def computations(self) -> list[list[Timed]]:
        """The computations of every worker."""
        return [[timed for timed in worker if timed.instruction.computes] for worker in self.workers]

    @property
    def sums(self) -> list[list[Timed]]:
        """The gradient sums of every worker; only their starts are known here."""
        return [[timed for timed in worker if not timed.instruction.computes] for worker in self.workers]

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return max((timed.end for worker in self.workers for timed in worker), default=0.0)

    @property
    def bubble_ratio(self) -> float:
        """The idle share of all workers' time."""
        busy = sum(timed.end - timed.start for worker in self.workers for timed in worker)
        return 1.0 - busy / (self.makespan * len(self.workers)) if busy else 0.0

    @property
    def peak_activations(self) -> list[float]:
        """The most microbatches alive at once on each worker: forward begun, last backward (half) not ended."""
        pieces = self.stage_map.pieces
        return [count / pieces if pieces > 1 else count for count in map(peak_alive, self.program.workers)]

    @property
    def weight_copies(self) -> list[int]:
        """Copies of weights on each worker: for each of its stages the versions that it holds."""
        return [
            len(self.stage_map.stages_of(worker)) * versions_held(self.stage_map.updates, peak_alive(instructions))
            for worker, instructions in enumerate(self.program.workers)
        ]
