"""Checks of flags against the plan that every program of pipelines makes before torch is imported."""

from apps.common.flags import RunFlags
from pipelined.errors import UsageError
from pipelined.programs.exact_grid import require_exact
from pipelined.programs.plan import Plan
from pipelined.training.exchange.compression import check_codec
from pipelined.training.loss_scale import require_scalable
from pipelined.training.sums.halves import require_divisible


def check_training(config: RunFlags, plan: Plan) -> None:
    """Refuse what the trainer would refuse later, and a learning rate that does not fall.

    Raises:
        UsageError: the first mistake found, with its remedy.
    """
    if config.divides:
        require_divisible(plan, config.all_reduce)
    check_codec(config.compress, "--compress")
    if config.exact_sums:
        require_exact(plan, config.compress)
    if config.dtype == "float16":
        require_scalable(plan, config.exact_sums)
    _check_rate(config)


def _check_rate(config: RunFlags) -> None:
    if config.min_lr is None:
        return
    if config.lr_schedule == "constant":
        fact = f"a constant learning rate does not fall to --min-lr {config.min_lr:g}"
        raise UsageError(f"{fact}; leave --min-lr out, or choose another --lr-schedule")
    if config.min_lr > config.lr:
        raise UsageError(f"--min-lr is above --lr ({config.min_lr:g}, {config.lr:g}); lower it, or leave it out")
