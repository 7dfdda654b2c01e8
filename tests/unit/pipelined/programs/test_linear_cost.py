"""Proving and pricing read each instruction a bounded number of times, however long the program is."""

from dataclasses import replace

import pytest

from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Program
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find


class Counted(tuple):
    """A tuple that counts how many of its items are looked at."""

    looks = 0

    def __getitem__(self, place):
        Counted.looks += len(range(*place.indices(len(self)))) if isinstance(place, slice) else 1
        return super().__getitem__(place)

    def __iter__(self):
        Counted.looks += len(self)
        return super().__iter__()

    def __contains__(self, item):
        Counted.looks += len(self)
        return super().__contains__(item)


def looks_an_instruction(work, name, microbatches):
    program = record(find(name), Shape(4, microbatches))
    stage_map = replace(program.stage_map, microbatches=tuple(map(Counted, program.stage_map.microbatches)))
    counted = Program(stage_map, tuple(map(Counted, program.workers)))
    Counted.looks = 0
    work(counted)
    return Counted.looks / sum(map(len, program.workers))


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "chimera"])
@pytest.mark.parametrize("work", [check, lambda program: price(program, Costs())], ids=["check", "price"])
def test_a_program_twice_as_long_takes_twice_the_work(work, name):
    short, long = (looks_an_instruction(work, name, microbatches) for microbatches in (64, 512))
    assert long <= short * 1.01 < 20
