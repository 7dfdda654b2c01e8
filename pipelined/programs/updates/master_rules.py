"""The checks of masters, copies of the parameters that the optimizer updates in their place. No torch."""

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan, PlanError


def require_flush(plan: Plan) -> None:
    """Refuse masters with a schedule without a flush.

    Raises:
        PlanError: it has none.
    """
    if not plan.flushes:
        fact = f"{plan.schedule} keeps versions of its weights, which the optimizer updates in place"
        raise PlanError(f"{fact}; masters need a schedule with a flush, such as `schedule=one_f_one_b`")


def require_delayed(*, offload: bool, delayed: bool, scaled: bool) -> None:
    """Refuse a delayed update that is not made in host memory, or of a loss that is scaled.

    Raises:
        PlanError: the loss is scaled, so a step could be skipped before its delayed update.
        UsageError: the update is made on the device.
    """
    if delayed and not offload:
        fact = "a delayed update runs on the host while the device computes the next step"
        raise UsageError(f"{fact}; add `offload_optimizer=`, or leave `delayed_update=` out")
    if delayed and scaled:
        fact = "a step that overflows in float16 is skipped, and a delayed update has no step to skip"
        raise PlanError(f"{fact}; train in bfloat16, which needs no loss scale")
