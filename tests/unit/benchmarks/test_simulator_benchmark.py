"""The simulator's benchmark counts what it simulates, at a size that takes moments."""

import json
import sys

from benchmarks.simulator import Options, main, simulated


def test_it_simulates_every_rank_with_its_sums():
    step = simulated(Options(depth=8, microbatches=8, width=16))
    assert len(step.memory) == 128
    assert [len(done.ranks) for done in step.sums] == [32] * 8


def test_it_says_what_that_took(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulator", "--depth=4", "--microbatches=4", "--width=2", "--json"])
    assert main() == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ranks"], told["instructions"]) == (8, 8 * 8)
    assert told["within"] and told["step_s"] > 0.16 and told["cpu_s"] > 0 < told["resident"]
