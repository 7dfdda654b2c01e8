"""The arena: a block is read in place, and its pages are free again when no view of them is left."""

import sys

import numpy as np
import pytest

from transports import Block, WireError
from transports.shm.arena import PAGE, SHARE, Arena, PeerArena
from transports.shm.memfd import HANDLE_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's own")

NBYTES = 64 * PAGE


@pytest.fixture
def ends():
    arena = Arena(NBYTES)
    yield arena, PeerArena(arena.handle, NBYTES)
    arena.close()


def body(pages, salt=0):
    """A block of this many pages that no other test writes."""
    return Block.of(np.arange(pages * PAGE // 8) + salt)


def test_blocks_lie_one_after_the_other_where_they_were_put(ends):
    arena, window = ends
    several = [Block.of(np.arange(5.0)), Block.of(np.empty((0, 3))), Block.of(b"abc")]
    for turn in range(3):
        view = window.view(arena.put([body(2, turn)]), 2 * PAGE)
        both = window.view(arena.put(several), 43)
        assert bytes(view) == bytes(body(2, turn).data)
        assert bytes(both) == b"".join(bytes(block.data) for block in several)


def test_a_processor_that_does_not_keep_the_order_of_its_accesses_gets_no_arena(monkeypatch):
    """There, a freed page could be overwritten before the last read of it."""
    monkeypatch.setattr("transports.shm.arena.TOTAL_STORE_ORDER", False)
    arena = Arena(NBYTES)
    assert arena.handle == bytes(HANDLE_BYTES) and arena.put([body(1)]) is None
    arena.close()


def test_pages_are_used_again_when_the_last_view_of_them_is_gone(ends):
    arena, window = ends
    first = arena.put([body(3)])
    part = np.frombuffer(window.view(first, 3 * PAGE), np.int64)[7:9]
    second = arena.put([body(3)])
    assert second >= first + 3 and part.tolist() == [7, 8]
    del part
    assert arena.put([body(3)]) == first


def test_unread_bodies_stay(ends):
    arena, window = ends
    pages = [arena.put([body(1, salt)]) for salt in range(64)]
    assert sorted(pages) == list(range(64)) and arena.put([body(1)]) is None
    for salt, page in enumerate(pages):
        assert bytes(window.view(page, PAGE)) == bytes(body(1, salt).data)
    assert arena.put([body(1)]) == 0


def test_a_body_takes_its_share_at_most_and_a_gap_that_fits(ends):
    arena, window = ends
    assert arena.put([body(64 // SHARE + 1)]) is None
    pages = [arena.put([body(16)]) for _ in range(4)]
    del pages[1]
    window.view(16, 15 * PAGE)  # looked at and let go
    assert arena.put([body(16)]) is None
    assert arena.put([body(15)]) == 16


def test_seen_memory_may_be_written_to(ends):
    arena, window = ends
    view = np.frombuffer(window.view(arena.put([body(1)]), PAGE), np.uint8)
    view[:] = 7
    assert (view == 7).all()


@pytest.mark.parametrize(("page", "nbytes"), [(64, 1), (63, PAGE + 1), (0, NBYTES + 1), (65535, PAGE), (0, 0)])
def test_a_page_outside_the_arena_is_refused(ends, page, nbytes):
    with pytest.raises(WireError, match=rf"page: {page}, bytes: {nbytes}, pages: 64"):
        ends[1].view(page, nbytes)


def test_a_viewed_body_outlives_the_arena(ends):
    arena, window = ends
    view = window.view(arena.put([body(2)]), 2 * PAGE)
    arena.close()
    assert bytes(view) == bytes(body(2).data)
    with pytest.raises(OSError):
        PeerArena(arena.handle, NBYTES)
    assert arena.put([body(1)]) is None
    arena.set_sleep_state(1)


def test_a_peer_sleeps_until_another_marks_it_awake(ends):
    arena, window = ends
    assert window.sleep_state == 0 and not window.mark_awake()
    for how in (1, 2):
        arena.set_sleep_state(how)
        assert window.sleep_state == how
        assert window.mark_awake() and not window.mark_awake()
    arena.set_sleep_state(1)
    arena.set_sleep_state(0)
    assert not window.mark_awake()


def test_an_empty_body_is_refused():
    with pytest.raises(OSError):
        PeerArena(bytes(HANDLE_BYTES), NBYTES)


def test_a_full_arena_takes_no_body_and_still_shows_its_sleep_state():
    arena = Arena(0)
    arena.set_sleep_state(1)
    assert arena.put([body(1)]) is None and PeerArena(arena.handle, 0).sleep_state == 1
    arena.close()
