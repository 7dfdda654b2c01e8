"""bitsandbytes in a process of its own, so that it may have a Python of its own: one timing a line asked for.

Reads `values block` lines, answers each with JSON: seconds out, seconds back, mean squared error. One thread. It
imports nothing of this project.
"""

import json
import sys
import time

import torch
from bitsandbytes.functional import dequantize_blockwise, quantize_blockwise


def timed(values: torch.Tensor, block: int) -> tuple[float, float, float]:
    """Seconds to quantise and to dequantise, and the mean squared error."""
    start = time.perf_counter()
    codes, state = quantize_blockwise(values, blocksize=block)
    middle = time.perf_counter()
    back = dequantize_blockwise(codes, state, blocksize=block)
    end = time.perf_counter()
    return middle - start, end - middle, float(((back - values) ** 2).mean())


def main() -> None:
    """Answer lines until there are no more."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    values = torch.empty(0)
    for line in sys.stdin:
        count, block = map(int, line.split())
        if values.numel() != count:
            values = torch.randn(count)
        print(json.dumps(timed(values, block)), flush=True)


if __name__ == "__main__":
    main()
