"""VGG13's sizes, its layers and its order of images; and what is refused before torch is imported."""

import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from apps.common.images.image_training import order
from apps.common.rows.job import resolve
from apps.common.rows.program import main
from apps.common.rows.rank import user_model
from apps.vgg.config import VGGFlags
from apps.vgg.model import builders
from apps.vgg.model_to_plan import chain
from apps.vgg.presets import KERNEL, PRESETS
from collectives import Links
from pipelined.__main__ import main as pipelined
from pipelined.errors import UsageError
from pipelined.planner import read_plan
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.pricing import PricedChain
from pipelined.sharding.search.report import ShardRequest, find_sharding
from tests.absent import absent


def on_meta(preset):
    with torch.device("meta"):
        return nn.Sequential(*[build() for build in builders(PRESETS[preset]).values()])


def test_the_published_one_has_133_047_848_parameters():
    config = PRESETS["vgg13"]
    assert config.parameters == 133_047_848 == sum(each.numel() for each in on_meta("vgg13").parameters())
    assert sum(each.inputs * each.outputs for each in config.layers) == 123_633_664


@pytest.mark.parametrize("preset", PRESETS)
def test_the_sizes_are_those_of_the_layers(preset):
    config, model = PRESETS[preset], on_meta(preset).eval()
    assert len(model) == config.depth
    assert sum(each.numel() for each in model.parameters()) == config.parameters
    images = torch.empty(2, config.colours, config.side, config.side, device="meta")
    assert model(images).shape == (2, config.classes)
    weights = [each.weight for each in model if hasattr(each, "weight")]
    operators = chain(config, 8, 2).operators
    assert [each.matmul.weights for each in operators] == [each.numel() for each in weights]


def test_every_epoch_has_every_image_once():
    """Steps of 4 of 10 images: the third begins the second epoch."""
    steps = torch.cat([order(3, step, 4, 10) for step in range(5)])
    assert sorted(steps[:10].tolist()) == sorted(steps[10:].tolist()) == list(range(10))
    assert steps[:10].tolist() != steps[10:].tolist()


def test_convolutions_are_split_by_images_unless_a_layout_is_given():
    job = resolve(VGGFlags(tensor=2), 4)
    assert (job.plan.depth, job.plan.width, job.plan.tensor) == (1, 2, 2)
    layout = job.task.layout(job.plan)
    assert layout.startswith("conv1_1=2.1.1,conv1_2=2.1.1") and "fc" not in layout
    for given, ranks, other in (({"tensor": 2, "layout": "data"}, 2, "data"), ({}, 2, None)):
        job_of = resolve(VGGFlags(**given), ranks)
        assert job_of.task.layout(job_of.plan) == other
    assert user_model(job).describe().endswith("2.1.1, fc6 (Linear) 1.2.1, fc7 (Linear) 1.1.2, fc8 (Linear) 1.2.1")


@pytest.mark.parametrize(
    ("given", "ranks", "message"),
    [
        ({"preset": "vgg16"}, 1, r"no preset is called 'vgg16'; did you mean vgg13\? choose one of digits, vgg13"),
        ({"dropout": 1.0}, 1, "dropout must be from 0 to below 1"),
        ({"tensor": 2}, 3, r"--tensor does not divide the ranks \(--tensor 2, ranks: 3\)"),
        ({"layout": "data"}, 1, "one rank splits nothing"),
        ({"schedule": "pipedream", "clip": 1.0}, 2, "--clip 1 does not go with pipedream"),
        ({"depth": 90}, None, r"more stages than layers \(stages: 90, layers: 33"),
    ],
)
def test_a_job_that_cannot_be_is_refused(given, ranks, message):
    with pytest.raises(UsageError, match=message):
        resolve(VGGFlags(**given), ranks)


def test_a_table_of_instructions_sets_the_depth_and_the_microbatches(tmp_path):
    (tmp_path / "table.csv").write_text("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n")
    plan = resolve(VGGFlags(schedule=str(tmp_path / "table.csv"), batch=12), None).plan
    assert (plan.depth, plan.microbatches, plan.microbatch_size) == (2, 3, 4)


