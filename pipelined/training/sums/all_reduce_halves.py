"""The all-reduces by which gradients are summed with `shard_optimizer`. No torch."""

from typing import NamedTuple

from collectives.algorithms import AUTO, names_in
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan, PlanError


class Halves(NamedTuple):
    """The reduce-scatter and the all-gather that an all-reduce consists of; they sum in its order."""

    reduce_scatter: str
    all_gather: str


HALVES = {
    AUTO: Halves(AUTO, AUTO),
    "ring": Halves("ring", "ring"),
    "rabenseifner": Halves("halving", "doubling"),
    "shared": Halves("shared", "shared"),
}
"""By the name of an all-reduce."""


def require_divisible(plan: Plan, all_reduce: str) -> None:
    """Refuse what the holders of a parameter cannot divide its update with.

    Raises:
        PlanError: the schedule has no flush: each version of its weights is updated as a whole.
        UsageError: an all-reduce that does not consist of a reduce-scatter and an all-gather.
    """
    if not plan.flushes:
        fact = f"{plan.schedule} keeps versions of its weights, which each holder updates as a whole"
        raise PlanError(f"{fact}; `shard_optimizer=` needs a schedule with a flush, such as `schedule=one_f_one_b`")
    for name in sorted(({all_reduce} if all_reduce == AUTO else names_in(all_reduce)) - HALVES.keys()):
        fact = f"the all-reduce {name} has no reduce-scatter half"
        raise UsageError(f"{fact}, as `shard_optimizer=` needs; use `all_reduce=` {', '.join(HALVES)}")
