"""Cutting a real process off: for a while nothing leaves it and nothing reaches it over TCP, and nobody is told.

What a pulled cable does, for one process of a machine and without its privileges: the process goes on, its connections
stay, and what was sent arrives when they are healed.
"""

import asyncio
import selectors
import socket
import time

NAP_S = 0.005
MOVING = ("send", "sendmsg", "recv", "recv_into", "accept")
INTERNET = (socket.AF_INET, socket.AF_INET6)


class Links(selectors.SelectSelector):
    """What a loop looks at its sockets with; while they are cut it sees none ready but the loop's own."""

    def __init__(self):
        super().__init__()
        self._healed, self._own = 0.0, None

    @property
    def left_s(self):
        """Seconds for which they are still cut."""
        return self._healed - time.monotonic()

    def cut(self, seconds):
        self._healed = time.monotonic() + seconds

    def register(self, fileobj, events, data=None):
        key = super().register(fileobj, events, data)
        self._own = key.fd if self._own is None else self._own  # a loop begins with the one that it wakes itself by
        return key

    def select(self, timeout=None):
        if self.left_s <= 0:
            return super().select(timeout)
        time.sleep(min(NAP_S, NAP_S if timeout is None else max(0.0, timeout)))
        return [(key, seen) for key, seen in super().select(0) if key.fd == self._own]


def cuttable_loop():
    """A loop whose sockets can be cut, and what cuts them; for the only loop of a process."""
    links = Links()
    for name in MOVING:
        setattr(socket.socket, name, _unless_cut(getattr(socket.socket, name), links))
    return asyncio.SelectorEventLoop(links), links


def _unless_cut(original, links):
    def move(self, *args):
        if links.left_s > 0 and self.family in INTERNET:
            raise BlockingIOError("the links are cut")
        return original(self, *args)

    return move
