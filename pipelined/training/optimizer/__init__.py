"""The optimizer of a rank: its settings, its update, and the state that it keeps of each parameter."""

from pipelined.training.optimizer.config import (
    OptimizerConfig,
    clip_factor,
    require_elementwise,
    update,
)

__all__ = ["OptimizerConfig", "clip_factor", "require_elementwise", "update"]
