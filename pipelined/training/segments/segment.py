"""A segment: the run of steps from one drain to the next, as the trainer sees it.

The schedule runs through all steps of a segment. Beside it the trainer completes each step in order: it waits until the
step's gradients are computed and summed, agrees with all ranks on loss and norm, and lets the segment update.
"""

from abc import ABC, abstractmethod

from pipelined.programs.updates.step_totals import StepAccount


class Segment(ABC):
    """One segment of one rank; steps are numbered from its beginning."""

    @abstractmethod
    async def run(self) -> None:
        """Run the schedule up to the drain."""

    @abstractmethod
    async def admits(self, index: int) -> bool:
        """Whether a step is in the segment; waits until this is decided."""

    @abstractmethod
    async def wait_for_sums(self, index: int) -> StepAccount:
        """Wait until all gradients of a step are computed and summed; call this once a step, in order."""

    @abstractmethod
    async def update(self, rate: float | None, gradient_scale: float) -> None:
        """Update the parameters now that all ranks have agreed on the completed step.

        Args:
            rate: the learning rate.
            gradient_scale: the factor for all gradients.
        """

    @abstractmethod
    def record_agreed(self, index: int, stop: bool) -> None:
        """Record that all ranks have agreed on a step, and begin the steps that may now enter.

        Args:
            stop: whether the segment is to end early.
        """
