"""Sleeping on memory of this process."""

import mmap
import platform
from concurrent.futures import ThreadPoolExecutor

import pytest

from transports.shm.futex import Futex

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the call has another number there")


def memory_with(number):
    memory = mmap.mmap(-1, 4096)
    memory[64:68] = number.to_bytes(4, "little")
    return memory


def test_nobody_sleeps_on_a_number_that_has_changed():
    Futex(memory_with(8), 64).wait(7, 1e9)


def test_who_is_not_woken_wakes_by_itself():
    Futex(memory_with(7), 64).wait(7, 1e-3)


def test_only_the_lower_half_of_a_long_count_is_looked_at():
    Futex(memory_with(8), 64).wait(7 + (1 << 32), 1e9)


def test_who_sleeps_is_woken_by_another_mapping_of_the_word():
    memory = memory_with(7)
    sleeper, waker = Futex(memory, 64), Futex(memory, 64)
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(sleeper.wait, 7, 1e6)
        memory[64] = 8  # asleep by now or not, it does not sleep on
        while not sleeping.done():
            waker.wake()
        assert sleeping.result() is None
