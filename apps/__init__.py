"""The programs, a room each, and what they share."""

import pipelined  # noqa: F401 (from here on Ctrl-C ends a program quietly)
