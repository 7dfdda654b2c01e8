"""NumberPool are used again, in rotation, and none is allocated twice at a time."""

import pytest

from transports import TransportError
from transports.wire.number_pool import NumberPool


def test_numbers_are_used_again_but_never_twice_at_a_time():
    numbers = NumberPool("held messages", 32768)
    assert [numbers.allocate() for _ in range(32768)] == list(range(32768))
    with pytest.raises(TransportError, match=r"too many held messages \(at once: 32768"):
        numbers.allocate()
    for number in (77, 5, 5):
        numbers.release(number)
    assert [numbers.allocate(), numbers.allocate()] == [5, 77]


def test_a_freed_number_is_the_last_to_be_used_again():
    numbers = NumberPool("streams", 3, first=1)
    assert numbers.allocate() == 1
    numbers.release(1)
    numbers.release(0)  # means "no stream" to its caller, and is not a number
    assert [numbers.allocate() for _ in range(3)] == [2, 3, 1]
