"""Clauses that every schedule file must pass, and what the names of schedules mean."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import CHUNKS, PIPES, SCALE, ScheduleError, Shape, find, schedule_names
from pipelined.schedules.registry import ALIASES

NAMES = schedule_names()
every_schedule = pytest.mark.parametrize("name", NAMES)

knobs = st.fixed_dictionaries(
    {PIPES.name: st.integers(0, 8), CHUNKS.name: st.integers(0, 4), SCALE.name: st.sampled_from(SCALE.choices)}
)
shapes = st.builds(Shape, st.integers(1, 12), st.integers(1, 26), knobs)


def taken(name, depth):
    """The numbers of microbatches up to 4D that the schedule takes: all, or what its refusal names."""
    rounds = depth if name == "interleaved" else 1
    return range(depth if name == "pipedream_2bw" else rounds, 4 * depth + 1, rounds)


@every_schedule
def test_it_says_what_it_is_and_where_it_comes_from(name):
    assert "Source:" in find(name).__doc__ and find(name).stage_map.__doc__ and find(name).schedule.__doc__


@every_schedule
@settings(max_examples=150)
@given(shape=shapes)
def test_a_shape_is_refused_with_a_remedy_or_gives_a_right_program(name, shape):
    try:
        program = record(find(name), shape)
    except ScheduleError as error:
        assert "; " in str(error) or "must be at least" in str(error)
        return
    check(program)
    stage_map = program.stage_map
    assert stage_map.depth == shape.depth
    assert sum(map(len, stage_map.microbatches)) == shape.microbatches * stage_map.pieces


@every_schedule
@pytest.mark.parametrize("depth", [2, 4, 6])
def test_it_takes_any_number_of_microbatches_at_an_even_depth(name, depth):
    for microbatches in taken(name, depth):
        program = record(find(name), Shape(depth, microbatches))
        check(program)
        assert sorted(sum(program.stage_map.microbatches, ())) == list(range(microbatches))


@every_schedule
def test_microbatches_enter_a_pipe_in_the_order_of_their_numbers(name):
    for microbatches in taken(name, 4):
        for pipe in find(name).stage_map(Shape(4, microbatches)).microbatches:
            assert list(pipe) == sorted(pipe)


@every_schedule
@pytest.mark.parametrize("field", ["depth", "microbatches", "chunks"])
def test_nothing_to_do_is_refused(name, field):
    with pytest.raises(ScheduleError, match=rf"{field} must be at least 1 \(it is 0\)"):
        sizes = {"depth": 4, "microbatches": 4, "chunks": 1, field: 0}
        find(name).stage_map(Shape(sizes["depth"], sizes["microbatches"], {"chunks": sizes["chunks"]}))


@every_schedule
def test_it_never_beats_the_work_of_its_busiest_worker(name):
    for microbatches in taken(name, 4)[::3]:
        timeline = price(record(find(name), Shape(4, microbatches)), Costs(1, 2, p2p=0.125))
        busiest = max(sum(t.end - t.start for t in worker) for worker in timeline.workers)
        there_and_back = 4 * (1 + 1)  # the input half alone holds up the next stage
        assert timeline.makespan >= max(busiest, there_and_back)
        assert 0.0 <= timeline.bubble_ratio < 1.0


def test_an_unknown_schedule_lists_the_known():
    with pytest.raises(
        ScheduleError, match=f"unknown schedule 'gpip'; did you mean gpipe\\? known: {', '.join(NAMES)}"
    ):
        find("gpip")


NAMED = [
    ("1f1b", "one_f_one_b"),
    ("DAPPLE", "one_f_one_b"),
    ("ZBV", "zb_v"),
    ("zb-h1", "zb_h1"),
    ("Chimera", "chimera"),
    ("GPipe", "gpipe"),
    ("Interleaved1F1B", "interleaved"),
    ("ScheduleZBVZeroBubble", "zb_v"),
    ("ScheduleInterleavedZeroBubble", "zb_h1"),
]


@pytest.mark.parametrize(("name", "here"), NAMED)
def test_a_name_that_others_use_leads_to_ours(name, here):
    with pytest.raises(ScheduleError, match=f"unknown schedule '{name}'; here it is called {here}$"):
        find(name)


def test_what_others_say_leads_to_schedules_that_there_are():
    assert set(ALIASES.values()) <= set(NAMES) and not set(ALIASES) & set(NAMES)


MINE = """
from dataclasses import dataclass
from pipelined.schedules.gpipe import stage_map

@dataclass
class Note:
    text: "str"

async def schedule(worker):
    await worker.forward(0)
    await worker.backward(0)
"""


def test_a_schedule_may_be_a_file_of_the_user_s(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    check(record(find(str(tmp_path / "mine.py")), Shape(3, 1)))


def test_a_schedule_may_be_a_module_of_the_user_s(tmp_path, monkeypatch):
    package = tmp_path / "users_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    check(record(find("users_package.mine"), Shape(3, 1)))


@pytest.mark.parametrize(
    "text, fact",
    [
        ("def schedule(worker): ...", "lacks stage_map"),
        ("1 / 0", "ZeroDivisionError"),
        ("import nowhere_at_all", "nowhere"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(tmp_path, text, fact):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ScheduleError, match=fact):
        find(str(tmp_path / "mine.py"))


@pytest.mark.parametrize("name", ["nowhere/mine.py", "nowhere.mine"])
def test_a_file_or_module_that_is_not_there_is_refused(name):
    with pytest.raises(ScheduleError, match=f"importing the schedule '{name}'"):
        find(name)
