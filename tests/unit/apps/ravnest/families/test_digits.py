"""The residual network on digits: its sizes in closed form, what is refused, and a short training that is exported."""

import json

import pytest
import torch

from apps.ravnest.__main__ import main
from apps.ravnest.families.digits import DIGITS_MODEL, Digits
from apps.ravnest.families.digits_model import digits_model
from apps.ravnest.families.registry import read_data
from apps.ravnest.flags.commands import Local
from apps.ravnest.flags.config import RavnestConfig, RavnestTask
from apps.ravnest.task_training import training_of
from pipelined.errors import UsageError
from pipelined.ravnest.averaging.rounds import averaged, state_by_layer
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.store import DiskStore
from tests.ravnest.test_overlapped import recorded, replayed


def test_the_layers_have_the_numbers_that_a_round_averages():
    layers = state_by_layer(digits_model(0), torch.float32)
    counted = [sum(tensor.numel() for tensor in averaged(layer.values())) for layer in layers]
    assert [size.parameters for size in DIGITS_MODEL.layer_sizes(4)] == counted


def test_the_plan_of_a_pool_cuts_it(tmp_path, capsys):
    pool = tmp_path / "pool.csv"
    pool.write_text("name,ram,bandwidth\na,64M,100mbit\nb,64M,100mbit\nc,64M,100mbit\n")
    assert main(["plan", "--pool", str(pool), "--preset", "digits", "--clusters", "1", "--json"]) == 0
    (cluster,) = json.loads(capsys.readouterr().out)["clusters"]
    assert cluster["places"][-1]["layers"][1] == 5


@pytest.mark.parametrize("words", [["--layers", "3"], ["--dropout", "0.1"]])
def test_sizes_of_other_models_are_refused(capsys, words):
    assert main(["local", "--preset", "digits", *words]) == 2
    assert f"--preset digits has sizes of its own; leave {words[0]} out" in capsys.readouterr().err


def test_a_sample_of_images_is_refused(capsys):
    assert main(["local", "--preset", "digits", "--sample", "5"]) == 2
    assert "--preset digits has no text to sample (--sample 5); leave --sample out" in capsys.readouterr().err


def test_files_to_learn_from_are_refused(tmp_path):
    flags = Local().text
    with pytest.raises(UsageError, match="learns from scikit-learn's digits; leave --data out"):
        read_data("digits", type(flags)((tmp_path,)))


@pytest.mark.in_turns(4)
def test_two_clusters_train_on_digits_are_replayed_and_exported(tmp_path, capsys, one_thread):
    pytest.importorskip("sklearn")
    data = Digits.read()
    config = RavnestConfig(preset="digits", microbatch=8, batch=8, average_every=2, steps=6)
    task = RavnestTask(config, DIGITS_MODEL.classes, data.digest)
    training = training_of(RavnestTask.unpack(task.pack()), data)
    saving = SaveSettings(DiskStore(tmp_path / "saved", config.model(10).identity()), 1, "run")
    told, orders = recorded(tmp_path / "orders", training, nodes=6, saving=saving)
    assert [len(row) for row in orders[0].generation.clusters] == [3, 3]
    assert told.ends == [f"average {replayed(training, orders)[0]}"]
    words = ["export", "--checkpoint", str(tmp_path / "saved"), "--to", str(tmp_path / "model")]
    assert main(words) == 0
    assert "all 3 stages, as they saved after 6 steps\nheld-out images: " in capsys.readouterr().out
    assert (tmp_path / "model" / "model.safetensors").exists()
