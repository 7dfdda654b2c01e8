"""A model put together from a swarm's stages is the whole model to the bit, and a seed says what is sampled from it."""

from pathlib import Path

import pytest
import torch

from apps.common.lm.export import FinalOutput, model_of_identity
from apps.common.lm.huggingface.rotary import read_rotary
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig, cut_for
from apps.common.lm.weights import Weights
from benchmarks.harness.resident import begin_peak, resident
from pipelined.api.data.tokens.tokenizer import ByteTokenizer
from pipelined.errors import UsageError
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage
from pipelined.state.stages.whole_model import find_whole_model
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import Training
from pipelined.training.digests import parameters_digest
from pipelined.training.optimizer import OptimizerConfig

CONFIG, CUT = cut_for(RotaryConfig(4, 16, 2, 256, 32, dropout=0.0, shared=2, squeeze="maxout"), 3, 8)
UNTIED = ModelConfig(2, 8, 2, 256, 16, dropout=0.0, tied=False)
MODEL = RotaryLM(CONFIG)


@pytest.fixture(scope="module")
def weights() -> Weights:
    training = Training(MODEL, CUT, OptimizerConfig(1e-2, 9, 2), 2, 8, seed=4)
    return Weights.of_stages(MODEL, [TorchStage(training, index).state() for index in range(3)])


def test_stages_together_are_the_whole_model(weights: Weights):
    whole = dict(MODEL.build(range(MODEL.layers), torch.float32, "cpu", 4).named_parameters())
    assert weights.tensors.keys() == whole.keys()
    assert all(torch.equal(weights.tensors[name], value) for name, value in whole.items())


def test_the_digest_is_that_of_the_whole_model_and_of_no_other_values(weights: Weights):
    whole = dict(MODEL.build(range(MODEL.layers), torch.float32, "cpu", 4).named_parameters())
    assert weights.digest() == parameters_digest(whole.items())
    name, value = next(iter(whole.items()))
    other = Weights(MODEL, {**weights.tensors, name: torch.nextafter(value.detach(), value.detach() + 1)})
    assert other.digest() != weights.digest()


def test_a_seed_says_what_is_sampled(weights: Weights):
    one, again, other = (weights.sample(ByteTokenizer(), "ROMEO", 40, 8, seed) for seed in (1, 1, 2))
    assert one == again != other and one.startswith("ROMEO")


@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["rotary", "gpt2"])
def test_the_model_of_a_checkpoint_is_found_by_what_it_says(config: ModelConfig):
    model = (RotaryLM if isinstance(config, RotaryConfig) else GPT2)(config)
    found = model_of_identity(dict(model.identity()))
    assert type(found) is type(model) and found.identity() == model.identity()
    with pytest.raises(UsageError, match="known are gpt2, rotary"):
        model_of_identity({**model.identity(), "model": "abacus"})


def test_a_wish_is_checked_before_it_costs_anything(tmp_path: Path):
    (tmp_path / "mine").write_text("notes")
    with pytest.raises(UsageError, match="something else"):
        FinalOutput(tmp_path, 0, "", 8, 0).check(MODEL)
    assert FinalOutput(None, 0, "", 8, 0).is_empty and not FinalOutput(None, 1, "R", 8, 0).is_empty


def test_a_directory_holds_the_model_that_was_trained(weights: Weights, tmp_path: Path):
    weights.export(tmp_path, ByteTokenizer())
    assert read_rotary(tmp_path) == CONFIG


def test_an_export_of_saved_stages_needs_memory_for_one_parameter_not_for_the_model(tmp_path: Path):
    model = GPT2(ModelConfig(8, 512, 2, 256, 16, dropout=0.0))  # 25 M parameters, the largest of 1 M
    for stage, layers in enumerate((range(5), range(5, 10))):
        parameters = model.build(layers, torch.float32, "cpu", 1).named_parameters()
        state = {f"{name}/value": value.detach() for name, value in parameters}
        DiskStore(tmp_path / "saved", model.identity()).save(SavedStage(1, stage, 2, "a"), state)
    del parameters, state
    grown = 0
    for _ in range(2):  # the first one fills buffers that stay
        before = begin_peak()
        saved = Weights(model, find_whole_model([tmp_path / "saved"]).values)
        digest = saved.digest()
        saved.export(tmp_path / "model", ByteTokenizer())
        grown = resident("VmHWM") - before
    assert grown < 4 * (4 << 20), f"grew by {grown / 2**20:.1f} MiB"
    assert digest == parameters_digest(model.build(range(10), torch.float32, "cpu", 1).named_parameters())
