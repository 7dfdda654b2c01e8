"""The devices of this machine, as torch sees them: CPU and GPUs. Torch is imported where a GPU is asked for."""

from pathlib import Path

from pipelined.errors import UsageError


def free_memory(device: str) -> str:
    """The free memory of a device, and all of it, in words."""
    if device == "cpu":
        sizes = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
        free, total = (int(sizes[name]) << 10 for name in ("MemAvailable:", "MemTotal:"))
    else:
        import torch

        free, total = torch.cuda.mem_get_info(device)
    return f"{free / 2**20:,.1f} of {total / 2**20:,.1f} MiB"


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
        here = ", ".join(["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
        fact = f"no device here is called {name!r} ({str(error).splitlines()[0]})"
        raise UsageError(f"{fact}; take one of {here}") from error
