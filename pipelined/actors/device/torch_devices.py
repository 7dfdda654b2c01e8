"""The devices of this machine, as torch sees them: CPU and GPUs. Torch is imported where a GPU is requested."""

import os
import sys
import warnings

from pipelined.actors.device.host_memory import host_memory
from pipelined.errors import UsageError, printable
from transports import Transport

OF_TASK = "SLURM_GPUS_PER_TASK"
"""The variable that Slurm sets where each task sees GPUs of its own alone."""


def device_of_rank(transport: Transport, *, share: bool) -> str:
    """The device of a rank: the GPU of its number on this machine, or the CPU where torch can use no GPU.

    The first rank of a machine prints a warning where torch says why it cannot use one.

    Args:
        share: whether ranks may share a GPU: then the number is taken modulo that of the GPUs.
    Raises:
        UsageError: this machine has fewer GPUs than ranks, and they may not. Ranks to which Slurm gives GPUs of their
            own see these alone, so their number says nothing.
    """
    import torch

    local_ranks = transport.ranks_here
    local_rank = local_ranks.index(transport.rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    if not usable:
        if caught and not local_rank:
            reason = printable(str(caught[0].message).splitlines()[0], but="")
            sys.stderr.write(
                f"warning: a GPU seems to be here, but torch cannot use it, and computes on the CPU: {reason}\n"
            )
        return "cpu"
    gpus = torch.cuda.device_count()
    if len(local_ranks) > gpus and not share and OF_TASK not in os.environ:
        fact = f"fewer GPUs than ranks on this node (GPUs: {gpus}, ranks: {len(local_ranks)})"
        raise UsageError(f"{fact}; start fewer ranks or pass `share_devices=`")
    return f"cuda:{local_rank % gpus}"


def memory_of(device: str) -> str:
    """The free memory of a device, and all of it, in words."""
    if device == "cpu":
        total, free = host_memory()
    else:
        import torch

        free, total = torch.cuda.mem_get_info(device)
    return " of ".join("?" if size is None else f"{size / 2**20:,.1f}" for size in (free, total)) + " MiB"


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        UsageError: the message lists its devices.
    """
    if name == "cpu":
        return  # without torch, which takes seconds to import
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error has said why already
            devices = " or ".join(["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
        fact = f"no device here is called {name!r} ({str(error).splitlines()[0]})"
        raise UsageError(f"{fact}; take --device {devices}") from error
