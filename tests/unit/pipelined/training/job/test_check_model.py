"""A model that would not train right is refused when it is built, on every rank in the same words, with a remedy."""

import pytest
import torch
from torch import nn

from pipelined.programs.plan import Plan
from pipelined.training.job.check_model import ModelError, check_built, survey
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.stages.parameters import build_local

CUT = [range(0, 1), range(1, 2)]


class TwoArguments(nn.Linear):
    def forward(self, x, mask):
        return super().forward(x) * mask


class Model:
    """A stage for each layer, built by a function of the layer's number."""

    layers, tied = 2, ()

    def __init__(self, make, tied=()):
        self.make, self.tied = make, tied

    def costs(self, sequence):
        return [1.0, 1.0]

    def build(self, layers, dtype, device, seed):
        return self.make(layers.start).to(dtype).to(device)

    def loss(self, output, targets):
        return output.mean()

    def identity(self):
        return {}


class Named(nn.Module):
    """A linear layer under a name of its own."""

    def __init__(self, name, inputs=2, outputs=2):
        super().__init__()
        self.add_module(name, nn.Linear(inputs, outputs, bias=False))

    def forward(self, x):
        return x


def surveyed(make, tied=()):
    return survey(Model(make, tied), CUT, torch.float32)


def frozen(module):
    return module.requires_grad_(False)


def with_counter(number):
    module = Named(f"layer{number}")
    module.register_buffer("seen", torch.zeros(3))
    return module


REFUSED = {
    "one name of two shapes": (
        lambda n: Named("0", 2 + n),
        r"0\.weight is in stages 0, 1 \(shapes: \(2, 2\), \(2, 3\)\), and the model does not tie it; give each stage",
    ),
    "one name of one shape": (lambda n: Named("0"), r"does not tie it; .* or list it in the model's `tied`"),
    "one buffer's name": (with_counter, r"seen is in stages 0, 1 \(shapes: \(3,\), \(3,\)\), and the model does not"),
    "nothing to train": (lambda n: frozen(Named(str(n))), r"nothing to train \(frozen parameters: 2\)"),
    "two arguments": (lambda n: TwoArguments(2, 2), r"stage 0, a TwoArguments, cannot be called with its input alone"),
    "no module": (lambda n: torch.zeros(2), r"stage 0 was built as a Tensor; let `build` return an nn.Module"),
}


@pytest.mark.parametrize("make, why", REFUSED.values(), ids=REFUSED)
def test_a_model_that_would_train_wrong_is_refused(make, why):
    with pytest.raises(ModelError, match=why):
        surveyed(make)


def test_a_parameter_of_another_dtype_is_refused():
    with pytest.raises(ModelError, match=r"layer1\.weight of stage 1 is torch.float64, and all that is trained should"):
        survey(Converting(lambda n: Named(f"layer{n}")), CUT, torch.float32)


class Converting(Model):
    def build(self, layers, dtype, device, seed):
        return super().build(layers, torch.float64 if layers.start else dtype, device, seed)


def test_a_name_in_two_stages_is_one_parameter_if_the_model_ties_it():
    stages = surveyed(lambda n: Named("table"), tied={"table.weight"})
    assert [dict(stage.trained) for stage in stages] == [{"table.weight": (2, 2)}] * 2
    with pytest.raises(ModelError, match="cannot be one tensor"):
        surveyed(lambda n: Named("table", 2 + n), tied={"table.weight"})
    with pytest.raises(ModelError, match="trained in some and frozen in others"):
        surveyed(lambda n: (frozen if n else nn.Module.train)(Named("table")), tied={"table.weight"})


def test_a_bare_module_is_no_model():
    described = {"feed": None, "optimizer_settings": None, "numerics": Numerics(), "seed": 0}
    job = JobDescription(model=nn.Sequential(), plan=Plan("gpipe", 1, 1, 1, 1), **described)
    with pytest.raises(ModelError, match="a Sequential has no method costs; write what"):
        build_local(job, 0, torch.device("cpu"))


def test_a_stage_that_is_built_otherwise_on_the_meta_device_is_refused():
    stage = surveyed(lambda n: Named(str(n)))[0]
    with pytest.raises(ModelError, match=r"built with 0\.weight of shape \(2, 7\), on the meta device of .* \(2, 2\)"):
        check_built(0, Named("0", 7), stage)


def test_a_stage_that_freezes_other_parameters_than_on_the_meta_device_is_refused():
    stage = surveyed(lambda n: Named(str(n)))[0]
    with pytest.raises(ModelError, match=r"0\.weight of stage 0 is trained on the meta device and frozen here; let"):
        check_built(0, frozen(Named("0")), stage)
