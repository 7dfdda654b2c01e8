"""The end of a program that does not catch an error of its job: one message, and the same exit code on every rank.

A function of the library raises: `UsageError` where its caller can correct something, `JobFailed` where the job has
ended and has printed why. If nothing catches it, the program's end prints one message and sets the exit code. That is
after the function has returned, so `sys.excepthook` stays in place after a failure.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from pipelined.errors import AgreedError, JobFailed, UsageError
from pipelined.process.exit import INTERRUPTED, USAGE
from pipelined.process.job_end import forget_uncaught
from pipelined.process.launch import ALONE, Launch, detect
from pipelined.process.refusal import refuse

open_trainers: set[Callable[[BaseException], None]] = set()
"""One function for each open trainer of this process; it ends the trainer. The trainer's ranks print the error
themselves, unless it is an `AgreedError`."""


class UncaughtErrors:
    """Stands in the place of `sys.excepthook` from its making until `close`; for good where the job fails.

    Args:
        command: the function that the program calls, for messages.
        transport: as the program gives it; None: the process is alone.
    """

    def __init__(self, command: str, transport: str | None):
        self._command, self._transport = command, transport
        self._earlier_hook = sys.excepthook
        self._is_closed = False
        self._is_printed = False
        while isinstance(self._earlier_hook, UncaughtErrors) and self._earlier_hook._is_closed:
            self._earlier_hook = self._earlier_hook._earlier_hook
        sys.excepthook = self

    def close(self, error: BaseException | None = None, *, is_printed: bool = False) -> None:
        """The job has ended. Without an error the hook that was there before returns.

        Args:
            is_printed: whether the ranks have printed the error.
        """
        self._is_closed, self._is_printed = True, is_printed
        while error is None and isinstance(sys.excepthook, UncaughtErrors) and sys.excepthook._is_closed:
            sys.excepthook = sys.excepthook._earlier_hook

    def __enter__(self) -> "UncaughtErrors":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print an error of the job on one rank, and end all; the hook before this one gets any other error.

        Raises:
            SystemExit: with the exit code of the job.
        """
        if not (code := _exit_code(error)):
            return self._earlier_hook(kind, error, trace)
        forget_uncaught()
        is_printed_by_ranks = (self._is_printed or open_trainers) and not isinstance(error, AgreedError)
        is_printed = isinstance(error, JobFailed) or is_printed_by_ranks
        for end_trainer in tuple(open_trainers):
            end_trainer(error)
        if isinstance(error, UsageError) and not is_printed:
            refuse(error, self._launch(), self._command)
        raise SystemExit(code)

    def _launch(self) -> Launch:
        """The place of this process in the job, as far as transport and launcher say."""
        for transport in (self._transport, "auto"):
            with suppress(UsageError):
                return ALONE if transport is None else detect(os.environ, transport)
        return ALONE


def _exit_code(error: BaseException) -> int:
    """The exit code that an error of a job has; 0: it is another error."""
    if isinstance(error, JobFailed):
        return error.code
    return USAGE if isinstance(error, UsageError) else INTERRUPTED if isinstance(error, KeyboardInterrupt) else 0