def test_without_scikit_learn_the_program_ends_before_torch(monkeypatch, capsys):
    monkeypatch.setattr("apps.common.images.digits.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "apps.vgg.model")
    assert main("apps.vgg", VGGFlags(), []) == 2
    assert "pip install pipelined[images]" in capsys.readouterr().err
    assert "apps.vgg.model" not in sys.modules


@pytest.mark.in_turns(4)
def test_a_step_and_the_count_of_what_is_right_also_by_teams(capsys, tmp_path):
    if find_spec("sklearn") is None:
        absent("no scikit-learn")
    said, flags = [], ["--steps", "1", "--batch", "120", "--dtype", "float64", "--metrics", str(tmp_path / "metrics")]
    for more in ([], ["--tensor", "2", "--depth", "2"]):
        assert main("apps.vgg", VGGFlags(), flags + more) == 0
        said.append(next(line for line in capsys.readouterr().out.splitlines() if "of 360 right" in line))
    assert said[0] == said[1] and "logistic regression: 3" in said[0]
    assert '"images": 120' in (tmp_path / "metrics").read_text()


@pytest.mark.parametrize(("ranks", "least"), [(16, 1_807_232), (32, 2_734_208), (64, 3_936_512)])
def test_after_convolutions_by_images_the_dense_layers_move_least(ranks, least):
    """Known answers at batch 8p, alpha 0; of the convolutions all weights are summed, 2 (p-1)/p elements each."""
    config = PRESETS["vgg13"]
    priced = PricedChain(chain(config, 8 * ranks, 1), (ranks,), Network(Links(0, 1e-9, 0)))
    by_images = ",".join(f"{each.name}={ranks}.1.1" for each in config.convolutions)
    found = find_sharding(ShardRequest(priced, by_images)).best.elements
    kernels = sum(9 * each.inputs * each.outputs for each in config.convolutions)
    assert found["update"] == 2 * (ranks - 1) / ranks * kernels
    assert found["forward"] + found["backward"] == least


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--tensor 64 --batch 32", "more row shards than rows in a microbatch (layer conv1_1, shards: 64, rows: 32)"),
        ("--tensor 2 --exact-sums", "exact sums"),
        ("--tensor 2 --layout fc6=2.1.1,fc7=9.9.9", "fc7=9.9.9 is for 729 ranks (ranks of a worker: 2)"),
    ],
)
def test_a_dry_run_refuses_what_training_refuses(flags, message, capsys):
    assert main("apps.vgg", VGGFlags(), [*flags.split(), "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_prints_how_a_team_splits_the_layers_and_what_it_moves(capsys):
    """The gradients of the convolutions, split by images, are summed over both members, and no others."""
    assert main("apps.vgg", VGGFlags(), ["--tensor=2", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    config = PRESETS["digits"]
    whole = sum(each.inputs * each.outputs * KERNEL**2 + each.outputs for each in config.convolutions)
    assert "layout: 2 ranks a worker; conv1_1 (Conv2d) 2.1.1" in printed
    assert f"update {4 * whole:,} a step" in printed


def test_a_dry_run_of_an_open_plan_says_that_a_run_measures_first(capsys, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "3")
    assert main("apps.vgg", VGGFlags(), ["--tensor=auto", "--dry-run"]) == 0
    assert "(open: a run measures first, and chooses a plan of 3 ranks)" in capsys.readouterr().out


PLANNED = ["plan", "--program", "apps.vgg", "--ranks", "2", "--costs", "flops=1e9", "--schedule=gpipe", "--depth=1"]


def test_a_plan_has_the_teams_that_fit_the_memory_and_a_dry_run_of_it_says_so(tmp_path, capsys):
    words = [*PLANNED, "--batch=4", "--microbatches=1", "--tensor=auto", "--memory-limit=4M", f"--out={tmp_path}/plan"]
    pipelined(words)
    assert "chosen: gpipe T=2" in capsys.readouterr().out
    plan = read_plan(tmp_path / "plan").plan
    assert plan.tensor == 2 and plan.layout.startswith("conv1_1=")
    assert main("apps.vgg", VGGFlags(), [f"--plan={tmp_path}/plan", "--dry-run"]) == 0
    assert f"layout: 2 ranks a worker; conv1_1 (Conv2d) {plan.layout[8:13]}" in capsys.readouterr().out
    assert main("apps.vgg", VGGFlags(), [f"--plan={tmp_path}/plan", "--tensor=4", "--dry-run"]) == 2
    assert "--tensor 4 is not what " in capsys.readouterr().err


def test_a_plan_keeps_the_team_that_is_given(capsys):
    pipelined([*PLANNED, "--batch=4", "--microbatches=1", "--tensor=2", "--layout=megatron"])
    assert "teams of 2 ranks with layout megatron" in capsys.readouterr().out
