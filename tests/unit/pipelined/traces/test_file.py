"""The recorder and the trace file: what was recorded comes back, laid out so that a viewer can draw it."""

import gzip
import itertools
import json

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.traces.file import Span, TraceError, read, write
from pipelined.traces.tracer import Events, NullTracer, Tracer


def at(*moments):
    """A clock that shows the given moments, one a reading."""
    return iter(moments).__next__


def recorded(*spans):
    """The events of one rank from (category, start, end) triples."""
    tracer = Tracer(at())
    for category, start, end in spans:
        tracer.record(category, category, start, end, (0, 1, 2, 3))
    return tracer.events()


def lines_of(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        return json.load(file)["traceEvents"]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_what_was_recorded_is_read_back_with_its_place(tmp_path, name):
    tracer = Tracer(at(10.0, 10.5))
    with tracer.span("forward", "F2", step=7, stage=1, microbatch=2, pipe=0):
        pass
    write(tmp_path / name, [tracer.events()])
    assert read(tmp_path / name) == [Span(0, "forward", "F2", 0.0, 0.5, 7, 1, 2, 0)]


def test_a_span_is_recorded_even_where_its_block_raises():
    tracer = Tracer(at(1.0, 3.0))
    with pytest.raises(KeyError), tracer.span("step", "step", step=4):
        raise KeyError
    events = tracer.events()
    assert events.times.tolist() == [[1.0, 3.0]] and events.coordinates.tolist() == [[4, -1, -1, -1]]


def test_an_unknown_category_is_refused_with_the_known_ones():
    tracer = Tracer(at())
    with pytest.raises(ValueError, match=r"'forwards'; known: forward, backward, step, send"):
        tracer.record("forwards", "F0", 0.0, 1.0)
    assert len(tracer.events()) == 0


def test_events_survive_the_way_to_another_rank():
    events = recorded(("forward", 0, 2), ("send", 1, 3))
    arrived = Events.unpack(msgpack.unpackb(msgpack.packb(events.pack())))
    assert (arrived.kinds, len(arrived)) == (events.kinds, 2)
    assert np.array_equal(arrived.times, events.times) and np.array_equal(arrived.coordinates, events.coordinates)


def test_no_trace_reads_no_clock_and_records_nothing():
    tracer = NullTracer()
    with tracer.span("forward", "F0", step=0):
        tracer.record("nonsense", "x", 0.0, 1.0)
    assert len(tracer.events()) == 0


def test_idle_is_what_is_left_between_computing_and_reducing(tmp_path):
    first = recorded(("forward", 0, 2), ("all_reduce", 4, 6))
    second = recorded(("receive", 0, 1), ("backward", 1, 10))
    write(tmp_path / "t.json", [first, second])
    idle = [(span.rank, span.start, span.end) for span in read(tmp_path / "t.json") if span.category == "idle"]
    assert idle == [(0, 2.0, 4.0), (0, 6.0, 10.0), (1, 0.0, 1.0)]


def test_ranks_are_brought_onto_one_clock(tmp_path):
    write(tmp_path / "t.json", [recorded(("forward", 100, 101)), recorded(("forward", 5, 6))], offsets=[0, 96])
    assert [span.start for span in read(tmp_path / "t.json") if span.category == "forward"] == [0.0, 1.0]


def test_a_rank_is_a_thread_named_so_that_names_sort(tmp_path):
    write(tmp_path / "t.json", [recorded(("forward", 0, 1))] * 11)
    threads = {
        line["tid"]: line["args"]["name"] for line in lines_of(tmp_path / "t.json") if line["name"] == "thread_name"
    }
    assert threads[3] == "rank 02" and threads[11] == "rank 10"
    processes = [line["args"]["name"] for line in lines_of(tmp_path / "t.json") if line["name"] == "process_name"]
    assert processes == ["pipeline"]


def test_the_thread_of_a_rank_of_a_team_names_its_member(tmp_path):
    write(tmp_path / "t.json", [recorded(("forward", 0, 1))] * 4, members=2)
    names = [line["args"]["name"] for line in lines_of(tmp_path / "t.json") if line["name"] == "thread_name"]
    assert names[3] == "rank 3 (member 1 of worker 1)"


def test_a_trace_of_nothing_is_still_a_trace(tmp_path):
    write(tmp_path / "t.json", [recorded(), recorded()])
    assert read(tmp_path / "t.json") == []


MOMENTS = st.integers(0, 50)
SPANS = st.tuples(st.sampled_from(["forward", "backward", "step", "send", "receive", "all_reduce"]), MOMENTS, MOMENTS)


@given(st.lists(st.lists(SPANS, max_size=12), min_size=1, max_size=3))
def test_nothing_overlaps_on_one_thread_of_one_process(tmp_path_factory, ranks):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    write(path, [recorded(*((category, *sorted(span)) for category, *span in spans)) for spans in ranks])
    lines = [line for line in lines_of(path) if line["ph"] == "X"]
    for _, mine in itertools.groupby(
        sorted(lines, key=lambda e: (e["pid"], e["tid"], e["ts"], e["dur"])), key=lambda e: (e["pid"], e["tid"])
    ):
        for before, after in itertools.pairwise(mine):
            assert before["ts"] + before["dur"] <= after["ts"]
    assert sum(line["cat"] != "idle" for line in lines) == sum(map(len, ranks))


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_a_cut_short_trace_is_named_with_its_size(tmp_path, name, kept):
    write(tmp_path / name, [recorded(*(("forward", i, i + 1) for i in range(100)))])
    whole = (tmp_path / name).read_bytes().rstrip()
    cut = whole[: int(kept * len(whole)) if isinstance(kept, float) else kept]
    (tmp_path / name).write_bytes(cut)
    with pytest.raises(TraceError, match=rf"{name} is cut short .*bytes: {len(cut)}.*--trace"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": 3}', '{"traceEvents": [4]}']
)
def test_other_json_is_not_a_trace(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(TraceError, match="is not a pipeline trace"):
        read(tmp_path / "t.json")


@pytest.mark.parametrize("name", ["tid", "ts", "dur"])
@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "1" + "0" * 400])
def test_a_number_of_no_trace_is_refused(tmp_path, name, number):
    event = {"name": "F0", "cat": "forward", "ph": "X", "ts": 0, "dur": 1, "pid": 0, "tid": 1, "args": {}}
    text = json.dumps({"traceEvents": [event | {name: "NUMBER"}]}).replace('"NUMBER"', number)
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(TraceError, match="is not a pipeline trace"):
        read(tmp_path / "t.json")


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000])
def test_json_that_python_does_not_read_is_no_trace(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(TraceError, match="is cut short or is not one"):
        read(tmp_path / "t.json")


def test_a_missing_trace_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"cannot read the trace .*gone.json \(No such file"):
        read(tmp_path / "gone.json")


def test_a_trace_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    def full(*given, **more):
        raise OSError(28, "No space left on device")

    write(tmp_path / "t.json", [recorded(("forward", 0, 1))])
    before = (tmp_path / "t.json").read_bytes()
    monkeypatch.setattr("pipelined.traces.file.json.dumps", full)
    with pytest.raises(OSError):
        write(tmp_path / "t.json", [recorded(("forward", 0, 2))])
    assert (tmp_path / "t.json").read_bytes() == before
