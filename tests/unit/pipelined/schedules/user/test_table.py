"""Schedules as CSV tables: they come back as they were, torch's own loader reads ours, and we read torch's."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Program
from pipelined.programs.overlap import SUM_STARTS, with_sums
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, StageMap, find, schedule_names
from pipelined.schedules.user.table import read_table, write_table

ONE_PIPE = {
    "gpipe": Shape(4, 8),
    "one_f_one_b": Shape(4, 8),
    "interleaved": Shape(8, 8, {"chunks": 2}),
    "zb_h1": Shape(4, 8),
    "zb_v": Shape(8, 8),
    "dualpipe_v": Shape(8, 8),
}
WITHOUT_FLUSH = ("async_1f1b", "pipedream", "pipedream_2bw")
ORDER = "0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.fixture
def table(tmp_path):
    """Write a table and say where it is."""

    def written(text):
        (tmp_path / "table.csv").write_text(text)
        return str(tmp_path / "table.csv")

    return written


def text_of(program):
    return write_table(program.stage_map, program.keys)


def read_back(path):
    schedule = find(path)
    return record(schedule, schedule.shape)


def as_a_table_says_it(program):
    """A program without what only its schedule's file knows of its stage map."""
    whole = program.stage_map
    stage_map = StageMap(whole.depth, whole.workers, whole.placement, whole.microbatches, updates=whole.updates)
    return Program(stage_map, program.workers)


@given(st.sampled_from(schedule_names()), st.integers(1, 8), st.integers(2, 12), st.integers(1, 2))
def test_what_is_written_is_read_back(tmp_path_factory, name, depth, microbatches, chunks):
    try:
        program = record(find(name), Shape(depth, microbatches, {"chunks": chunks}))
    except ScheduleError:
        program = record(find(name), Shape(4, 4))
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    path.write_text(text_of(program))
    assert read_back(str(path)) == as_a_table_says_it(program)


@pytest.mark.parametrize("sync", SUM_STARTS)
@pytest.mark.parametrize("name", sorted({*schedule_names()} - {*WITHOUT_FLUSH}))
def test_sums_are_read_back_where_they_were_written(table, name, sync):
    program = with_sums(record(find(name), Shape(4, 4)), sync)
    again = read_back(table(text_of(program)))
    assert again == as_a_table_says_it(program)
    check(again)


def test_a_sum_is_torch_s_reduce_grad(table):
    assert text_of(with_sums(record(find("gpipe"), Shape(2, 1)))) == "0F0,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n"


def test_a_table_with_a_sum_for_one_worker_alone_leaves_the_others_to_the_pass(table):
    program = read_back(table("0F0,0B0\n1F0,1B0,1REDUCE_GRAD\n"))
    assert [list(map(repr, mine)) for mine in program.workers] == [["0F0p0", "0B0p0"], ["1F0p0", "1B0p0", "1S"]]
    assert [repr(mine[-1]) for mine in with_sums(program).workers] == ["0S", "1S"]


def test_a_pipe_stands_after_its_microbatch_where_there_are_several(table):
    assert text_of(record(find("gpipe"), Shape(2, 1))) == "0F0,0B0\n1F0,1B0\n"
    assert text_of(record(find("gems"), Shape(2, 2))) == "0F0p0,0B0p0,1F1p1,1B1p1\n1F0p0,1B0p0,0F1p1,0B1p1\n"


def test_halved_microbatches_have_no_cell():
    with pytest.raises(ScheduleError, match=r"microbatches are cut \(pieces: 2\); use `scale=direct`"):
        text_of(record(find("chimera"), Shape(4, 4, {"scale": "backward-halving"})))


def test_the_first_row_says_how_weights_are_updated_without_a_flush():
    rows = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert text_of(record(find("pipedream"), Shape(2, 2))) == "updates every 1\n" + rows
    assert text_of(record(find("pipedream_2bw"), Shape(2, 2))) == "updates every 2 delay 1\n" + rows


@pytest.mark.parametrize("name", WITHOUT_FLUSH)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_segment_is_read_back_and_its_steps_are_what_one_likes(table, name, steps):
    program = record(find(name), Shape(3, 4, steps=steps), Costs(1, 3))
    schedule = find(table(text_of(program)))
    assert record(schedule, Shape(3, 4, steps=steps)) == record(schedule, schedule.shape) == program


