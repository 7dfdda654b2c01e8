"""How a rank of a benchmark begins: under any launcher, and with one thread of torch a rank."""

import os

import torch

from pipelined.process.launch import detect
from pipelined.process.run import RankProgram, run


def run_ranks(program: RankProgram, alone: int = 1, exactly: int | None = None) -> int:
    """Run a program on the ranks that there are, to this process's exit code.

    Args:
        alone: ranks of the world, all in this process, where no launcher started it.
        exactly: how many there must be, where the program can run on no other number.
    """
    torch.set_num_threads(1)
    launch = detect(os.environ)
    return run(launch, exactly or launch.world_size or alone, program)
