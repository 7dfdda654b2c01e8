"""A bound on a user's own schedule: code that runs too many bytecodes has an endless loop, and is stopped.

Its import has no bound, as it may load torch or read a long file; where it takes long, the user is told of it.

Python offers no other way to end a loop that neither awaits nor calls anything of ours. It must count bytecodes, as a
loop in one line begins no new line. Those of the standard library and of this project are not counted.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pipelined.schedules.layout import ScheduleError

CODES, CODES_EACH = 1_000_000, 1000
"""Bytecodes that a schedule may run: in all, and more for each instruction that a right one has at most."""
UNCOUNTED = frozenset(sys.stdlib_module_names) | {"pipelined"}

SLOW_S = 10.0
"""Seconds after which the user is told which code this process waits for."""


class _Endless(BaseException):
    """No `except Exception` of the user's catches it: Python stops tracing where a trace function raises."""


@contextmanager
def bounded(what: str, instructions: int) -> Iterator[None]:
    """Let a user's code run in the block, on this thread.

    Args:
        what: the beginning of the error.
        instructions: the most that a right schedule has.
    Raises:
        ScheduleError: it ran more bytecodes than any right schedule needs. Not where a debugger traces the thread.
    """
    most = CODES + CODES_EACH * instructions
    left = most

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        left -= event == "opcode"
        if left < 0:
            fact = (
                f"{what} does not stop (bytecodes run: {most}, at line {frame.f_lineno} of {frame.f_code.co_filename})"
            )
            raise _Endless(f"{fact}; end the loop there once all microbatches are done")
        return count

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_globals.get("__name__", "").partition(".")[0] in UNCOUNTED:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return count

    if sys.gettrace() is not None:
        yield
        return
    sys.settrace(enter)
    try:
        yield
    except _Endless as endless:
        raise ScheduleError(str(endless)) from None
    finally:
        sys.settrace(None)


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Tell the user on stderr where this thread is, once, if the block takes longer than `SLOW_S`.

    Args:
        what: what the block does, behind "still".
    """
    thread = threading.get_ident()

    def tell() -> None:
        frame = sys._current_frames()[thread]
        at = f"line {frame.f_lineno} of {frame.f_code.co_filename}"
        remedy = "if that never ends, end this process (Ctrl-C, or SIGTERM) and mend the code"
        sys.stderr.write(f"still {what} (for: {SLOW_S:g} s, at {at}); {remedy}\n")
        sys.stderr.flush()

    timer = threading.Timer(SLOW_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
