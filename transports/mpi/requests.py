"""What MPI needs to be told about bytes, tags and finished requests, in mpi4py's words.

The one rule: nothing in here blocks. Knows no frames and no keys.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from transports.errors import TransportError

TAKEN_S = 10e-6
"""How long to look whether a send is done at once: Open MPI asks the other end before it takes 4 KiB."""
TAGS = 32768  # all that MPI promises (MPI 4.1, section 9.1.2: the upper bound is at least 32767)


def start(operation: Callable[..., MPI.Request], data: memoryview, peer: int, tag: int, piece: int) -> MPI.Request:
    """Start `Isend`, `Issend` or `Irecv` on flat bytes, however many.

    MPI's counts end at 2 GiB, so beyond `piece` bytes they are described as one item made of several pieces. It stays
    a single message of MPI's: order, cancelling and tags need no further care.
    """
    if data.nbytes <= piece:
        return operation([data, MPI.BYTE], peer, tag)
    starts = range(0, data.nbytes, piece)
    lengths = [min(piece, data.nbytes - start) for start in starts]
    whole = MPI.BYTE.Create_hindexed(lengths, list(starts)).Commit()
    try:
        return operation([data, 1, whole], peer, tag)
    finally:
        whole.Free()  # MPI keeps it until the request is done


class Truncated(TransportError):
    """More bytes came than the receive had room for."""


def outcome_now(request: MPI.Request) -> Any:
    """The request's status if it is done, the error if it failed, None if it is under way."""
    status = MPI.Status()
    try:
        return status if request.Test(status) else None
    except MPI.Exception as error:
        return translated(error)


def outcomes_now(requests: list[MPI.Request]) -> list[tuple[int, Any]]:
    """(index, outcome) of those that are done; an outcome is the request's status, or the error it failed with."""
    statuses = [MPI.Status() for _ in requests]
    try:
        indices = MPI.Request.Testsome(requests, statuses)
    except MPI.Exception as error:
        return _failed(requests, statuses, error)
    return list(zip(indices or (), statuses, strict=False))


def translated(error: MPI.Exception) -> TransportError:
    """MPI's exception as one of ours."""
    kind = Truncated if error.Get_error_class() == MPI.ERR_TRUNCATE else TransportError
    mine = kind(f"MPI failed: {error.Get_error_string()}")
    mine.__cause__ = error
    return mine


def _failed(requests: list[MPI.Request], statuses: list[MPI.Status], error: MPI.Exception) -> list[tuple[int, Any]]:
    """Which are done, when some of them failed: those that became null, with their statuses in order."""
    done = [index for index, request in enumerate(requests) if request == MPI.REQUEST_NULL]
    if not done:
        raise translated(error)
    codes = [status.Get_error() for status in statuses]
    return [
        (index, status if code == MPI.SUCCESS else translated(MPI.Exception(code)))
        for index, status, code in zip(done, statuses, codes, strict=False)
    ]


class Tags:
    """Hands out tags for each peer in turn, never one that is still in use."""

    def __init__(self) -> None:
        self._used: defaultdict[int, set[int]] = defaultdict(set)
        self._next: defaultdict[int, int] = defaultdict(int)

    def take(self, peer: int) -> int:
        """A tag that no unfinished message to this peer bears.

        Raises:
            TransportError: there is none left.
        """
        used = self._used[peer]
        if len(used) == TAGS:
            raise TransportError(
                f"too many messages are held for rank {peer} (messages: {len(used)}, limit: {TAGS}); send fewer at once"
            )
        tag = self._next[peer]
        while tag in used:
            tag = (tag + 1) % TAGS
        self._next[peer] = (tag + 1) % TAGS
        used.add(tag)
        return tag

    def release(self, peer: int, tag: int) -> None:
        self._used[peer].discard(tag)


def keep_alive(comm: MPI.Comm, things: Any) -> None:
    """Hold Python objects in memory for as long as this communicator lives."""
    comm.Set_attr(MPI.Comm.Create_keyval(), things)
