"""Windows and meetings, over memory that this process has lent to itself."""

import mmap
import platform
from concurrent.futures import ThreadPoolExecutor

import pytest

from transports.shm.memfd import MemoryFile
from transports.shm.windows import HEADER_BYTES, SLEEP, Futex, MappedWindows, WaitState

NBYTES = 64
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the call has another number there")


def ranks(size):
    lents = [MemoryFile(HEADER_BYTES + NBYTES) for _ in range(size)]
    views = [MappedWindows(lent, [each.handle for each in lents], rank) for rank, lent in enumerate(lents)]
    for lent in lents:
        lent.close()
    return views


def test_what_one_writes_all_see():
    views = ranks(3)
    for rank, view in enumerate(views):
        view.windows[rank][:] = bytes([rank + 1]) * NBYTES
    for view in views:
        assert [bytes(window) for window in view.windows] == [bytes([rank + 1]) * NBYTES for rank in range(3)]


def test_a_barrier_waits_for_every_rank():
    first, second, third = ranks(3)
    assert first.first_missing() is None  # no rank has entered, and none had to
    assert first.arrive() == 0  # the second rank is the first of its others
    assert second.arrive() == 1 and first.first_missing() == 1
    assert third.arrive() is None
    assert first.first_missing() is second.first_missing() is third.first_missing() is None
    assert [view.epoch for view in (first, second, third)] == [1, 1, 1]


def test_a_rank_already_met_returns_at_once():
    first, second = ranks(2)
    first.arrive(), second.arrive(), second.arrive()
    assert first.first_missing() is None and second.first_missing() == 0


@pytest.mark.parametrize("oversubscribed", [False, True])
def test_a_watch_ends_while_ranks_are_absent(oversubscribed):
    first, second = ranks(2)
    first.arrive()
    assert first.poll_for(0.0, oversubscribed) == 0
    second.arrive()
    assert first.poll_for(0.0, oversubscribed) is None


def test_a_rank_in_deep_sleep_needs_a_doorbell():
    first, second, third = ranks(3)
    second.sleep(WaitState.ASLEEP), third.sleep(WaitState.ASLEEP)
    assert first.wake() == [0, 1] and second.wake() == [1]
    second.sleep(WaitState.NONE)
    assert first.wake() == [1]
    third.sleep(WaitState.NAP)
    assert first.wake() == []


def test_a_napping_rank_is_woken_by_the_last_to_come():
    first, second, third = ranks(3)
    first.arrive(), second.arrive()
    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(view.poll_for, 60.0, oversubscribed=True) for view in (first, second)]
        while any(sleep[SLEEP] != WaitState.NAP for sleep in third._sleeps):
            pass
        assert third.arrive() is None and third.wake() == []
        assert [look.result(30) for look in looking] == [None, None]
    assert all(sleep[SLEEP] == WaitState.NONE for sleep in third._sleeps)


def test_memory_that_is_gone_cannot_be_mapped():
    lent = MemoryFile(HEADER_BYTES + NBYTES)
    gone = MemoryFile(HEADER_BYTES + NBYTES)
    gone.close()
    with pytest.raises(OSError):
        MappedWindows(lent, [lent.handle, gone.handle], 0)
    lent.close()


def memory_with(number):
    memory = mmap.mmap(-1, 4096)
    memory[64:68] = number.to_bytes(4, "little")
    return memory


def test_no_rank_sleeps_on_a_changed_value():
    Futex(memory_with(8), 64).wait(7, 1e9)


def test_a_sleeper_wakes_after_its_time_limit():
    Futex(memory_with(7), 64).wait(7, 1e-3)


def test_only_the_lower_half_of_a_long_count_is_looked_at():
    Futex(memory_with(8), 64).wait(7 + (1 << 32), 1e9)


def test_a_sleeper_is_woken_through_another_mapping():
    memory = memory_with(7)
    sleeper, waker = Futex(memory, 64), Futex(memory, 64)
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(sleeper.wait, 7, 1e6)
        memory[64] = 8  # asleep by now or not, it does not sleep on
        while not sleeping.done():
            waker.wake()
        assert sleeping.result() is None
