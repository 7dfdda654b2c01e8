"""Tells many stories in a process of their own: `python -m tests.swarm.stories FIRST LAST EVERY`.

It says nothing unless something is wrong: a warning is an error here, too.
"""

import gc
import sys
import warnings

from pipelined.aio.clock import run_virtual
from tests.swarm.story import Story


def main(first, last, every):
    warnings.simplefilter("error")
    gc.freeze()  # what was imported is not looked through again and again for garbage
    for seed in range(int(first), int(last), int(every)):
        run_virtual(Story(seed).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
