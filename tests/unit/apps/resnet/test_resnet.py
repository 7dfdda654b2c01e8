"""ResNet's sizes; and training in a pipeline, with its running statistics, as by a plain loop over the microbatches."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import pipelined as pp
from apps.common.images.image_training import order
from apps.common.rows.job import resolve
from apps.common.rows.program import main
from apps.resnet.__main__ import ResNetFlags
from apps.resnet.model import builders
from apps.resnet.presets import PRESETS, ResNetConfig
from pipelined.errors import UsageError
from tests.unit.apps.plain import PlainOptimizer

TINY = ResNetConfig(blocks=(1, 1, 1), channels=(3, 4, 5), bottleneck=True, side=32, colours=3, classes=10)
STEPS, PARTS, ROWS, IMAGES = 4, 2, 3, 20


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (PRESETS["resnet18"], 11_689_512),
        (PRESETS["resnet34"], 21_797_672),
        (PRESETS["resnet50"], 25_557_032),
        (
            ResNetConfig(
                blocks=(2, 2, 2, 2), channels=(64, 128, 256, 512), bottleneck=False, side=32, colours=3, classes=10
            ),
            11_173_962,
        ),
        (TINY, None),
    ],
)
def test_the_numbers_of_parameters_are_the_published_ones(config, parameters):
    with torch.device("meta"):
        row = nn.Sequential(*[build() for build in builders(config).values()])
        assert row(torch.empty(2, config.colours, config.side, config.side)).shape == (2, config.classes)
    assert config.parameters == sum(each.numel() for each in row.parameters())
    assert parameters in (None, config.parameters) and len(row) == config.depth


def cifar(directory, records=IMAGES):
    """CIFAR-10's files with a few random images."""
    directory.mkdir()
    draw = np.random.default_rng(0)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        raw = draw.integers(0, 256, (records, 3073), np.uint8)
        raw[:, 0] %= 10
        raw.tofile(directory / name)
    return raw


def plain(directory, row):
    """The losses of a loop of plain torch over the microbatches of each step, in order."""
    raw = torch.from_numpy(np.fromfile(directory / "data_batch_1.bin", np.uint8)).view(-1, 3073)
    images, classes = (raw[:, 1:].float() / 255).double().view(-1, 3, 32, 32), raw[:, 0].long()
    optimizer = PlainOptimizer(row)
    losses = []
    for step in range(STEPS):
        means = []
        for index in order(0, step, PARTS * ROWS, IMAGES).split(ROWS):
            loss = nn.functional.cross_entropy(row(images[index]), classes[index])
            (loss / PARTS).backward()
            means.append(loss.item())
        optimizer.step()
        losses.append(sum(means) / PARTS)
    return losses


def test_losses_and_statistics_are_those_of_a_plain_loop_also_after_a_resume_at_another_depth(tmp_path, monkeypatch):
    raw = torch.from_numpy(cifar(tmp_path / "cifar"))
    monkeypatch.setitem(PRESETS, "small", TINY)
    flags = f"--data {tmp_path / 'cifar'} --preset small --batch {PARTS * ROWS} --microbatches {PARTS} --dtype float64"
    files = f"--checkpoint {tmp_path / 'saved'} --resume auto --metrics {tmp_path / 'metrics'}"
    assert main("apps.resnet", ResNetFlags(), f"{flags} {files} --depth 2 --steps 2".split()) == 0
    assert main("apps.resnet", ResNetFlags(), f"{flags} {files} --depth 3 --steps {STEPS}".split()) == 0
    row = nn.Sequential()
    for name, build in builders(TINY).items():
        torch.manual_seed(pp.initial_seed(0, name))
        row.add_module(name, build().double())
    lines = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert [line["loss"] for line in lines if "loss" in line] == pytest.approx(
        plain(tmp_path / "cifar", row), abs=1e-10
    )
    with torch.no_grad():
        output = row.eval()((raw[:, 1:].float() / 255).double().view(-1, 3, 32, 32))
    held_out = nn.functional.cross_entropy(output, raw[:, 0].long()).item()
    assert [line["eval_loss"] for line in lines if "eval_loss" in line][-1] == pytest.approx(held_out, abs=1e-10)
    assert lines[-1]["right"] == int((output.argmax(1) == raw[:, 0]).sum()) and lines[-1]["held_out"] == IMAGES


def test_what_is_left_open_follows_from_the_data(tmp_path):
    cifar(tmp_path / "cifar")
    model = resolve(ResNetFlags(data=tmp_path / "cifar"), None).task.model
    assert (model.side, model.colours, model.classes, model.small) == (32, 3, 10, True)
    assert model.blocks == PRESETS["resnet18"].blocks
    assert resolve(ResNetFlags(), None).task.model == PRESETS["digits"]


def test_images_that_vanish_are_refused():
    with pytest.raises(UsageError, match=r"--side must be at least 1 .it is 0."):
        ResNetFlags(side=0)
    with pytest.raises(UsageError, match=r"too small for 3 groups of blocks \(--side 2\); take --side 4"):
        resolve(ResNetFlags(side=2), None)
