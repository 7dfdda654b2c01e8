"""The programs, a room each, and what they share."""

import sys

from pipelined.process.job_end import interrupt_quietly

interrupt_quietly(sys.orig_argv)
