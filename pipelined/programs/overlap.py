"""The gradient sums that overlap the computation: those that start before their worker has finished.

A stage's sum starts right after its last backward if and only if the worker has an idle gap after it. Without a gap the
sum would only slow the computation down. Source: Chimera (2021), section 3.2.
"""

from pipelined.programs.timeline import Timed, Timeline

SYNCS = ("eager", "gap", "after")
"""When a stage's gradient sum starts: after its last backward; there only if an idle gap follows; after the flush."""
SHORTEST = 1e-9  # the shortest gap, as a share of the makespan; less is rounding


def overlapped_stages(timeline: Timeline) -> frozenset[tuple[int, int]]:
    """The (worker, stage) pairs with a gradient sum that starts right after the stage's last backward.

    For two pipes of Chimera with B > F and free messages these are the stages above D/2. A stage without a microbatch
    on a worker has no last backward there and is left out.
    """
    return frozenset(
        (index, stage) for index, worker in enumerate(timeline.workers) for stage in _before_last_gap(timeline, worker)
    )


def _before_last_gap(timeline: Timeline, worker: tuple[Timed, ...]) -> set[int]:
    """The stages with no instruction on this worker after its last gap."""
    shortest = SHORTEST * timeline.makespan
    gaps = [position for position in range(1, len(worker)) if _gap(worker, position) > shortest]
    if not gaps:
        return set()
    after = {timed.instruction.stage for timed in worker[gaps[-1] :]}
    return {timed.instruction.stage for timed in worker} - after


def _gap(worker: tuple[Timed, ...], position: int) -> float:
    return worker[position].start - worker[position - 1].end
