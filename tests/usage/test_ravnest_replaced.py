"""A first `train` that forms no clusters is followed by one with other flags, at the same directory and nodes."""

import re
from contextlib import ExitStack

import pytest

from tests.forked import forked

FLAGS = "--layers 2 --d-model 16 --heads 2 --batch 4 --seq 16 --average-every 4 --lease 30 --steps 2 --data LICENSE"


@pytest.mark.in_turns(4)
def test_a_train_after_one_that_could_not_plan_may_have_other_flags():
    with ExitStack() as stack:

        def start(*words):
            return stack.enter_context(forked("tests.ravnest.struck_node", "", "", *words, merged=True))

        coordinator = start("coordinator", "--listen", "tcp://127.0.0.1:0")
        (address,) = re.findall(r"tcp://\S+\d", coordinator.stdout.readline())
        at = ["--coordinator", address]

        def train(*words):
            training = start("train", *at, "--nodes", 1, "--clusters", 1, *FLAGS.split(), *words)
            return training.stdout, training.wait

        said, ended = train("--microbatch", 4)
        node = start("serve", *at, "--name", "attic", "--ram", "480K", "--data", "LICENSE")
        refused = said.read()
        assert ended() == 2 and "the pool cannot hold the model" in refused, refused
        waits = next(line for line in node.stdout if "another `train`" in line)
        assert waits.startswith("attic: waits for another `train`: this one forms no clusters of them (")
        said, ended = train("--microbatch", 1, "--weights", "newest")
        trained = said.read()
        assert ended() == 0 and "step 1: loss" in trained, trained
        line = "what is trained was replaced before any cluster was formed; the node joins again\n"
        assert line in node.stdout
