"""The bytes that each link carries in a step, in closed form: activations, gradients, gradient sums and step totals.

These are payload bytes as transports count them (`Traffic.bytes_to`), without headers. A link leads from one rank to
another; a message from a rank to itself uses no link. The moves within a team are not among them.
"""

from collections import Counter
from itertools import product

from collectives import Links, ProblemSize
from collectives.algorithms import ALL_REDUCE, algorithm_for
from pipelined.programs.plan import Plan
from pipelined.programs.updates.step_totals import StepTotals
from pipelined.simulation.workload import Workload

Link = tuple[int, int]
"""(from rank, to rank)."""
TOTALS_ITEM = 8
"""Bytes of one number of the step totals, a float64."""


def link_bytes(plan: Plan, workload: Workload, all_reduce: str) -> dict[Link, int]:
    """Bytes by link.

    Args:
        all_reduce: the name of an algorithm of `collectives.all_reduce` with closed forms.
    """
    traffic: Counter[Link] = message_bytes(plan, workload)
    for bucket in workload.parameters:
        for member in range(plan.tensor):
            holders = plan.holders(*bucket.stages, member=member)
            update_bytes = sum_bytes(holders, bucket.sum_bytes, bucket.sum_itemsize, all_reduce)
            traffic += Counter({link: nbytes * plan.updates_a_step for link, nbytes in update_bytes.items()})
    all_ranks = tuple(range(plan.world_size))
    return dict(traffic + sum_bytes(all_ranks, totals_bytes(plan, workload), TOTALS_ITEM, "auto"))


def message_bytes(plan: Plan, workload: Workload) -> Counter[Link]:
    """Bytes by link of the pipelines' messages: an activation and a gradient per microbatch and boundary."""
    stage_map = plan.stage_map
    traffic = Counter[Link]()
    for pipe, microbatches in enumerate(stage_map.microbatches):
        for stage in range(plan.depth - 1):
            nbytes = len(microbatches) * workload.stages[stage].message_bytes // stage_map.pieces
            for group, member in product(range(plan.width), range(plan.tensor)):
                source, target = (plan.holder(group, pipe, end_stage, member) for end_stage in (stage, stage + 1))
                if source != target and nbytes:
                    traffic[source, target] += nbytes
                    traffic[target, source] += nbytes
    return traffic


def sum_bytes(ranks: tuple[int, ...], nbytes: int, itemsize: int, algorithm: str) -> Counter[Link]:
    """Bytes by link of one all-reduce over these ranks; `auto` chooses by a group's default link costs."""
    problem = ProblemSize.on_one_node(len(ranks), nbytes, itemsize)
    forms = ALL_REDUCE.closed_forms_for(algorithm_for(algorithm, nbytes), problem, Links())
    traffic = Counter[Link]()
    for index, rank in enumerate(ranks):
        for peer, peer_bytes in forms.bytes_to(problem, index).items():
            traffic[rank, ranks[peer]] += peer_bytes
    return traffic


def totals_bytes(plan: Plan, workload: Workload) -> int:
    """Bytes of the step totals, which all ranks sum at the end of a step."""
    names = [""] * (workload.tensors * plan.tensor)  # a norm of each member's piece
    return len(StepTotals(names, plan.total_microbatches, 0 if plan.flushes else plan.depth)) * TOTALS_ITEM
