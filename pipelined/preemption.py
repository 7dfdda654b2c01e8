"""Being asked to stop: SIGTERM or SIGUSR1 asks, the next step's end obeys, a second signal insists.

Under openmpi's mpirun SIGTERM ends the job within half a second, so there SIGUSR1 is the one to send.
"""

import asyncio
import os
import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Whether this process was asked to stop. All ranks in one process share one."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """Install the signal handlers on the running loop; they replace the default ones."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._asked, number)

    def _asked(self, number: signal.Signals) -> None:
        if self.requested and number == signal.SIGTERM:
            os._exit(128 + number)
        self.requested = True
