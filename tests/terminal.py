"""A terminal that a program runs in, as a user's does. The program ends with it, or is ended."""

import os
import pty
import subprocess

from tests.launching import ROOT

IN_FRONT = 'exec "$@" < "$0"'
"""The first process of a session that opens a terminal receives the signal of its end."""


def closed_over(*command, seconds=30):
    """The exit code of a command; its terminal is closed after its first output."""
    ours, theirs = pty.openpty()
    words = ["sh", "-c", IN_FRONT, os.ttyname(theirs), *map(str, command)]
    with subprocess.Popen(words, cwd=ROOT, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        os.read(ours, 1 << 10)
        os.close(ours)
        try:
            return process.wait(seconds)
        finally:
            process.kill()
