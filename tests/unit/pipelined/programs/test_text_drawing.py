"""The text grid: the pictures of the paper, in characters."""

from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Instruction, Program
from pipelined.programs.overlap import with_sums
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.timeline import Timed, Timeline
from pipelined.programs.recording import record
from pipelined.programs.text_drawing import fault_grid, timeline_grid
from pipelined.schedules import Shape, StageMap, find


def grid(name, depth, microbatches, costs=(1, 2)):
    """The grid of a program with its gradient sums, which take no time and are not drawn."""
    program = with_sums(record(find(name), Shape(depth, microbatches)))
    return timeline_grid(price(program, Costs(*costs)))


def test_chimera_of_four_by_four_looks_as_in_the_paper():
    assert grid("chimera", 4, 4).splitlines() == [
        "worker 0 (0 3)  |F0|F1|  |F2|B2   |F3|B3   |  |B0   |     |B1   |",
        "worker 1 (1 2)     |F0|F2|F1|F3|  |B2   |B0   |B3   |B1   |",
        "worker 2 (1 2)     |F2|F0|F3|F1|  |B0   |B2   |B1   |B3   |",
        "worker 3 (0 3)  |F2|F3|  |F0|B0   |F1|B1   |  |B2   |     |B3   |",
    ]


def test_cells_widen_for_longer_numbers_and_keep_to_scale():
    assert grid("gpipe", 1, 11).startswith("worker 0 (0)  |F0 |F1 |F2 ")
    assert "|F10|B0     |" in grid("gpipe", 1, 11)
    assert grid("gpipe", 1, 1, (2, 3)) == "worker 0 (0)  |F0|B0  |"


def test_a_hopeless_ratio_loses_labels_not_the_shape():
    (row,) = grid("gpipe", 1, 1, (1, 1_000_000)).splitlines()
    assert len(row) < 2100 and "B0" in row and "F0" not in row


def test_what_takes_no_time_has_no_cell():
    assert grid("gpipe", 1, 1, (0, 0)) == "worker 0 (0)  |"
    assert grid("gpipe", 1, 1, (0, 1)) == "worker 0 (0)  |B0|"


def test_the_stage_is_named_where_a_worker_holds_two_of_a_pipe():
    stage_map = StageMap(2, 1, {(0, 0): 0, (0, 1): 0}, ((0,),))
    done = (Timed(Instruction("F", 0, 0, 0), 0, 1), Timed(Instruction("F", 0, 1, 0), 1, 2))
    assert timeline_grid(Timeline(stage_map, (done,))) == "worker 0 (0 1)  |0F0|1F0|"


def test_an_arrow_stands_under_the_instruction_it_means():
    stage_map = StageMap(1, 1, {(0, 0): 0}, ((0,),))
    program = Program(stage_map, ((Instruction("F", 0, 0, 0), Instruction("B", 0, 0, 0)),))
    assert fault_grid(program, {(0, 1): "here", (0, 2): "behind"}) == (
        "worker 0 | 0F0p0 0B0p0\n                 ^ here\n                       ^ behind"
    )


def test_rows_go_on_below_where_a_terminal_is_narrow():
    timeline = price(record(find("gpipe"), Shape(2, 2)), Costs(1, 2))
    whole = timeline_grid(timeline).splitlines()
    parts = [part.splitlines() for part in timeline_grid(timeline, columns=36).split("\n\n")]
    assert {line[:12] for part in parts for line in part} == {"worker 0 (0)", "worker 1 (1)"}
    for worker in range(2):
        assert "".join(part[worker][14:].ljust(22) for part in parts).rstrip() == whole[worker][14:]
    assert max(len(line) for part in parts for line in part) == 36


def test_of_a_long_program_only_what_is_around_the_arrows_is_shown():
    stage_map = StageMap(1, 1, {(0, 0): 0}, (tuple(range(50)),))
    program = Program(stage_map, (tuple(Instruction("F", 0, 0, number) for number in range(50)),))
    line, *notes = fault_grid(program, {(0, 0): "first", (0, 30): "amid", (0, 50): "behind"}).splitlines()
    shown = [0, 1, 2, 3, 4, 5, 6, 7, 8, *range(22, 39), *range(42, 50)]
    assert [int(cell[2:-2]) for cell in line.split() if cell.startswith("0F")] == shown
    assert line.count(" … ") == 2 and line.endswith("0F49p0")
    arrows = [note.index("^") for note in notes]
    assert line[arrows[0] :].startswith("0F0p0 ") and line[arrows[1] :].startswith("0F30p0 ")
    assert arrows[2] == len(line) + 1
