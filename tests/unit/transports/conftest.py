"""A test of transports that fails closes its sockets, so that no later test is blamed for them."""

import gc
import socket


def pytest_exception_interact(node, call, report):
    """Close what the failing test's frames, kept for the report, would keep open until a later test ends."""
    if report.when == "call":
        for thing in gc.get_objects():
            if issubclass(type(thing), socket.socket):
                thing.close()
