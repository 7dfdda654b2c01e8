"""The benchmark of tokens in files: its plain loop trains, and its table says what was promised."""

import numpy as np
import pytest

from apps.lm.models.gpt2 import GPT2
from apps.lm.models.gpt2_presets import ModelConfig
from benchmarks._mapped_plain import train
from benchmarks.mapped_data import Options, compare, table


def test_the_plain_loop_prints_a_loss_that_falls_on_one_symbol(tmp_path, capsys):
    np.zeros(200, np.uint16).tofile(tmp_path / "a.bin")
    train(GPT2(ModelConfig(1, 16, 4, 256, dropout=0.0)), 8, 2, 3, tmp_path / "a.bin")
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(("seconds", "mib", "kept"), [(9.0, 299, True), (11.0, 10, False), (9.0, 301, False)])
def test_the_large_file_is_seen_beside_the_small_one(tmp_path, monkeypatch, seconds, mib, kept):
    slower = iter([5.0] * 4 + [0.0] * 4)

    def measure(command):
        first = (1.0 if "benchmarks._mapped_plain" in command else seconds) + next(slower)
        return {"first_step_s": first, "largest_mib": 400.0 + (mib if "large.bin" in str(command) else 0)}

    monkeypatch.setattr("benchmarks.mapped_data.measure", measure)
    found = compare(Options(gigabytes=2.0, rounds=2), tmp_path)
    assert found["kept"] is kept and found["ours_added_mib"] == mib
    assert ("not kept" not in table(found)) is kept
