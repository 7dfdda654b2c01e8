"""Pipelined equals plain: losses, norms and parameters of every arrangement are those of one process, in float64."""

import asyncio
import inspect

import pytest
import torch

from pipelined.programs.instructions import Program
from pipelined.programs.overlap import with_sums
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find, schedule_names, write_table
from tests.conformance.worlds import tcp_world
from tests.numerics.arrangements import sampled
from tests.numerics.plain import Case, assert_same, pipelined, plain
from transports import local, new_event_loop


def together(case, world=local.world):
    """What every rank of a world that shares one loop ends with."""

    async def main():
        ends = world(case.plan.world_size)
        transports = await ends if inspect.isawaitable(ends) else ends
        async with asyncio.TaskGroup() as ranks:
            tasks = [ranks.create_task(pipelined(case, transport)) for transport in transports]
        await asyncio.gather(*(transport.close() for transport in transports))
        return [task.result() for task in tasks]

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


SAMPLE = sampled(every=14)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("case", SAMPLE)
def test_an_arrangement_gives_the_numbers_of_one_process(case):
    expected = plain(case)
    for outcome in together(case):
        assert_same(expected, outcome)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("case", sampled(every=86, ranks=range(1, 9)))
def test_an_arrangement_gives_the_numbers_of_one_process_over_tcp(case):
    expected = plain(case)
    for outcome in together(case, tcp_world):
        assert_same(expected, outcome)


def test_every_synchronous_schedule_is_compared_in_every_run():
    compared = {parameters.values[0].schedule for parameters in SAMPLE if not parameters.marks}
    assert compared >= {name for name in schedule_names() if find(name).stage_map(Shape(2, 2)).updates.flushes}


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("later", [0, 1])
def test_a_schedule_that_sums_its_own_gradients_gives_the_numbers_of_one_process(tmp_path, later):
    """Chimera as a table, with each sum right after its last gradient or one instruction later, in two groups."""
    program = with_sums(record(find("chimera"), Shape(4, 4)), "eager")
    workers = []
    for instructions in program.workers:
        mine = list(instructions)
        for early in [i for i in mine[:-1] if not i.computes]:
            at = mine.index(early)
            mine.insert(at + later, mine.pop(at))
        workers.append(tuple(mine))
    table = tmp_path / "own.csv"
    table.write_text(write_table(program.stage_map, Program(program.stage_map, tuple(workers)).keys))
    case = Case(str(table), 4, 2, 4)
    expected = plain(case)
    for outcome in together(case):
        assert_same(expected, outcome)


def test_the_comparison_can_fail():
    """A tied embedding with a gradient that is counted once too often, say, must not pass."""
    case = Case("gpipe", 2, 1, 2)
    expected, got = plain(case), plain(case)
    got.parameters["transformer.wte.weight"][0, 0] *= 1 + 1e-8
    with pytest.raises(AssertionError, match=r"transformer\.wte\.weight"):
        assert_same(expected, got)


def test_replicas_of_a_parameter_are_equal_to_the_bit():
    case = Case("chimera", 4, 2, 4)
    outcomes = together(case)
    for outcome in outcomes:
        for other in outcomes:
            for name in outcome.parameters.keys() & other.parameters.keys():
                assert torch.equal(outcome.parameters[name], other.parameters[name])
