"""The exit code of a program that an error ended."""

from collections.abc import Callable

from pipelined.errors import JobFailed, UsageError, usage_error_of
from pipelined.process.exit import DONE, INTERRUPTED, silence_stdout


def exit_code(error: BaseException, refuse: Callable[[UsageError], int], remedy: str | None = None) -> int | None:
    """The exit code of a program that this error ended; None: the error is a bug, or one of the program's own.

    Args:
        refuse: prints an error that the user can correct; returns the exit code.
        remedy: what to do where no memory is left; None: see `OutOfMemory`.
    """
    match error:
        case JobFailed():
            return error.code
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            silence_stdout()
            return DONE
    refusal = error if isinstance(error, UsageError) else usage_error_of(error, "the command", remedy)
    return refuse(refusal) if refusal else None
