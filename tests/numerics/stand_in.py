"""A device in name alone: tensors in host memory that report another device, and a count of copies to the host.

A GPU is not needed to see which operations would copy to the host or wait for the device: each of them passes torch's
dispatcher. `StandIn` wraps a tensor of the host and reports the device `meta`, whose backwards run in the thread that
asks for them. The mode belongs to one thread; every thread that computes enters one of its own.

Autocast knows no `meta`, and asks each tensor whether it is of the device that it is for. So what torch itself asks is
answered with `cpu:0`, which is no name of the host: that is `cpu`, and a copy between the two passes the dispatcher.
A stand-in also has the key of the CPU's autocast, and `torch.autocast("cpu")` casts it, as it would cast on the CPU.
"""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE, TO_TORCH = torch.device("meta"), torch.device("cpu:0")
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
aten = torch.ops.aten
SYNCHRONISING = {
    *(aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.allclose),
    *(aten.nonzero, aten.masked_select, aten.bincount, aten._unique, aten._unique2),
    *(aten.unique_dim, aten.unique_consecutive, aten.unique_dim_consecutive),
}
"""Operations with a result, or a shape of one, that the host needs before it can continue, besides copies."""
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
"""Operations that find the places of a mask, of which the host needs the number."""


class StandIn(torch.Tensor):
    """A tensor on the device; `inner` has its values."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "StandIn":
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "_extra_dispatch_keys": AUTOCAST}
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=DEVICE, dispatch_device=True, **layout
        )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:
        return DEVICE

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with Counting(Counter()):  # a thread without the mode, as the one that prepares the first step
            return func(*args, **(kwargs or {}))


class Counting(TorchDispatchMode):
    """Computes with stand-ins inside the `with` block, and counts into `counts`: copies and operations that wait."""

    def __init__(self, counts: "Counter[str]"):
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return TO_TORCH
        kwargs = dict(kwargs or {})
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StandIn)]
        asked = kwargs.get("device")
        to_device = asked in (DEVICE, TO_TORCH)
        to_host = bool(given) and asked is not None and not to_device
        self._count(func, args, kwargs, moved=to_device and not given, home=to_host)
        if to_device:
            kwargs["device"] = "cpu"
        plain = tree_map_only(StandIn, lambda one: one.inner, (args, kwargs))
        result = func(*plain[0], **plain[1])
        if to_host or not (given or to_device):
            return result
        known = {id(one.inner): one for one in given}  # an operation in place returns what it was given
        return tree_map_only(torch.Tensor, lambda one: known[id(one)] if id(one) in known else StandIn(one), result)

    def _count(self, func: Any, args: Any, kwargs: Any, *, moved: bool, home: bool) -> None:
        packet = func.overloadpacket
        if packet is aten.copy_:
            moved, home = (isinstance(args[n], StandIn) and not isinstance(args[1 - n], StandIn) for n in (0, 1))
        elif packet is not aten._to_copy:
            moved = False  # made there
        self._counts["to the device"] += moved
        self._counts["to the host"] += home
        self._counts["waits"] += _waits(packet, args, kwargs)


def _waits(packet: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation makes the host wait for the device."""
    given = [one for one in tree_leaves(args) if isinstance(one, StandIn)]
    if packet in INDEXING:
        masks = (one for one in args[1] if isinstance(one, StandIn))
        return any(mask.dtype in (torch.bool, torch.uint8) for mask in masks)
    if packet is aten.repeat_interleave:
        return bool(given) and kwargs.get("output_size") is None
    if packet is aten.histc:  # between the least and the largest value, if no bounds are given
        low, high = [*args[2:4], *[kwargs.get(name, 0) for name in ("min", "max")][len(args[2:4]) :]]
        return bool(given) and low == high
    return bool(given) and packet in SYNCHRONISING
