"""Cutting a real process off: until it is healed nothing leaves it or reaches it over TCP, without any error.

What a pulled cable does, for one process of a machine and without its privileges: the process goes on, its connections
stay, and what was sent arrives when they are healed.
"""

import asyncio
import selectors
import signal
import socket

MOVING = ("send", "sendmsg", "recv", "recv_into", "accept")
INTERNET = (socket.AF_INET, socket.AF_INET6)


class Links(selectors.SelectSelector):
    """What a loop looks at its sockets with; while they are cut it sees none ready but the loop's own.

    Attributes:
        are_cut: whether they are.
    """

    def __init__(self):
        super().__init__()
        self.are_cut, self._own = False, selectors.SelectSelector()

    def cut(self):
        self.are_cut = True

    def heal(self):
        self.are_cut = False

    def register(self, fileobj, events, data=None):
        if not self._own.get_map():  # a loop begins with the one that it wakes itself by
            self._own.register(fileobj, events, data)
        return super().register(fileobj, events, data)

    def select(self, timeout=None):
        return self._own.select(timeout) if self.are_cut else super().select(timeout)


def cuttable_loop():
    """A loop with sockets that can be cut, and what cuts them; SIGCONT heals. For the only loop of a process."""
    links = Links()
    for name in MOVING:
        setattr(socket.socket, name, _unless_cut(getattr(socket.socket, name), links))
    loop = asyncio.SelectorEventLoop(links)
    loop.add_signal_handler(signal.SIGCONT, links.heal)
    return loop, links


def _unless_cut(original, links):
    def move(self, *args):
        if links.are_cut and self.family in INTERNET:
            raise BlockingIOError("the links are cut")
        return original(self, *args)

    return move
