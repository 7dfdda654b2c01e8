"""How long is late follows from answers of the same kind; who let one lie is doubted until the next answer."""

from pipelined.aio.latency import MULTIPLE, UNKNOWN
from pipelined.swarm.leader.pace import Pace


def pace():
    return Pace(lambda: 0.0, least=3.0)


def test_one_answer_is_enough_and_validation_data_is_of_another_kind():
    seen = pace()
    seen.observe("slot", held_out=False, seconds=2.0)
    assert (seen.limit(held_out=False), seen.limit(held_out=True)) == (2.0 * MULTIPLE, 3.0 * UNKNOWN)
    seen.observe("slot", held_out=True, seconds=0.1)
    assert (seen.limit(held_out=False), seen.limit(held_out=True)) == (2.0 * MULTIPLE, 3.0)


def test_an_answer_ends_the_doubt():
    seen = pace()
    seen.doubt("slot")
    assert seen.doubts("slot") and not seen.doubts("other")
    seen.observe("slot", held_out=True, seconds=1.0)
    assert not seen.doubts("slot")


def test_who_is_gone_is_doubted_no_more():
    seen = pace()
    seen.doubt("t0/1")
    seen.forget(lambda slot: slot.startswith("t0/"))
    assert not seen.doubts("t0/1")
