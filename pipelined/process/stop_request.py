"""Being asked to stop: SIGTERM or SIGUSR1 asks, the next step's end obeys, a second SIGTERM insists.

Under openmpi's mpirun SIGTERM ends the job within half a second, so there SIGUSR1 is the one to send. A terminal that
closes asks, too (SIGHUP), unless the process was started not to hear of it, as by nohup.
"""

import os
import signal
import stat
from contextlib import suppress

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def asking() -> tuple[signal.Signals, ...]:
    """The signals by which this process is asked to stop."""
    return SIGNALS if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*SIGNALS, signal.SIGHUP)


def hang_up() -> None:
    """The terminal is gone: write no more to it, which would fail, and hear of it once, whoever says so again."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        with suppress(OSError):  # closed from the beginning
            if stat.S_ISCHR(os.fstat(output).st_mode):
                os.dup2(nowhere, output)
    os.close(nowhere)


class StopRequest:
    """Whether this process was asked to stop. All ranks in one process share one.

    Args:
        parent: the launcher's process, if the ranks would outlive it: when it is gone, that counts as being asked.
    """

    def __init__(self, parent: int | None = None) -> None:
        self._parent, self._signalled = parent, False

    @property
    def requested(self) -> bool:
        return self._signalled or self._parent not in (None, os.getppid())

    def listen(self) -> None:
        """Answer the signals from now on; only the main thread may call this."""
        for number in asking():
            signal.signal(number, self._asked)

    def _asked(self, number: int, frame: object) -> None:
        if self._signalled and number == signal.SIGTERM:
            os._exit(128 + number)
        if number == signal.SIGHUP:
            hang_up()
        self._signalled = True
