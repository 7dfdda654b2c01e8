"""`python -m pipelined schedule`: what it prints, writes and refuses."""

import json
import subprocess
import sys

import pytest

from pipelined.__main__ import main
from pipelined.schedules import schedule_names
from pipelined.traces.file import read

FOUR = ["schedule", "chimera", "--depth", "4", "--microbatches", "4"]


def output(capsys, *arguments):
    assert main([*FOUR, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_an_interrupt_ends_it_with_a_code_and_no_traceback(capsys, monkeypatch):
    def interrupted(*of, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelined.commands.schedule.prove", interrupted)
    assert main(FOUR) == 130 and capsys.readouterr() == ("", "")


def test_it_prints_the_grid_and_what_it_costs(capsys):
    lines = output(capsys).splitlines()
    assert lines[0] == "worker 0 (0 3)  |F0|F1|  |F2|B2   |F3|B3   |  |B0   |     |B1   |"
    assert lines[5:] == [
        "makespan          16 s",
        "bubble ratio      25.0%",
        "peak activations  3 4 4 3 (microbatches a worker)",
        "weight copies     2 2 2 2 (stages a worker)",
    ]


def test_json_has_the_promised_keys_and_numbers(capsys):
    proof = json.loads(output(capsys, "--json"))
    assert list(proof) == [
        "schedule",
        "depth",
        "microbatches",
        "workers",
        "sums",
        "makespan",
        "bubble_ratio",
        "peak_activations",
        "weight_copies",
    ]
    assert (proof["schedule"], proof["depth"], proof["microbatches"]) == ("chimera", 4, 4)
    assert (proof["makespan"], proof["bubble_ratio"]) == (16.0, 0.25)
    assert (proof["peak_activations"], proof["weight_copies"]) == ([3, 4, 4, 3], [2, 2, 2, 2])
    expected = {"op": "B", "stage": 3, "microbatch": 2, "pipe": 1, "start": 4.0, "end": 6.0}
    assert proof["workers"][0][3] == expected
    assert [len(worker) for worker in proof["workers"]] == [8] * 4
    assert proof["sums"][:2] == [{"stage": 3, "worker": 0, "start": 9.0}, {"stage": 0, "worker": 0, "start": 16.0}]
    assert [(gradient_sum["worker"], gradient_sum["stage"]) for gradient_sum in proof["sums"][2:]] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (3, 3),
        (3, 0),
    ]


def test_the_sums_of_a_schedule_without_a_flush_are_those_of_its_updates(capsys):
    assert main(["schedule", "pipedream", "--depth", "2", "--microbatches", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sums"] == []


def test_costs_are_what_is_given_and_else_the_default(capsys):
    proof = json.loads(output(capsys, "--json", "--costs", "backward=3,p2p=0.5"))
    assert proof["workers"][0][0]["end"] == 1.0
    assert proof["workers"][1][0]["start"] == 1.5
    assert proof["makespan"] > 4 + 6 * 3


def test_pipes_and_scale_are_passed_on(capsys):
    assert main(["schedule", "chimera", "--depth", "8", "--microbatches", "8", "--pipes", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan"] == 24
    doubled = ["--microbatches", "8", "--scale", "forward-doubling", "--json"]
    assert json.loads(output(capsys, *doubled))["makespan"] == 27
    halved = json.loads(output(capsys, "--scale", "backward-halving", "--json"))
    assert (halved["microbatches"], halved["makespan"]) == (4, 13.5)
    assert halved["peak_activations"] == [3.5, 4, 4, 3.5]


@pytest.mark.parametrize("flag, begins", [("--png", b"\x89PNG"), ("--svg", b"<?xml")])
def test_it_draws(capsys, tmp_path, flag, begins):
    output(capsys, flag, str(tmp_path / "picture"))
    assert (tmp_path / "picture").read_bytes().startswith(begins)


def test_its_trace_is_read_back_as_the_same_timeline(capsys, tmp_path):
    proof = json.loads(output(capsys, "--json", "--trace", str(tmp_path / "t.json.gz")))
    spans = [span for span in read(tmp_path / "t.json.gz") if span.category != "idle"]
    times = [(s.rank, s.stage, s.microbatch, s.pipe, s.start, s.end) for s in spans]
    assert times == [
        (worker, i["stage"], i["microbatch"], i["pipe"], i["start"], i["end"])
        for worker, instructions in enumerate(proof["workers"])
        for i in instructions
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["schedule", "chimra", "--depth", "4", "--microbatches", "4"], f"known: {', '.join(schedule_names())}"),
        ([*FOUR, "--pipes", "3"], "--pipes can be 2, 4"),
        ([*FOUR, "--costs", "forwards=1"], "knows no 'forwards'; known: forward, backward, backward-input"),
        ([*FOUR, "--costs", "forward"], "--costs forward has no number; write it as forward=1.5"),
        ([*FOUR, "--costs", "forward=1/2"], "--costs takes one number for forward (given: 2)"),
        ([*FOUR, "--costs", "forward=nan"], "the cost forward must be finite seconds from 0 up (got: nan)"),
        ([*FOUR, "--costs", "backward=0"], "the cost backward is 0; only p2p may be 0, give backward more"),
        ([*FOUR, "--costs", "forward=-1"], "the cost forward must be finite seconds from 0 up (got: -1.0)"),
        ([*FOUR, "--mailbox", "-1"], "a mailbox holds no negative number of messages (mailbox: -1)"),
        ([*FOUR, "--csv", "/nowhere/at/all.csv"], "cannot write /nowhere/at/all.csv"),
        ([*FOUR, "--scale", "backward-halving", "--csv", "t.csv"], "a table cannot say that microbatches are cut"),
        (
            ["schedule", "gpipe", "--depth", "4"],
            "(gpipe does not fix it); give --microbatches with a number",
        ),
        ([*FOUR, "--png", "/nowhere/at/all.png"], "cannot write /nowhere/at/all.png"),
        ([*FOUR, "--trace", "/nowhere/at/all.json"], "cannot write /nowhere/at/all.json"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert captured.err.startswith("python -m pipelined schedule: error: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["draw"], "choose from"),
        ([*FOUR, "--depth", "four"], "invalid int value: 'four'"),
        ([*FOUR, "--scale", "tripling"], "choose from"),
        ([], "required: COMMAND"),
    ],
)
def test_a_flag_that_cannot_be_read_gets_one_message_and_exit_code_2(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    assert stopped.value.code == 2 and message in captured.err and captured.err.count("\n") == 1


def test_a_wrong_schedule_of_the_user_s_is_shown_as_a_grid(capsys, tmp_path):
    text = "from pipelined.schedules.gpipe import stage_map\nasync def schedule(worker):\n    await worker.forward(0)\n"
    (tmp_path / "mine.py").write_text(text)
    assert main(["schedule", str(tmp_path / "mine.py"), "--depth", "2", "--microbatches", "1"]) == 2
    assert capsys.readouterr().err.endswith("worker 0 | 0F0p0\n                 ^ missing: 0B0p0\n")


@pytest.mark.parametrize("flags", [["--mailbox", "0"], ["--budget", "3"], ["--microbatches", "3", "--blocking-sums"]])
def test_what_breaks_a_limit_is_refused_with_an_arrow_at_each_fault(capsys, flags):
    assert main([*FOUR, *flags]) == 2
    assert "\nworker 1 | 1F0p0" in (message := capsys.readouterr().err) and " ^ " in message


@pytest.mark.parametrize("flags", [["--mailbox", "1"], ["--budget", "4"], ["--blocking-sums"]])
def test_limits_that_are_kept_change_nothing(capsys, flags):
    assert output(capsys, *flags) == output(capsys)


def test_a_table_it_wrote_is_shown_the_same_without_a_word_of_its_shape(capsys, tmp_path):
    table = str(tmp_path / "four.csv")
    table_text = output(capsys, "--csv", table)
    assert main(["schedule", table]) == 0
    assert capsys.readouterr() == (table_text, "")


def test_what_is_left_out_of_a_table_is_reported(capsys, tmp_path):
    (tmp_path / "table.csv").write_text("0UNSHARD,0F0,0SEND_F0,0B0,0RECV_B0\n")
    assert main(["schedule", str(tmp_path / "table.csv"), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["makespan"] == 3
    assert captured.err.startswith(f"left out of {tmp_path}/table.csv: 1 RECV_B, 1 SEND_F, 1 UNSHARD; ")


def test_help_and_the_grid_need_neither_torch_nor_numpy_nor_matplotlib():
    heavy = "{'torch', 'numpy', 'matplotlib', 'mpi4py'}"
    run = f"main({FOUR!r})\ntry: main(['schedule', '--help'])\nexcept SystemExit: pass"
    script = f"import sys\nfrom pipelined.__main__ import main\n{run}\nassert not {heavy} & set(sys.modules)"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stderr) == (0, "") and "--microbatches" in finished.stdout


def test_a_reader_that_leaves_early_is_no_failure():
    command = [sys.executable, "-m", "pipelined", "schedule", "gpipe", "--depth", "64", "--microbatches", "99"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)


def test_a_dynamic_schedule_is_shown_at_the_costs_given(capsys):
    orders = []
    for costs in ("forward=1", "forward=1,backward-input=1.1,backward-weight=0.9"):
        assert main(["schedule", "chimera_w", "--depth", "4", "--microbatches", "4", "--costs", costs, "--json"]) == 0
        worker = json.loads(capsys.readouterr().out)["workers"][0]
        orders.append(" ".join(f"{i['op']}{i['microbatch']}" for i in worker))
    assert orders == ["F0 F1 F2 I2 F3 I3 I0 W2 I1 W3 W0 W1", "F0 F1 F2 I2 F3 I3 W2 I0 W3 I1 W0 W1"]
