"""The numerics that the flags of a training program request. Needs torch."""

import torch

from apps.common.flags.run_flags import RunFlags
from pipelined.training.job.numerics import Numerics

DTYPES = {
    **dict.fromkeys(("float32", "bfloat16", "float16"), torch.float32),
    **{"float64": torch.float64, "bfloat16-parameters": torch.bfloat16},
}
"""The dtype of parameters and sums."""
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The dtype of matrix products inside the forward."""
MASTERS = {"bfloat16-parameters": torch.float32}
"""The dtype of the copies that the optimizer updates, where it is not that of the parameters."""


def numerics(config: RunFlags) -> Numerics:
    """The dtypes and codecs that the flags request."""
    return Numerics(
        dtype=DTYPES[config.dtype],
        autocast=AUTOCAST.get(config.dtype),
        recompute=config.recompute,
        recompute_attention=config.recompute_attention,
        compile=config.compile,
        all_reduce=config.all_reduce,
        compress=config.compress,
        exact_sums=config.exact_sums,
        shard_optimizer=config.divides,
        offload_optimizer=config.offload_optimizer,
        delayed_update=config.delayed_update,
        masters=MASTERS.get(config.dtype),
    )
