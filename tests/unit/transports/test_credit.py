"""Counting what lies unasked at a receiver, at both ends, without either trusting the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import WireError
from transports._credit import ALL_PEERS_BYTES, FRAME_BYTES, LEAST_BYTES, Credit, credit_limit

LIMIT = 100 * FRAME_BYTES


def test_all_peers_share_what_may_lie_at_a_rank_but_none_has_less_than_the_least():
    assert credit_limit(1) == credit_limit(2) == ALL_PEERS_BYTES
    assert credit_limit(5) == ALL_PEERS_BYTES // 4
    assert credit_limit(10_000) == LEAST_BYTES


def test_what_is_beyond_the_limit_may_not_be_sent_until_something_was_taken():
    credit = Credit(LIMIT)
    assert all(credit.spend(0) for _ in range(100))
    assert not credit.spend(0)
    credit.regain(FRAME_BYTES)
    assert credit.spend(0) and not credit.spend(0)
    credit.save(0)
    assert credit.spend(0)


def test_a_peer_that_sends_more_than_it_may_is_told_both_numbers():
    credit = Credit(LIMIT)
    with pytest.raises(WireError, match=rf"bytes: {LIMIT + FRAME_BYTES}, limit: {LIMIT}"):
        credit.came(LIMIT)


@pytest.mark.parametrize("claimed", [0, -1, FRAME_BYTES + 1, "1", None, True])
def test_credit_for_what_was_never_sent_is_refused(claimed):
    credit = Credit(LIMIT)
    credit.spend(0)
    with pytest.raises(WireError, match="never sent"):
        credit.regain(claimed)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, LIMIT)), max_size=300))
def test_both_ends_agree_and_credit_always_comes_back(steps):
    sender, receiver, lying = Credit(LIMIT), Credit(LIMIT), []
    for sends, nbytes in steps:
        if sends and sender.spend(nbytes):
            receiver.came(nbytes)
            lying.append(nbytes)
        elif not sends and lying:
            told = receiver.taken(lying.pop())
            if told:
                sender.regain(told)
        assert sum(lying) + FRAME_BYTES * len(lying) <= LIMIT
    told = sum(receiver.taken(nbytes) for nbytes in lying)
    if told:
        sender.regain(told)
    assert sender.spend(3 * LIMIT // 4 - 2 * FRAME_BYTES)
