"""A limit on the bytecodes that a user's schedule may run, which ends an endless loop; a notice on slow imports.

Python offers no other way to end a loop that neither awaits nor calls anything of this project. The limit counts
bytecodes, not lines, because a loop in one line begins no new line. It does not count the bytecodes of the standard
library and of this project.

An import has no limit, because it may load torch or read a long file; a slow one is announced on stderr.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pipelined.schedules.parts.stage_map import ScheduleError

MAX_BYTECODES, MAX_BYTECODES_EACH = 1_000_000, 1000
"""Bytecodes that a schedule may run: a fixed number, plus this many per instruction of the longest correct schedule."""
UNCOUNTED = frozenset(sys.stdlib_module_names) | {"pipelined"}

SLOW_S = 10.0
"""Seconds after which stderr names the line that a slow block has reached."""


class _Endless(BaseException):
    """Raised by the trace function. A BaseException, so that a user's `except Exception` does not catch it: Python
    stops tracing when a trace function raises, so it could not be raised again."""


@contextmanager
def limit_bytecodes(what: str, instructions: int) -> Iterator[None]:
    """Limit the bytecodes that a user's code runs in the block, on this thread.

    Args:
        what: the beginning of the error message.
        instructions: the most instructions that a correct schedule has.
    Raises:
        ScheduleError: the code ran more bytecodes than any correct schedule needs. Never while a debugger traces this
            thread, since a thread has only one trace function.
    """
    limit = MAX_BYTECODES + MAX_BYTECODES_EACH * instructions
    bytecodes_left = limit

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal bytecodes_left
        bytecodes_left -= event == "opcode"
        if bytecodes_left < 0:
            fact = f"{what} does not stop (bytecodes run: {limit}, at line {frame.f_lineno}"
            raise _Endless(f"{fact} of {frame.f_code.co_filename}); end the loop there once all microbatches are done")
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
def announce_if_slow(what: str) -> Iterator[None]:
    """Print to stderr, once, the line that this thread has reached if the block takes longer than `SLOW_S`.

    Args:
        what: what the block does; the message puts it after "still".
    """
    thread = threading.get_ident()

    def report() -> None:
        frame = sys._current_frames()[thread]
        line = f"line {frame.f_lineno} of {frame.f_code.co_filename}"
        remedy = "if that never ends, end this process (Ctrl-C, or SIGTERM) and correct the code"
        sys.stderr.write(f"still {what} (for: {SLOW_S:g} s, at {line}); {remedy}\n")
        sys.stderr.flush()

    timer = threading.Timer(SLOW_S, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
