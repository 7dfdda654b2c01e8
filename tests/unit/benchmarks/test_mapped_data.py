"""The benchmark of tokens in files: its plain loop trains."""

import numpy as np

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from benchmarks.pipelines.mapped_plain import train


def test_the_plain_loop_prints_a_loss_that_falls_on_one_symbol(tmp_path, capsys):
    np.zeros(200, np.uint16).tofile(tmp_path / "a.bin")
    train(GPT2(ModelConfig(1, 16, 4, 256, dropout=0.0)), 8, 2, 3, tmp_path / "a.bin")
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
