"""Chimera: orders, placement and numbering as in the paper."""

import pytest

from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, Worker, find

chimera = find("chimera")


def order(shape):
    return [" ".join(f"{i.op}{i.microbatch}" for i in worker) for worker in record(chimera, shape).workers]


def test_the_order_of_four_by_four():
    assert order(Shape(4, 4)) == [
        "F0 F1 F2 B2 F3 B3 B0 B1",
        "F0 F2 F1 F3 B2 B0 B3 B1",
        "F2 F0 F3 F1 B0 B2 B1 B3",
        "F2 F3 F0 B0 F1 B1 B2 B3",
    ]


def five_phases(depth, worker, units):
    """The figure of the paper for one worker and two pipes, as (op, pipe)."""
    own, other = (0, 1) if worker < depth // 2 else (1, 0)
    near = min(worker, depth - 1 - worker)
    far = depth // 2 - near
    for unit in range(units):
        for _ in range(far):
            if unit:
                yield "B", own
            yield "F", own
        yield from [("F", other), ("F", own)] * near
        yield from [("F", other), ("B", other)] * far
        yield from [("B", own), ("B", other)] * near
    yield from [("B", own)] * far


@pytest.mark.parametrize("depth", range(2, 18, 2))
@pytest.mark.parametrize("units", [1, 2, 3])
def test_the_slot_rule_gives_the_five_phases(depth, units):
    for worker, instructions in enumerate(record(chimera, Shape(depth, units * depth)).workers):
        assert [(i.op, i.pipe) for i in instructions] == list(five_phases(depth, worker, units))


class Standing(Worker):
    """A worker that is only asked where it stands."""

    async def _execute(self, op, pipe, stage, microbatch): ...


@pytest.mark.parametrize("depth", range(2, 18, 2))
def test_no_two_instructions_of_a_worker_share_a_slot(depth):
    for each_way in (f for f in range(1, depth // 2 + 1) if depth // 2 % f == 0):
        stage_map = chimera.stage_map(Shape(depth, 2 * depth, {"pipes": 2 * each_way}))
        for index in range(depth):
            taken = [slot for slot, _, _ in chimera.slots(Standing(index, stage_map))]
            assert len(set(taken)) == len(taken) == 4 * depth


def test_pipes_start_where_the_paper_starts_them():
    placement = chimera.stage_map(Shape(8, 8, {"pipes": 4})).placement
    assert [placement[1, stage] for stage in range(8)] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert [placement[2, stage] for stage in range(8)] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert [placement[3, stage] for stage in range(8)] == [3, 2, 1, 0, 7, 6, 5, 4]


@pytest.mark.parametrize(
    "shape, microbatches",
    [
        (Shape(4, 1), ((0,), ())),
        (Shape(4, 3), ((0, 1), (2,))),
        (Shape(4, 8), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (Shape(4, 9), ((0, 1, 4, 5, 8), (2, 3, 6, 7))),
        (Shape(8, 3, {"pipes": 4}), ((0,), (1,), (2,), ())),
        (Shape(4, 8, {"scale": "forward-doubling"}), ((0, 1, 2, 3), (4, 5, 6, 7))),
        (Shape(4, 12, {"scale": "forward-doubling"}), ((0, 1, 2, 3, 8, 9), (4, 5, 6, 7, 10, 11))),
        (Shape(4, 4, {"scale": "backward-halving"}), ((0, 1, 2, 3), (4, 5, 6, 7))),
    ],
)
def test_microbatches_are_numbered_unit_by_unit_and_pipe_by_pipe(shape, microbatches):
    assert chimera.stage_map(shape).microbatches == microbatches
    check(record(chimera, shape))


def test_halved_microbatches_are_twice_as_many_parts():
    assert chimera.stage_map(Shape(4, 4, {"scale": "backward-halving"})).pieces == 2
    assert chimera.stage_map(Shape(4, 8, {"scale": "forward-doubling"})).pieces == 1


def test_the_schedules_named_for_odd_depths_take_them():
    with pytest.raises(ScheduleError) as caught:
        chimera.stage_map(Shape(5, 4))
    for name in str(caught.value).partition("any depth: ")[2].split(", "):
        check(record(find(name), Shape(5, 4)))
