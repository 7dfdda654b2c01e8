"""Machines that share no file system: each node saves in a directory of its own, and another run begins with all."""

import re
from contextlib import ExitStack

import pytest

from tests.forked import forked

FLAGS = "--preset tiny --layers 2 --d-model 16 --heads 2 --batch 4 --microbatch 4 --seq 16 --average-every 4 --lease 30"


def ravnest(*words):
    return forked("tests.ravnest.struck_node", "", "", *words, merged=True)


def trained(directories, *words):
    """What `train` prints of a run that saves in these directories; its own directory is the first one."""
    with ExitStack() as stack:

        def start(*words):
            return stack.enter_context(ravnest(*words))

        coordinator = start("coordinator", "--listen", "tcp://127.0.0.1:0")
        (address,) = re.findall(r"tcp://\S+\d", coordinator.stdout.readline())
        at = ["--coordinator", address]
        train = start("train", *at, "--nodes", len(directories), "--clusters", 1, *FLAGS.split(), *words)
        for number, directory in enumerate(directories):
            start("serve", *at, "--name", f"n{number}", "--ram", "1G", "--checkpoint", directory)
        said = train.stdout.read()
        assert train.wait() == 0, said
    return said


@pytest.mark.in_turns(4)
def test_another_run_goes_on_with_the_nodes_in_other_places(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    said = trained([first, second], "--steps", 3)
    assert [path.name for each in (first, second) for path in each.glob("stage-*")] in (
        ["stage-00", "stage-01"],
        ["stage-01", "stage-00"],
    )
    again = trained([second, tmp_path / "third", first], "--steps", 5, "--checkpoint", first, "--resume")
    assert "training goes on after step 2" in again
    assert re.findall(r"^step (\d+): loss", said + again, re.M) == list("01234")
    directories = [second, tmp_path / "third", first]
    with ravnest("export", "--checkpoint", *directories, "--to", tmp_path / "model") as export:
        written = export.stdout.read()
    (average,) = re.findall(r"^average (\w+)$", again, re.M)
    assert f"digest of all parameters after 5 steps: {average}" in written, written
