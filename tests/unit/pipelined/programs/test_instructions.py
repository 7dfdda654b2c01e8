"""Instructions: how they read, and that what one gives is what its neighbours take."""

import pytest

from pipelined.programs.instructions import Instruction, gradient_sum

DEPTH = 4


def test_an_instruction_reads_as_stage_op_microbatch_pipe():
    assert repr(Instruction("F", 1, 2, 0)) == "2F0p1"


def test_a_gradient_sum_has_a_stage_alone_and_waits_for_no_message():
    both = gradient_sum(2)
    assert repr(both) == "2S" and not both.computes and both.takes(DEPTH) == both.gives(DEPTH) == []


@pytest.mark.parametrize("stage", range(DEPTH))
def test_a_forward_takes_what_the_stage_before_gives(stage):
    takes = Instruction("F", 0, stage, 3).takes(DEPTH)
    assert takes == ([] if stage == 0 else [("activation", 0, stage, 3)])
    if stage:
        assert set(takes) <= set(Instruction("F", 0, stage - 1, 3).gives(DEPTH))


@pytest.mark.parametrize("stage", range(DEPTH))
@pytest.mark.parametrize("op", "BI")
def test_a_backward_takes_its_own_forward_and_the_gradient_of_the_stage_after(op, stage):
    given = set(Instruction("F", 1, stage, 3).gives(DEPTH))
    if stage < DEPTH - 1:
        given |= set(Instruction(op, 1, stage + 1, 3).gives(DEPTH))
    takes = set(Instruction(op, 1, stage, 3).takes(DEPTH))
    assert takes <= given and len(takes) == 1 + (stage < DEPTH - 1)


def test_a_weight_half_takes_what_only_its_input_half_gives():
    (pending,) = Instruction("W", 0, 1, 2).takes(DEPTH)
    assert pending in Instruction("I", 0, 1, 2).gives(DEPTH)
    assert pending not in Instruction("B", 0, 1, 2).gives(DEPTH)
    assert Instruction("W", 0, 1, 2).gives(DEPTH) == []


def test_the_first_stage_sends_no_gradient_and_the_last_no_activation():
    assert Instruction("B", 0, 0, 0).gives(DEPTH) == []
    assert Instruction("F", 0, DEPTH - 1, 0).gives(DEPTH) == [("stash", 0, DEPTH - 1, 0)]
