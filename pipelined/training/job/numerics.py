"""The numerics of a job: dtypes, recomputation, and the algorithms that affect its numbers."""

from dataclasses import dataclass, fields

import torch

from collectives.algorithms import parse_choice
from pipelined.errors import UsageError, got, require_switch
from pipelined.programs.updates.master_rules import require_delayed
from pipelined.training.exchange.compression import NONE, check_codec
from pipelined.training.exchange.parcels import differentiable

REMEDIES = {
    "compile": "give True, which compiles by torch's default backend, inductor",
    "recompute": "mark layers that are recomputed with pp.recomputed(layer)",
}
"""What to do instead of another value than True and False, by the field of `Numerics`."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Dtypes, recomputation, and the algorithms that affect the numbers of a run.

    Args:
        dtype: the dtype of parameters, activations and sums.
        autocast: the dtype of matrix products inside the forward, bfloat16 or float16; None: `dtype`. With float16 the
            loss is scaled, see `loss_scale`.
        recompute: keep only the inputs and run each forward again before its backward.
        recompute_attention: keep only the inputs of each attention's core, and run it again in the backward: of models
            that mark it (`attention_core`).
        compile: compile each stage by torch's compiler; see `require_compilable`.
        recompute_at_newest: only without a flush: recompute, and use the newest weights in the forward and again in
            the backward, so that no older version is kept.
        all_reduce: an algorithm of `collectives.all_reduce`, or "auto".
        compress: the codec for activations and gradients between stages, or "none".
        exact_sums: sum gradients without rounding between summands, so that the parameters have the same bits in any
            arrangement; see `exact_sums`.
        shard_optimizer: the ranks that hold a parameter divide its update; see `pipelined.training.sums.update_shards`.
        offload_optimizer: the optimizer keeps masters and its state in host memory, and updates there.
        delayed_update: a step computes with the values of the update before the last one, which runs beside it.
        masters: the dtype of the masters, if it is another than `dtype`; see `pipelined.training.optimizer.masters`.
    Raises:
        UsageError: a setting is unknown or of the wrong type, or excludes another; PlanError: a delayed update does.
    """

    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    recompute: bool = False
    recompute_attention: bool = False
    compile: bool = False
    recompute_at_newest: bool = False
    all_reduce: str = "auto"
    compress: str = NONE
    exact_sums: bool = False
    shard_optimizer: bool = False
    offload_optimizer: bool = False
    delayed_update: bool = False
    masters: torch.dtype | None = None

    def __post_init__(self) -> None:
        self._require_known()
        dtype, masters, autocast = self.dtype, self.masters, self.autocast
        if masters and not (masters.is_floating_point and torch.promote_types(dtype, masters) is masters):
            fact = f"masters in {masters} cannot hold every value of parameters in {dtype}"
            raise UsageError(f"{fact}; give a wider floating-point dtype, or leave `masters=` out")
        if autocast and dtype.itemsize == autocast.itemsize and autocast is not dtype:
            fact = f"products in {autocast} of parameters in {dtype} are of no common dtype"
            raise UsageError(f"{fact}; leave `autocast=` out, or keep the parameters in torch.float32")
        require_delayed(offload=self.offload_optimizer, delayed=self.delayed_update, scaled=self.scales_loss)

    def _require_known(self) -> None:
        """Raises UsageError: a field is of another type, or unknown."""
        for name, dtype in (("dtype", self.dtype), ("masters", self.dtype if self.masters is None else self.masters)):
            if not isinstance(dtype, torch.dtype):
                raise UsageError(f"{name} must be a dtype of torch, such as torch.float32 {got(dtype)}")
        if not differentiable(torch.empty(0, dtype=self.dtype)):
            raise UsageError(f"dtype={self.dtype} has no gradients; give a floating-point dtype")
        check_codec(str(self.compress), "compress")
        try:
            parse_choice(str(self.all_reduce))
        except ValueError as error:
            raise UsageError(f"all_reduce: {error}") from error
        for switch in (setting for setting in fields(self) if isinstance(setting.default, bool)):
            require_switch(switch.name, getattr(self, switch.name), *filter(None, [REMEDIES.get(switch.name)]))

    @property
    def has_masters(self) -> bool:
        """Whether the optimizer updates copies of the parameters instead of these."""
        return self.offload_optimizer or self.delayed_update or self.masters not in (None, self.dtype)

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled: with autocast in float16."""
        return self.autocast is torch.float16

    @property
    def threads(self) -> int | None:
        """The threads that a rank computes with on a CPU; None: its share of the cores.

        Kernels add in another order with another number of threads, so with exact sums each rank has one.
        """
        return 1 if self.exact_sums else None


def products_dtype(autocast: bool | torch.dtype) -> torch.dtype | None:
    """The dtype of products that `autocast=` asks for; True: bfloat16. None: the parameters'.

    Raises:
        UsageError: it is another than bfloat16 and float16.
    """
    dtype = {True: torch.bfloat16, False: None}.get(autocast, autocast) if isinstance(autocast, bool) else autocast
    if dtype not in (None, torch.bfloat16, torch.float16):
        raise UsageError(f"autocast= must be a bool, torch.bfloat16 or torch.float16 {got(autocast)}")
    return dtype
