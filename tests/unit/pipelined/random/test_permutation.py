"""The keyed permutation: a bijection for every count and key, with known answers."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.random.permutation import KeyedPermutation


@given(count=st.integers(1, 300), key=st.binary(min_size=1, max_size=16))
def test_every_number_comes_once(count: int, key: bytes):
    order = KeyedPermutation(count, key)
    assert sorted(order[place] for place in range(count)) == list(range(count))


def feistel(number: int, left_bits: int, right_bits: int, key: bytes) -> int:
    """Six rounds of (l, r) -> (r, l xor f(r)), as the papers have them."""
    left, right = divmod(number, 2**right_bits)
    for turn in range(6):
        mixed = hashlib.blake2b(turn.to_bytes(1, "big") + right.to_bytes(8, "big"), key=key, digest_size=8)
        left, right = right, left ^ (int(mixed.hexdigest(), 16) % 2 ** (right_bits if turn % 2 else left_bits))
    return left * 2**right_bits + right


@given(place=st.integers(0, 4**12 - 1))
def test_a_power_of_two_is_one_feistel_network(place: int):
    assert KeyedPermutation(4**12, b"key")[place] == feistel(place, 12, 12, b"key")


def test_another_count_walks_the_network_until_a_number_is_in_range():
    for place in range(20):
        number = feistel(place, 2, 3, b"key")
        while number >= 20:
            number = feistel(number, 2, 3, b"key")
        assert KeyedPermutation(20, b"key")[place] == number


def test_the_order_of_a_key_stays_from_release_to_release():
    assert [KeyedPermutation(10, b"key")[place] for place in range(10)] == [6, 8, 4, 2, 3, 7, 1, 9, 0, 5]


def test_a_place_outside_is_refused():
    with pytest.raises(IndexError, match="place: 3, numbers: 3"):
        KeyedPermutation(3, b"key")[3]