@pytest.mark.parametrize("name", WITHOUT_FLUSH)
def test_a_longer_segment_walks_the_table_again_and_a_shorter_one_leaves_out_the_end(table, name):
    written = record(find(name), Shape(3, 4, steps=2))
    schedule = find(table(text_of(written)))
    for steps in (1, 3, 5):
        program = record(schedule, Shape(3, 4, steps=steps))
        check(program)
        for row, walked in zip(program.workers, written.workers, strict=True):
            again = [replace(i, microbatch=i.microbatch + first) for first in range(0, 4 * steps, 8) for i in walked]
            assert list(row) == [i for i in again if i.microbatch < 4 * steps]


@pytest.mark.parametrize(
    "text, fact",
    [
        ("updates every 2\n0F0,0B0\n", r"is not of whole updates \(microbatches: 1, the last: 0, an update's: 2\)"),
        ("updates every 1\n0F1,0B1\n", r"is not of whole updates \(microbatches: 1, the last: 1"),
        ("updates every 1\n0F1,0B1,0F0,0B0\n", "the forwards of worker 0 are not in the order of their microbatches"),
        ("updates every 1\n0F0p0,0B0p0,0F1p1,0B1p1\n", "is asynchronous and has 2 pipes"),
        ("updates every 1\n\n", "row 2: there is no instruction"),
        ("updates every 1\n0F0,0B0,0REDUCE_GRAD\n", "is asynchronous, and each update sums its gradients"),
        ("updates every 1\n0F0,0X0\n", "row 2, column 2: cannot read '0X0'"),
        ("updates every 0\n0F0,0B0\n", "row 1, column 1: cannot read 'updates every 0'"),
        ("updates every 1\n0B0\n", "does not stop"),
        ("updates every 2\n0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", "2 microbatches alive, of at most 1"),
        ("updates every 1 delay 0\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "version 1 is not made yet, the newest is 0"),
    ],
)
def test_a_faulty_table_without_a_flush_is_refused(table, text, fact):
    with pytest.raises(ScheduleError, match=fact):
        check(read_back(table(text)))


def runtime(program):
    """torch's own runtime for a program's shape, without its processes."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    stage_map = program.stage_map
    stage = SimpleNamespace(
        num_stages=stage_map.depth, group_size=stage_map.workers, group_rank=0, is_first=True, is_last=False
    )
    return schedules._PipelineScheduleRuntime([stage], len(stage_map.microbatches[0]))


@pytest.mark.parametrize("name", ONE_PIPE)
def test_torch_loads_our_tables_and_writes_them_out_the_same(tmp_path, name):
    program = record(find(name), ONE_PIPE[name])
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    ours.write_text(text_of(program))
    loaded = runtime(program)
    loaded._load_csv(str(ours))
    assert loaded.stage_index_to_group_rank == {s: w for (_, s), w in program.stage_map.placement.items()}
    loaded._dump_csv(str(theirs), format="compute_only")
    assert read_back(str(theirs)) == as_a_table_says_it(program)


def test_torch_s_own_tables_are_read_with_what_looks_after_itself_left_out(tmp_path):
    program = record(find("interleaved"), ONE_PIPE["interleaved"])
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    ours.write_text(text_of(program))
    loaded = runtime(program)
    loaded._load_csv(str(ours))
    loaded._dump_csv(str(theirs), format="compute_comms")
    assert read_back(str(theirs)) == with_sums(as_a_table_says_it(program), "eager")
    hops = 7 * 8  # of eight stages no two neighbours share a worker
    skipped = read_table(theirs).omissions
    assert {kind: skipped[kind] for kind in ("SEND_F", "RECV_F", "SEND_B", "RECV_B")} == {
        "SEND_F": hops,
        "RECV_F": hops,
        "SEND_B": hops,
        "RECV_B": hops,
    }
    assert skipped["UNSHARD"] and skipped["RESHARD"] and "REDUCE_GRAD" not in skipped


def test_torch_s_overlapped_pairs_are_done_one_after_the_other(table):
    schedule = find(table("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"))
    program = record(schedule, schedule.shape)
    check(program)
    assert [repr(i) for i in program.workers[1]] == ["1F0p0", "1F1p0", "1B0p0", "1B1p0"]


def test_blank_cells_rows_after_the_last_and_spaces_say_nothing(table):
    plain, spaced = read_back(table(ORDER)), read_back(table("\ufeff" + ORDER.replace(",", " , ") + "\n,,\n"))
    assert plain == spaced
    assert price(plain, Costs()).makespan == 9


def test_its_shape_is_the_table_s(table):
    schedule = find(table(ORDER))
    assert schedule.shape == Shape(2, 2, {"pipes": 1, "chunks": 1})
    for other in (
        Shape(4, 2),
        Shape(2, 4),
        *(Shape(2, 2, knob) for knob in ({"pipes": 2}, {"chunks": 2}, {"ahead": "2"})),
    ):
        with pytest.raises(ScheduleError, match=r"is a table of one shape .*; use `depth=2` and `microbatches=2`"):
            schedule.stage_map(other)


@pytest.mark.parametrize(
    "text, fact",
    [
        ("", "row 1: there is no instruction"),
        ("0F0,0B0\n\n1F0,1B0\n", "row 2: there is no instruction"),
        ("0F0,0B0,0REDUCE_GRAD\n1REDUCE_GRAD\n", "row 2: there is no instruction"),
        ("0F0,0X0\n", "row 1, column 2: cannot read '0X0'; write stage, action"),
        ("0F0,0B\n", "cannot read '0B'"),
        ("0F0,-1B0\n", "cannot read '-1B0'"),
        ("0F0;0B0\n", "cannot read '0F0;0B0'"),
        ("(0F0;0Q0)OVERLAP_F_B\n", "cannot read '0Q0'"),
        ("0F0,0B0\n2F0,2B0\n", r"does nothing in stage 1 of pipe 0 \(stages: 3, pipes: 1\)"),
        ("99999999999F0\n", "does nothing in stage 0 of pipe 0"),
        ("0F0p1,0B0p1\n", "does nothing in stage 0 of pipe 0"),
        (f"0F{'9' * 5000}\n", "row 1, column 1: cannot read '0F999"),
        (f"updates every {'9' * 5000}\n0F0,0B0\n", "row 1, column 1: cannot read 'updates every 999"),
    ],
)
def test_a_table_that_cannot_be_read_names_the_place(table, text, fact):
    path = table(text)
    with pytest.raises(ScheduleError, match=fact) as caught:
        read_back(path)
    assert path in str(caught.value)


def test_a_file_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "noise.csv").write_bytes(bytes(range(256)))
    for name in ("gone.csv", "noise.csv", ""):
        with pytest.raises(ScheduleError, match=r"cannot read the table .* \([^\[]*\); give a CSV file"):
            read_table(Path(tmp_path / name))


@pytest.mark.parametrize(
    "text, fact, arrow",
    [
        ("0F0,0B0\n1F0\n", "worker 1 lacks 1B0p0", "^ missing: 1B0p0"),
        ("0F0,0B0,0B0\n1F0,1B0\n", "worker 0 has 2 times, not 1, 0B0p0", "^ once too often: 0B0p0"),
        ("0F0,0REDUCE_GRAD,0B0\n1F0,1B0\n", "worker 0 cannot do 0S", "^ the gradient of stage 0 is not complete"),
        ("0F0,0B0,1REDUCE_GRAD\n1F0,1B0\n", "worker 0 cannot do 1S", "^ not held here; the stages of worker 0 are"),
        ("0B0,0F0\n1F0,1B0\n", "the order deadlocks", "^ waits for 0F0p0, instruction 1 of worker 0"),
        ("0F0,0F1,0B0,0B1,1B1\n1F0,1F1,1B0\n", "worker 0 cannot do 1B1p0", "^ not held here; stage 1 of pipe 0"),
    ],
)
def test_a_wrong_table_is_refused_by_the_proof_with_an_arrow(table, text, fact, arrow):
    with pytest.raises(ScheduleError, match=fact) as caught:
        check(read_back(table(text)))
    assert arrow in str(caught.value)


def test_actions_that_look_after_themselves_are_counted(table):
    schedule = find(table("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0\n"))
    assert schedule.omissions == Counter(UNSHARD=1, SEND_F=1, RECV_F=1, SEND_B=1, RECV_B=1)
    check(record(schedule, schedule.shape))
