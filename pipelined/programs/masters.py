"""What goes with masters: copies of the parameters that the optimizer updates in their place. No torch."""

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan, PlanError


def require_masters(plan: Plan, *, offload: bool, delayed: bool, scaled: bool) -> None:
    """Refuse masters that do not go with the plan, with a delayed update, or with a loss that is scaled.

    Raises:
        PlanError: the schedule has no flush, or a step could be skipped whose update is delayed.
        UsageError: a delayed update that is not made in host memory.
    """
    if not plan.flushes:
        fact = f"{plan.schedule} keeps versions of its weights, which the optimizer updates in place"
        raise PlanError(f"{fact}; masters need a schedule with a flush, such as `schedule=one_f_one_b`")
    if delayed and not offload:
        fact = "a delayed update runs on the host while the device computes the next step"
        raise UsageError(f"{fact}; add `offload_optimizer=`, or leave `delayed_update=` out")
    if delayed and scaled:
        fact = "a step that overflows in float16 is skipped, and a delayed update has no step to skip"
        raise PlanError(f"{fact}; train in bfloat16, which needs no loss scale")
