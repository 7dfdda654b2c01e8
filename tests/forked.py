"""Processes forked from one that has imported what they run: each import of torch takes a core for seconds.

They are processes as any other: a signal, a kill or a cut befalls one of them alone.
"""

import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager
from importlib import import_module

FORKS = multiprocessing.get_context("forkserver")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: several of them share a core
FORKS.set_forkserver_preload(["tests.ravnest.struck_node", "tests.swarm.exact_process"])


class Forked:
    """A process that runs `main(*words)` of a module.

    Args:
        merged: whether its errors come with what it prints.
    """

    def __init__(self, module, words, merged=False):
        reader, writer = FORKS.Pipe(duplex=False)
        self.stdout = os.fdopen(os.dup(reader.fileno()))
        """What it prints, as a file of text."""
        reader.close()
        self._process = FORKS.Process(target=_main, args=(module, [str(word) for word in words], writer, merged))
        self._process.start()
        writer.close()

    @property
    def returncode(self):
        return self._process.exitcode

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self._process.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self):
        self._process.join()
        return self.returncode

    def close(self):
        """Kill it if it runs, and close what it prints to."""
        self.kill()
        self.wait()
        self.stdout.close()


@contextmanager
def forked(module, *words, merged=False):
    """Start a process; what is left of it at the end of the block is killed."""
    process = Forked(module, words, merged)
    try:
        yield process
    finally:
        process.close()


def _main(module, words, writer, merged):
    for number in (1, 2) if merged else (1,):
        os.dup2(writer.fileno(), number)
    writer.close()
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(import_module(module).main(*words))
