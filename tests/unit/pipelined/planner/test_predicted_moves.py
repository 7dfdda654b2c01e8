"""Moves of teams: written, read, and told beside what they took."""

import pytest

from pipelined.planner.predicted_moves import PredictedMoves, drifted_moves

FORWARD = PredictedMoves(1, "forward", 4096, 2e-3)


def test_moves_are_written_and_read():
    assert PredictedMoves.of(FORWARD.to_dict()) == FORWARD


@pytest.mark.parametrize(
    "changes",
    [{"stage": "1"}, {"phase": "sideways"}, {"bytes": 1.5}, {"seconds": -1.0}, {"seconds": "soon"}, {"bytes": None}],
    ids=str,
)
def test_damaged_moves_are_refused(changes):
    with pytest.raises(TypeError, match="moves"):
        PredictedMoves.of(FORWARD.to_dict() | changes)


def test_each_stage_has_a_line_of_the_phases_that_send_and_were_measured():
    predicted = [FORWARD, FORWARD._replace(phase="backward", nbytes=0), PredictedMoves(1, "update", 8, 1e-5)]
    predicted += [FORWARD._replace(stage=0)]
    measured_s = {(1, "forward"): 3e-3, (1, "backward"): 1e-3, (1, "update"): 1e-3}
    assert drifted_moves(predicted, measured_s) == [
        "moves of stage 1: forward 3.00 ms (planned 2.00 for 4,096 bytes); update 1.00 ms (planned 0.01 for 8 bytes)"
    ]
