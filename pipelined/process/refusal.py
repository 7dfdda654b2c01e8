"""A refusal before a transport is open: one message, and every rank exits with code 2 within seconds.

A rank that refuses does not know whether the others do. Most often all do, as all have the same flags: then rank 0
prints, and all exit. So the refusing ranks of a node wait for one another (`wait_for_refusals`). No transport is open,
so a rank knows only its launcher's process (the parent of all ranks of the node) and its own number. From both it
builds the abstract name of a Unix socket, which leaves no file behind. It sends a datagram to every rank that has a
socket already; a later rank sends one to it.

If not all ranks have come, the others wait for this one to open the transport, and have to be ended:

| launcher | by |
|---|---|
| mpirun of MPICH, srun | the process manager, on request (`pipelined.process.job_end`) |
| mpirun of Open MPI, torchrun on one node | the launcher, after the first exit |
| torchrun on several nodes, or none | the transport: this rank opens it and sends the reason, which rank 0 prints |

In the first two cases the lowest of the ranks that refuse prints. Ranks on a node without rank 0 first wait until
rank 0 would have ended the job: it may refuse, too.
"""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from types import FrameType
from typing import TypeVar

from pipelined.errors import AgreedError, as_flags
from pipelined.process.exit import USAGE, abort_peers, print_to_stderr
from pipelined.process.job_end import end_job
from pipelined.process.launch import Launch
from transports import TransportError, new_event_loop, open_transport

T = TypeVar("T")
REFUSAL_S = 3.0
"""Seconds that a refusing rank waits for the next rank of its node to refuse."""
WAIT_FOR_LAUNCHER_S = 3 * REFUSAL_S
"""Seconds that a refusing rank waits to be killed, after the rank that prints has ended the job."""


def error_message(error: object, command: str = "") -> str:
    """The error message for the user, after the name of the command, or of the function if it begins with pipelined."""
    text = str(error) if command.startswith("pipelined.") else as_flags(str(error))
    return f"{command}: error: {text}" if command else f"error: {text}"


def refuse(error: Exception, launch: Launch, command: str = "", join: bool = True) -> int:
    """Print an error that the user can correct, on one rank only, and end all ranks; returns exit code 2.

    An `AgreedError` ends no other rank: each refuses alike.

    Args:
        join: whether the ranks may be ended by the transport; not after an attempt to open it.
    """
    text = error_message(error, command)
    if launch.prints_errors:
        print_to_stderr(text)
    _end_all(launch, text, str(error), join, agreed=isinstance(error, AgreedError))
    return USAGE


def parse_flags(launch: Launch, parse: Callable[[], T]) -> T:
    """Parse the flags, equal on all ranks: only rank 0 prints help or the error, and all ranks exit together.

    If other ranks accept their flags, the lowest rank that does not prints its error.

    Raises:
        SystemExit: as raised by `parse`.
    """
    printed = StringIO()
    try:
        with ExitStack() as quiet:
            if launch.rank > 0:
                quiet.enter_context(redirect_stderr(printed))
                quiet.enter_context(redirect_stdout(StringIO()))
            return parse()
    except SystemExit as end:
        if end.code:
            _end_all(launch, printed.getvalue(), printed.getvalue(), join=True)
        raise


def _end_all(launch: Launch, text: str, reason: str, join: bool, agreed: bool = False) -> None:
    """Return when this rank may exit with code 2: all ranks do, or have been ended.

    This rank exits with that code on a SIGTERM of the launcher meanwhile. Afterwards SIGTERM is ignored, because an
    exiting interpreter removes its signal handlers before the process ends.

    Args:
        text: what this rank prints if no lower rank refuses.
        reason: what rank 0 prints if this rank ends the job by the transport.
    """
    ranks = launch.world_size or 1
    if ranks == 1:
        return
    _handle_sigterm(lambda number, frame: os._exit(USAGE))
    refused = wait_for_refusals(launch.local_rank, launch.local_size or ranks, REFUSAL_S)
    if len(refused) < ranks and not agreed:
        if launch.url.startswith("tcp:") and not (launch.kills_on_first_exit and launch.on_one_node):
            if join:
                _end_by_transport(launch, text, reason)
        elif launch.local_rank == min(refused):
            _end_by_launcher(launch, text)
        else:
            time.sleep(WAIT_FOR_LAUNCHER_S)
    _handle_sigterm(signal.SIG_IGN)


def _handle_sigterm(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # no other thread may set one
        signal.signal(signal.SIGTERM, handler)


def _end_by_launcher(launch: Launch, text: str) -> None:
    """Print the error unless that is done, and let the launcher end the other ranks."""
    if not launch.prints_errors:
        if not launch.on_one_node:
            time.sleep(REFUSAL_S * (1 + launch.rank / (launch.world_size or 1)))
        print_to_stderr(text)
    end_job(USAGE, os.environ)


def _end_by_transport(launch: Launch, text: str, reason: str) -> None:
    """Open the transport and send the reason to all ranks; print the error here if that fails."""

    async def abort() -> None:
        await abort_peers(await open_transport(launch.url), USAGE, reason, kills_job=False)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(abort())
        except (ValueError, OSError, TransportError):
            if not launch.prints_errors:
                print_to_stderr(text)

    thread = threading.Thread(target=run)  # the caller may run an event loop
    thread.start()
    thread.join()


def wait_for_refusals(rank: int, ranks: int, patience: float) -> set[int]:
    """Wait until all ranks of the node with the same parent process have called this. Returns those that have.

    Args:
        rank, ranks: this rank's number on its node, and how many there are.
        patience: seconds to wait for each further rank before giving up.
    """
    refused = {rank}
    other_ranks = set(range(ranks)) - {rank}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        try:
            bell.bind(_socket_name(rank))
        except OSError:  # no abstract names on this system, or ours is taken
            time.sleep(patience if other_ranks else 0.0)
            return refused
        refused |= {other_rank for other_rank in other_ranks if _announce(bell, rank, other_rank)}
        bell.settimeout(patience)
        with suppress(TimeoutError):
            for _ in other_ranks:  # one datagram per rank; a foreign datagram cannot prolong the wait
                if len(refused) < ranks:
                    refused |= other_ranks & {int.from_bytes(bell.recv(8), "big")}
    return refused


def _announce(bell: socket.socket, rank: int, receiver: int) -> bool:
    """Send this rank's number to another rank; returns whether that rank's socket exists."""
    try:
        bell.sendto(rank.to_bytes(8, "big"), _socket_name(receiver))
    except OSError:
        return False
    return True


def _socket_name(rank: int) -> bytes:
    return f"\0pipelined parting {os.getppid()} {rank}".encode()
