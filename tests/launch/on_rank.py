"""Runs pytest on one rank: rank 0 prints, every other writes its own file, so that nothing is mixed.

python -m tests.launch.on_rank FOLDER PYTEST-ARGUMENTS…
"""

import os
import sys

import pytest

RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def main(folder, *arguments):
    rank = next(int(os.environ[name]) for name in RANKS if name in os.environ)
    if rank:
        log = os.open(f"{folder}/rank-{rank}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
    ours = ["-p", "no:cacheprovider", "--color=no", f"--basetemp={folder}/tmp-{rank}"]
    return pytest.main([*ours, "--timeout-method=thread", "--with-mpi", *arguments])  # MPI's calls heed no signal


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
