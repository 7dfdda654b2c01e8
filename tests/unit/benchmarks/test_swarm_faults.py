"""A stall is what a fault adds to an ordinary step, and one wrong bit or one missing step is counted."""

import pytest

from benchmarks.swarm_faults import DETECTION_S, TIMES_A_STEP, Fault, Options, Row, drawn, judged, rows_of
from tests.swarm.exact import Reference
from tests.swarm.exact_process import BATCH, STAGES, STEPS

FAULT = Fault("piece", "SIGKILL", "s0a", 3)


def lines(moments, struck):
    """Every stage takes every step at its moment, and from the last one on one each half a second."""
    reference, left = Reference(STAGES, BATCH), STEPS - len(moments)
    moments = [*moments, *(moments[-1] + 0.5 * more for more in range(1, left + 1))]
    took = [
        (at, ["took", str(step), str(stage), reference.weights(step, stage).tobytes().hex()])
        for step, at in enumerate(moments, 1)
        for stage in range(STAGES)
    ]
    gone = [(struck + late, ["gone", "s0a"]) for late in (0.3, 0.4)]
    return sorted([*took, (struck, ["struck", "piece", "SIGKILL"]), *gone])


def test_a_stall_is_the_longest_step_from_the_strike_on_less_an_ordinary_one():
    run = judged(FAULT, lines([1.0, 1.5, 2.0, 4.0, 4.5, 5.0], struck=2.1))
    assert run.struck and run.stall_s == pytest.approx(1.5) and run.ordinary_s == pytest.approx(0.5)
    assert run.differing == 0 and run.told == STEPS * STAGES
    assert run.detected_s == pytest.approx(0.3), "the first to know tells"


def test_a_wrong_bit_and_a_step_that_no_peer_took_are_counted():
    wrong = lines([1.0, 1.5, 2.0, 2.5, 3.0, 3.5], struck=1.2)
    wrong[0] = (1.0, [*wrong[0][1][:3], "00" * 32])
    assert judged(FAULT, wrong).differing == 1
    assert judged(FAULT, wrong[1:-STAGES]).differing == 1


def test_a_moment_that_never_came_is_no_stall():
    run = judged(FAULT, lines([1.0, 1.5, 2.0, 2.5, 3.0, 3.5], struck=99.0)[:-3])
    assert not run.struck and rows_of([run]) == [Row("piece", "SIGKILL", (), 0, STEPS * STAGES)]


def test_each_round_strikes_every_phase_in_every_way_and_the_same_for_the_same_seed():
    faults = list(drawn(Options(offsets=2)))
    assert faults == list(drawn(Options(offsets=2))) != list(drawn(Options(offsets=2, seed=1)))
    assert len({(fault.phase, fault.signal) for fault in faults}) == len(TIMES_A_STEP) * len(DETECTION_S)
    assert all(fault.late == [f"{fault.who[:2]}d"] for fault in faults if fault.phase in ("chunk", "manifest"))
