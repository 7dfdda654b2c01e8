"""The GPT-2 program, which sends itself a signal when it calls a function for the n-th time.

`python -m tests.chaos.struck_gpt2 SIGNAL WHERE N FLAG ...`; a test that read its output would signal some steps later.
"""

import os
import signal
import sys

from apps.gpt2 import __main__ as gpt2
from pipelined.process.exit import end_process
from pipelined.state.checkpoints import checkpoint
from pipelined.training.stages.stage import Stage

WHERE = {"forward": (Stage, "forward"), "commit": (checkpoint, "commit")}


def strike(number, where, call):
    owner, name = WHERE[where]
    plain, calls = getattr(owner, name), []

    def struck(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return plain(*args, **kwargs)

    setattr(owner, name, struck)


if __name__ == "__main__":
    sign, where, call, *flags = sys.argv[1:]
    strike(signal.Signals[sign], where, int(call))
    end_process(gpt2.main(flags))
