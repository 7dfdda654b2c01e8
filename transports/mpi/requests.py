"""MPI requests by mpi4py: starting them on buffers of any size, and their outcomes.

No function here blocks.
"""

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from transports.errors import TransportError

SEND_TEST_S = 10e-6
"""Seconds to test whether a send completes at once: Open MPI needs a reply of the receiver before it accepts 4 KiB."""


def start_request(
    operation: Callable[..., MPI.Request], data: memoryview, peer: int, tag: int, max_count: int
) -> MPI.Request:
    """Start `Isend`, `Issend` or `Irecv` on any number of flat bytes.

    MPI's counts end at 2 GiB, so data of more than `max_count` bytes is described as one item made of several pieces.
    It is still a single MPI message, so order, cancelling and tags work as usual.
    """
    if data.nbytes <= max_count:
        return operation([data, MPI.BYTE], peer, tag)
    starts = range(0, data.nbytes, max_count)
    lengths = [min(max_count, data.nbytes - start) for start in starts]
    item_type = MPI.BYTE.Create_hindexed(lengths, list(starts)).Commit()
    try:
        return operation([data, 1, item_type], peer, tag)
    finally:
        item_type.Free()  # MPI keeps it until the request is done


class Truncated(TransportError):
    """A message was longer than the buffer of its receive."""


def outcome_now(request: MPI.Request) -> Any:
    """The request's status if it is done, the error if it failed, None if it is pending."""
    status = MPI.Status()
    try:
        return status if request.Test(status) else None
    except MPI.Exception as error:
        return transport_error(error)


def outcomes_now(requests: list[MPI.Request]) -> list[tuple[int, Any]]:
    """(index, outcome) of each done request; the outcome is its status, or the error it failed with."""
    statuses = [MPI.Status() for _ in requests]
    try:
        indices = MPI.Request.Testsome(requests, statuses)
    except MPI.Exception as error:
        return _failed_outcomes(requests, statuses, error)
    return list(zip(indices or (), statuses, strict=False))


def transport_error(error: MPI.Exception) -> TransportError:
    kind = Truncated if error.Get_error_class() == MPI.ERR_TRUNCATE else TransportError
    translated = kind(f"MPI failed: {error.Get_error_string()}")
    translated.__cause__ = error
    return translated


def _failed_outcomes(
    requests: list[MPI.Request], statuses: list[MPI.Status], error: MPI.Exception
) -> list[tuple[int, Any]]:
    """The outcomes of the done requests when some failed: done requests are null, and their statuses are in order."""
    done_indices = [index for index, request in enumerate(requests) if request == MPI.REQUEST_NULL]
    if not done_indices:
        raise transport_error(error)
    codes = [status.Get_error() for status in statuses]
    return [
        (index, status if code == MPI.SUCCESS else transport_error(MPI.Exception(code)))
        for index, status, code in zip(done_indices, statuses, codes, strict=False)
    ]


def keep_alive(comm: MPI.Comm, things: Any) -> None:
    """Keep Python objects in memory until this communicator is freed."""
    comm.Set_attr(MPI.Comm.Create_keyval(), things)
