"""What the processes of a swarm on one machine say comes through as it is, and what all trainers say alike once."""

import asyncio
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from apps.common.commands.local_processes import ChildFailed, forward_output
from apps.swarm.__main__ import main, parse
from apps.swarm.local import _print_and_note, _report_end, _trainer_flags, print_above
from apps.swarm.metrics import STEP_LINES

OWN = "local --peers 2 --stages 2 --layers 2 --seq 16"
LINES = ["t0: waits", "step 0: loss 5.5", "", "sample:", "a [/b] [red]step c"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [("--tokenizer foo", "foo"), ("--data nowhere", "nowhere"), ("--data {short}", "too little text for one batch")],
)
def test_a_text_that_cannot_be_trained_on_is_refused_before_a_process_starts(flags, message, tmp_path, capsys):
    """The first trainer refused it, after all processes had started in silence."""
    short = tmp_path / "short"
    short.write_text("not enough")
    assert main([*OWN.split(), *flags.format(short=short).split()]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.out == ""


def test_the_number_of_processes_is_printed_before_they_start(monkeypatch, capsys):
    async def stop(starting):
        raise KeyboardInterrupt

    monkeypatch.setattr("apps.swarm.local._local", lambda flags, say: None)
    monkeypatch.setattr("apps.swarm.local.until_stop_request", stop)
    assert main([*OWN.split(), "--trainers", "3"]) == 130
    assert capsys.readouterr().out == "starting 6 processes (a coordinator, peers: 2, trainers: 3)\n"


async def passed_on(but):
    said, stdout = [], asyncio.StreamReader()
    stdout.feed_data("".join(f"{line}\n" for line in LINES).encode() + b"\xff")
    stdout.feed_eof()
    await forward_output(SimpleNamespace(stdout=stdout), said.append, but)
    return said


@pytest.mark.parametrize("but, kept", [((), LINES), (STEP_LINES, LINES[:1] + LINES[2:])])
def test_lines_of_a_child_are_shown_unless_another_prints_them_too(but, kept):
    assert asyncio.run(passed_on(but)) == [*kept, "\N{REPLACEMENT CHARACTER}"]


def test_a_line_above_a_live_view_is_not_markup():
    shown = StringIO()
    for line in LINES:
        print_above(Console(file=shown, force_terminal=True, width=10))(line)
    assert shown.getvalue().splitlines() == LINES


class Ended:
    """A child that ends with this code."""

    pid = 4711

    def __init__(self, code):
        self.code, self.returncode = code, None

    async def wait(self):
        self.returncode = self.code
        return self.code


def outlived(code, lines=(), others=2):
    """What is said when the first of some peers ends; the others are up."""
    peers, said, last = [Ended(code), *(Ended(0) for _ in range(others))], [], {}
    for line in lines:
        _print_and_note(last, said.append, line)
    asyncio.run(_report_end(peers[0], "peer0", last, peers, said.append))
    assert said[:-1] == list(lines)
    return said[-1]


def test_a_peer_that_dies_is_reported_with_its_process_its_stage_and_what_goes_on():
    lines = ["peer0: stage 1: fetches its state", "peer0: stage 2: serves", "peer1: stage 0: serves"]
    goes_on = "2 peers remain, and recompute the microbatches that only it had counted"
    assert outlived(-9, lines) == f"peer0 (pid 4711, stage 2) was killed by SIGKILL; {goes_on}"
    assert outlived(1) == f"peer0 (pid 4711, at no stage yet) ended with code 1; {goes_on}"
    assert outlived(1, others=0).endswith("ended with code 1; no peer is left")


def test_a_peer_that_is_refused_ends_all():
    with pytest.raises(ChildFailed, match="a peer ended with 2"):
        outlived(2)


@pytest.mark.parametrize("prompt", ["--ROMEO", "-x", "two words\nand a line"])
def test_the_first_trainer_gets_the_flags_of_the_whole_swarm_whatever_their_text(prompt):
    words = _trainer_flags(parse(["local", "--sample=5", f"--prompt={prompt}"]), 0)
    assert parse(["train", "--coordinator", "tcp://127.0.0.1:1", *words]).final.prompt == prompt
