"""`python -m pipelined simulate`: what it prints for people and for programs, what it writes, what it refuses."""

import json
import sys

import pytest

from pipelined.__main__ import main
from pipelined.traces.file import read
from tests.launching import launched

CHIMERA = ["simulate", "chimera", "--depth=4", "--microbatches=4"]


def output(capsys, *flags):
    assert main([*CHIMERA, *flags]) == 0
    return capsys.readouterr().out


def test_for_programs_a_step_is_one_json_object(capsys):
    step = json.loads(
        output(capsys, "--width=2", "--memory=activation=1K,parameters=4K", "--links=beta=1e-9", "--json")
    )
    assert (step["schedule"], step["ranks"], step["makespan"], step["bubble_ratio"]) == ("chimera", 8, 16.0, 0.25)
    assert step["peak_activations"] == [3, 4, 4, 3] * 2
    assert step["memory"][1] == {
        "weights": 8192, "gradients": 8192, "optimizer": 2 * 8192 + 8, "activations": 4096.0, "total": 36872.0,
    }  # fmt: skip
    assert step["step"] > step["makespan"] + step["exposed_sync"] > 16
    assert [row["stages"] for row in step["sums"]] and {link["from"] for link in step["links"]} == set(range(8))
    assert step["idle"] == pytest.approx([step["step"] - 12] * 8)


def test_for_people_it_is_a_few_lines_and_two_tables(capsys):
    text = output(capsys, "--memory=message=1M,activation=16M,parameters=64M", "--width=2")
    assert "chimera, D = 4, N = 4, W = 2: 8 ranks" in text
    assert "last backward  16 s, 25.0% of the ranks' time until then idle" in text
    assert "     1         1,2   25.0%     4     512 MiB       64 MiB" in text
    assert "     1 -> 2          132 MiB" in text


def test_a_table_of_many_ranks_ends_in_their_number(capsys):
    assert "… and 112 more ranks; as JSON they are all there" in output(capsys, "--width=32")


def test_stages_may_cost_differently(capsys):
    even, uneven = (json.loads(output(capsys, f"--costs=forward={f}", "--json")) for f in ("1", "1/1/1/3"))
    assert uneven["makespan"] > even["makespan"] == 16


def test_cores_recomputation_and_nodes_are_taken(capsys):
    def makespan(*flags):
        return json.loads(output(capsys, "--json", *flags))["makespan"]

    assert makespan("--cores=1") == pytest.approx(48)
    assert makespan("--recompute") == makespan("--costs=forward=1,backward=3")
    assert makespan("--links=alpha=1") == makespan("--far=alpha=1", "--node=1") > makespan("--far=alpha=1", "--node=2")


def test_a_trace_has_every_rank_s_work_and_sums(capsys, tmp_path):
    output(capsys, "--memory=parameters=4M", "--links=beta=1e-6", f"--trace={tmp_path / 'step.json'}")
    spans = read(tmp_path / "step.json")
    assert {span.rank for span in spans} == {0, 1, 2, 3}
    assert sum(span.category == "forward" for span in spans) == 16
    assert sum(span.category == "all_reduce" for span in spans) == 8


def test_it_needs_no_torch():
    script = f"import sys\nfrom pipelined.__main__ import main\nmain({CHIMERA!r})\nassert 'torch' not in sys.modules"
    finished = launched([sys.executable, "-c", script], timeout=60)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("chimera, D = 4, N = 4, W = 1: 4 ranks")


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--costs=forward=0", "the cost forward is 0 seconds; computing takes time"),
        ("--costs=backward=-1", "backward must be finite seconds (got: -1.0)"),
        ("--costs=backward=inf", "backward must be finite seconds (got: inf)"),
        ("--costs=backward-input=2", "half: 2.0, whole: 2.0); give the weight half's seconds too"),
        ("--costs=fw=1", "--costs knows no 'fw'; known: forward, backward"),
        ("--costs=forward=one", "forward=one is no number; write it as forward=1.5"),
        ("--costs=forward=1/2", "values: 2, depth: 4"),
        ("--links=alpha=-1", "--links alpha=-1 must be finite seconds from 0 up"),
        ("--links=alpha", "--links alpha has no number; write it as alpha=1.5"),
        ("--links=beta=1/2", "takes one number for beta"),
        ("--memory=message=1T", "write it as message=512K"),
        ("--memory=activation=-1", "activation-bytes=-1 is no size"),
        ("--memory=parameters=-4", "cannot have -1 parameters"),
        ("--memory=parameters=3", "is not a multiple of the bytes of a parameter"),
        ("--cores=-1", "a machine has no cores=-1"),
        ("--interference=1", "interference=1.0 is no share"),
        ("--width=0", "width must be at least 1"),
        ("--pipes=3", "--pipes can be 2, 4"),
        ("--depth=5", "use --depth 4 or 6"),
        ("--all-reduce=tree", "unknown all-reduce algorithm 'tree'; known: auto"),
        ("--trace=/no/such/place.json", "cannot write /no/such/place.json"),
    ],
)
def test_impossible_flags_are_refused_in_one_line_and_nothing_is_printed(flags, message, capsys):
    assert main([*CHIMERA, flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_gaps_for_sums_are_those_of_the_stated_costs(capsys):
    """Chimera, section 3.2: with B > F stage 3 has a gap after its last backward; a slow stage 0 closes it."""

    def is_early(costs):
        step = json.loads(output(capsys, f"--costs={costs}", "--memory=parameters=8", "--json"))
        (start,) = (row["start"] for row in step["sums"] if row["stages"] == [3])
        return start < step["makespan"]

    assert is_early("forward=1,backward=2") and not is_early("backward=9/1/1/1")


def test_a_worker_may_be_several_ranks(capsys):
    flags = "--width=2", "--memory=message=1K,parameters=4K", "--links=beta=1e-9"
    alone, team = (json.loads(output(capsys, *flags, f"--tensor={tensor}", "--json")) for tensor in (1, 3))
    assert (alone["ranks"], team["ranks"], team["tensor"]) == (8, 24, 3)
    assert team["step"] == pytest.approx(alone["step"], rel=1e-3), "only the step totals are summed over more ranks"
    for name in ("memory", "peak_activations"):
        assert team[name] == [number for number in alone[name] for _ in range(3)]
    assert {link["from"] for link in team["links"]} == set(range(24))
    assert "chimera, D = 4, N = 4, W = 2, T = 3: 24 ranks" in output(capsys, *flags, "--tensor=3")
