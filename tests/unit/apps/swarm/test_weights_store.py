"""Weights to begin with, as a store has them: under every name that a stage asks for, and with a fresh optimizer."""

from dataclasses import replace

import pytest
import torch

from apps.common.lm.huggingface.write import export
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.swarm.weights_store import WeightsStore
from pipelined.state.stages.store import DiskStore, StoreError
from pipelined.state.stages.versions import SavedStage, common_step
from pipelined.state.tensor_specs import specs_of
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import Training
from pipelined.training.optimizer import OptimizerConfig

TIED = ModelConfig(layers=2, d_model=8, heads=2, vocab=13, positions=6)
UNTIED = replace(TIED, tied=False)
CUT = (range(0, 2), range(2, 4))


def stages():
    training = Training(GPT2(UNTIED), CUT, OptimizerConfig(1e-2, 3), rows=2, sequence=6, seed=1)
    return [TorchStage(training, index) for index in range(2)]


@pytest.fixture(params=[TIED, UNTIED], ids=["tied", "untied"])
def given(request, tmp_path):
    """A directory, and the parameters in it."""
    model = GPT2(request.param)
    tensors = dict(model.build(range(model.layers), torch.float32, "cpu", 7).named_parameters())
    export(tmp_path / "gpt2", tensors, request.param, None)
    return tmp_path / "gpt2", tensors


def test_every_stage_begins_with_what_was_given(given):
    directory, tensors = given
    store = WeightsStore(directory, stages=2)
    at = common_step(store.saved_stages())
    assert (at.step, at.stages) == (0, 2)
    for index, stage in enumerate(stages()):
        stage.load(store.load(at._replace(stage=index), specs_of(stage.state())))
        for key, tensor in stage.state().items():
            name, _, field = key.rpartition("/")
            expected = tensors.get(name, tensors["transformer.wte.weight"]) if field == "value" else torch.zeros(())
            assert torch.equal(tensor, expected.expand(tensor.shape).to(tensor.dtype)), key


def test_other_weights_are_another_beginning(given, tmp_path):
    directory, tensors = given
    before = WeightsStore(directory, stages=2).saved_stages()
    tensors["transformer.ln_f.bias"].data[0] = 1.0
    export(directory, tensors, TIED if "lm_head.weight" not in tensors else UNTIED, None)
    assert not set(before) & set(WeightsStore(directory, stages=2).saved_stages())


def test_what_is_saved_later_lies_beside_it(given, tmp_path):
    store = WeightsStore(given[0], 1, DiskStore(tmp_path / "saved", UNTIED.identity()))
    stage, saved = stages()[0], SavedStage(4, 0, 1, "run-4")
    store.save(saved, stage.state())
    assert common_step(store.saved_stages()) == saved
    loaded = store.load(saved, specs_of(stage.state()))
    assert all(torch.equal(loaded[name].torch(), tensor) for name, tensor in stage.state().items())


def test_a_tensor_of_other_sizes_is_not_loaded(given):
    store = WeightsStore(given[0], stages=2)
    with pytest.raises(StoreError, match="c_attn"):
        store.load(store.saved_stages()[0], {"transformer.h.0.attn.c_attn.weight/value": ("float32", (3, 3))})
