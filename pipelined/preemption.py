"""Being asked to stop: SIGTERM or SIGUSR1 asks, the next step's end obeys, a second SIGTERM insists.

Under openmpi's mpirun SIGTERM ends the job within half a second, so there SIGUSR1 is the one to send.
"""

import os
import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


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
        for number in SIGNALS:
            signal.signal(number, self._asked)

    def _asked(self, number: int, frame: object) -> None:
        if self._signalled and number == signal.SIGTERM:
            os._exit(128 + number)
        self._signalled = True
