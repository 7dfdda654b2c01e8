"""The watchdog of the ranks on a node: it names the rank that died first. MPICH's mpirun kills all without naming it.

Theory of operation. The ranks of a node are children of one process of the launcher. The first rank starts the watcher,
in a new session so that the launcher does not kill it. The watcher waits on a pidfd of each rank. The kernel queues
their exits in order, so the watcher finds the first one however late it wakes. A rank is watched until it reports that
it is done. This file is run as a script by a bare interpreter, and therefore imports almost nothing.
"""

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

RANK = b"PMI_RANK="
READY, GOODBYE = b".", b"."


@contextmanager
def watching(names: Sequence[str]) -> Iterator[None]:
    """Watch the ranks of this node until the block ends, also by an exception.

    Args:
        names: the name of each rank in the message.
    """
    command = [sys.executable, "-I", "-S", __file__, str(os.getppid()), str(os.getpid()), *names]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True) as watcher:
        assert watcher.stdin and watcher.stdout  # as both are pipes
        watcher.stdout.read(len(READY))
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                watcher.stdin.write(GOODBYE)


def first_dead_rank(watched: Mapping[int, int], owner: int) -> int | None:
    """Wait until a rank dies; returns that rank, or None if the owner reports that it is done.

    Args:
        watched: ranks by process id.
        owner: the process that started this one, with the other end of its standard input.
    """
    with select.epoll() as deaths:
        deaths.register(0, select.EPOLLIN)
        ranks = {os.pidfd_open(process): rank for process, rank in watched.items()}
        for descriptor in ranks:
            deaths.register(descriptor, select.EPOLLIN)
        os.write(1, READY)
        descriptor = deaths.poll(maxevents=1)[0][0]
    if descriptor:
        return ranks[descriptor]
    return None if os.read(0, 1) else watched.get(owner)


def ranks_under(parent: int) -> dict[int, int]:
    """The ranks that a process of the launcher has started, by process id."""
    with open(f"/proc/{parent}/task/{parent}/children") as children:
        ranks = {int(child): rank_of(int(child)) for child in children.read().split()}
    return {process: rank for process, rank in ranks.items() if rank is not None}


def rank_of(process: int) -> int | None:
    """The rank of this process as its launcher numbered it, or None."""
    with open(f"/proc/{process}/environ", "rb") as environ:
        for variable in environ.read().split(b"\0"):
            if variable.startswith(RANK):
                return int(variable.removeprefix(RANK))
    return None


def main(parent: int, owner: int, names: Sequence[str]) -> None:
    """Watch the ranks; print the rank that died, if one did."""
    rank = first_dead_rank(ranks_under(parent), owner)
    if rank is not None:
        os.write(2, f"{names[rank]} ended without an error message; the launcher ends the job\n".encode())


if __name__ == "__main__":
    with suppress(OSError, AttributeError):  # no /proc, or a kernel without pidfds: no watching
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
