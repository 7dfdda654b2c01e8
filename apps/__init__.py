"""The programs, and the models and text that they train on."""

import pipelined  # noqa: F401 (from here on Ctrl-C ends a program quietly)
