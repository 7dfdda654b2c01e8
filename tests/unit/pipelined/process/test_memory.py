"""Freed memory is kept: the same block, allocated again, costs no page faults. Old objects are not looked through."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from pipelined.process.memory import keep_freed
if sys.argv[1] == "keep":
    assert keep_freed()
def fill():
    np.empty(8 << 20, np.uint8).fill(1)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_a_block_allocated_again_faults_no_pages():
    assert faults("keep") < faults("give back") / 4


GARBAGE = """
import gc, sys, weakref
from pipelined.process.memory import frozen_objects
class Circle:
    def __init__(self):
        self.itself = self
gc.disable()
old = weakref.ref(Circle())
if sys.argv[1] == "frozen":
    gc.freeze()
with frozen_objects():
    new = weakref.ref(Circle())
    gc.collect()
    print(old() is not None, new() is not None)
gc.collect()
print(old() is not None, gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(("before", "after"), [("nothing", "False False"), ("frozen", "True True")])
def test_old_garbage_is_left_alone_and_new_is_found(before, after):
    done = subprocess.run([sys.executable, "-c", GARBAGE, before], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False", after]
