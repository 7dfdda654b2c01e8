"""A plain loop of torch on tokens in a file, which it maps whole, as nanoGPT does: beside `benchmarks.mapped_data`."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from pipelined.training.optimizer import OptimizerConfig


def train(model: GPT2, sequence: int, batch: int, steps: int, file: Path) -> None:
    """Train on random windows, and print each step's number and loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    whole = model.build(range(model.layers), torch.float32, "cpu", 0)
    optimizer = OptimizerConfig(lr=6e-4, steps=steps).build(dict(whole.named_parameters()))
    tokens = np.memmap(file, np.uint16, "r")
    for step in range(1, steps + 1):
        starts = torch.randint(len(tokens) - sequence - 1, (batch,)).tolist()
        rows = torch.from_numpy(np.stack([tokens[start : start + sequence + 1] for start in starts]).astype(np.int64))
        loss = cross_entropy(whole(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step:5} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    layers, width, heads, vocab, *run = map(int, sys.argv[1:8])
    train(GPT2(ModelConfig(layers, width, heads, vocab, dropout=0.0)), *run, Path(sys.argv[8]))
