"""The proof and real executions over links that keep messages at their sender: they agree on thousands of programs."""

from collections import Counter
from random import Random

import pytest

from pipelined.programs.overlap import with_sums
from pipelined.programs.proof.check import check
from pipelined.programs.proof.deadlock import ProofLimits, find_deadlock, smallest_mailbox
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, find, schedule_names
from tests.unit.pipelined.programs.damage import DAMAGES, REORDERINGS, damaged, sound_programs
from tests.unit.pipelined.programs.held_links import executes

LIMITS = [
    {},
    {"mailbox": 0},
    {"mailbox": 1},
    {"mailbox": 2},
    {"blocking_sums": True},
    {"mailbox": 0, "blocking_sums": True},
    {"mailbox": 1, "blocking_sums": True},
]
PROGRAMS = 1000
"""Damaged programs held to their executions in a plain run; --full takes sixty times as many."""


def proved(program, **limits):
    try:
        check(program, **limits)
    except ScheduleError:
        return False
    return True


def timing(random):
    """Delays of which some are nothing and some far longer than others."""
    return lambda: random.choice((0.0, random.random(), 20 * random.random()))


def agreement(seed, number, damages, **limits):
    """How many of so many damaged programs are right, and how many not; each is proved and executed."""
    random, verdicts = Random(seed), Counter()
    for _ in range(number):
        program = damaged(random, sound_programs(), damages)
        verdict = proved(program, **limits)
        assert verdict == executes(program, timing(random), **limits), program
        verdicts[verdict] += 1
    return verdicts


@pytest.mark.in_turns(2)
def test_the_proof_agrees_with_the_execution_of_thousands_of_damaged_programs():
    verdicts = agreement(1, PROGRAMS, DAMAGES)
    assert min(verdicts[True], verdicts[False]) > PROGRAMS / 10


@pytest.mark.full
@pytest.mark.parametrize("part", range(40))
def test_the_proof_agrees_with_the_execution_of_tens_of_thousands_of_damaged_programs(part):
    agreement(f"2 {part}", 3 * PROGRAMS // 2, DAMAGES)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("limits", LIMITS[1:], ids=str)
def test_within_limits_the_proof_agrees_with_the_execution(limits):
    verdicts = agreement(3, PROGRAMS // 4, REORDERINGS, **limits)
    assert verdicts[True] and verdicts[False]


@pytest.mark.full
@pytest.mark.parametrize("part", range(24))
@pytest.mark.parametrize("limits", LIMITS[1:], ids=str)
def test_within_limits_the_proof_agrees_with_thousands_of_executions(limits, part):
    agreement(f"4 {part}", PROGRAMS // 2, DAMAGES, **limits)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_every_timing_of_a_program_ends_alike(limits):
    random = Random(5)
    for program in random.sample(sound_programs(), 12):
        assert {executes(program, timing(random), **limits) for _ in range(6)} == {proved(program, **limits)}


@pytest.mark.parametrize("name, ends", [("gpipe", True), ("gems", True), ("one_f_one_b", False), ("chimera", False)])
def test_without_mailboxes_only_what_is_drained_before_it_turns_ends(name, ends):
    program = record(find(name), Shape(4, 4))
    assert proved(program, mailbox=0) == ends == executes(program, lambda: 1.0, mailbox=0)


def test_doubled_forwards_deadlock_without_mailboxes_too():
    assert not proved(record(find("chimera"), Shape(4, 8, {"scale": "forward-doubling"})), mailbox=0)


@pytest.mark.parametrize("name", schedule_names())
def test_the_smallest_mailbox_is_enough_and_one_less_is_not(name):
    program = record(find(name), Shape(4, 8))
    smallest = smallest_mailbox(program)
    assert proved(program, mailbox=smallest) and executes(program, lambda: 1.0, mailbox=smallest)
    if smallest:
        assert not proved(program, mailbox=smallest - 1) and not executes(program, lambda: 1.0, mailbox=smallest - 1)


def test_without_a_mailbox_1f1b_deadlocks_between_neighbours_and_the_cycle_is_shown():
    with pytest.raises(ScheduleError) as caught:
        check(record(find("one_f_one_b"), Shape(2, 2)), mailbox=0)
    assert str(caught.value) == (
        "the order deadlocks (workers in the cycle: [0, 1], mailbox: 0); "
        "give mailboxes room for 1, or move one of these\n"
        "worker 0 | 0F0p0 0F1p0 0B0p0 0B1p0\n"
        "                 ^ cannot go on after its send (not requested: 1) before 1F1p0, instruction 2 of worker 1\n"
        "worker 1 | 1F0p0 1B0p0 1F1p0 1B1p0\n"
        "                 ^ cannot go on after its send (not requested: 1) before 0B0p0, instruction 2 of worker 0"
    )


def test_chimera_deadlocks_without_a_mailbox_where_its_pipes_meet():
    with pytest.raises(ScheduleError, match=r"workers in the cycle: \[1, 2\], mailbox: 0"):
        check(record(find("chimera"), Shape(4, 4)), mailbox=0)


def test_sums_that_block_deadlock_where_replicas_finish_in_different_orders():
    few = record(find("chimera"), Shape(4, 3))
    assert find_deadlock(few, ProofLimits()) is None
    assert find_deadlock(with_sums(few, "eager"), ProofLimits(blocking_sums=True)) == (
        "the order deadlocks (workers in the cycle: [1, 2], sums block); let sums be tasks of their own, "
        "or move one of these\n"
        "worker 1 | 1F0p0 2F2p1 1F1p0 2B2p1 2S 1B0p0 1B1p0 1S\n"
        "                                   ^ waits in the sum of stage 2 for 2S, instruction 7 of worker 2\n"
        "worker 2 | 1F2p1 2F0p0 2F1p0 2B0p0 1B2p1 1S 2B1p0 2S\n"
        "                                         ^ waits in the sum of stage 1 for 1S, instruction 7 of worker 1"
    )


def test_sums_that_block_are_fine_at_the_end():
    assert proved(with_sums(record(find("chimera"), Shape(4, 3)), "after"), blocking_sums=True)


@pytest.mark.parametrize("microbatches", [4, 8, 12])
def test_in_whole_units_chimera_s_replicas_finish_in_one_order(microbatches):
    assert proved(record(find("chimera"), Shape(4, microbatches)), blocking_sums=True)


def test_a_mailbox_of_less_than_nothing_is_refused():
    with pytest.raises(ScheduleError, match=r"mailbox: -1\); use 0 or more"):
        check(record(find("gpipe"), Shape(2, 2)), mailbox=-1)
