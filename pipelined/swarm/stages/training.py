"""The interface of a training to its stages, and a language model's training with the exact optimizers.

All peers of one swarm share a training. They detect a difference by its digest, which covers everything that can change
a number that a stage computes, including the code.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.swarm.stages.exact_optimizers import ExactOptimizer
from pipelined.training.job.model import LanguageModel
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.optimizer.exact import find_update

ArraySpec = tuple[str, tuple[int, ...]]
"""Dtype and shape of a tensor, the rows of a microbatch first."""


class StageOptimizer(Protocol):
    """The parameters of one stage, with the state of their optimizer."""

    def apply(self, step: int, gradients: Sequence[torch.Tensor]) -> None:
        """Update the parameters at the rate of this step; every peer computes the same."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """Every parameter as NAME/value, what the optimizer keeps of it as NAME/FIELD, and numbers, on the host.

        Names, dtypes and shapes are the same before and after every update.
        """

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state with the names and layouts of `state`."""


class StageTraining(Protocol):
    """What a stage that computes with torch needs of a training; equal on all peers.

    Attributes:
        cut: the layers that each stage holds.
        rows: of a microbatch.
        seed: of initial values and of random numbers in layers.
        dtype: of parameters, sums and the tensors between stages.
        autocast: bfloat16 for matrix products inside the forward.
        exact_sums: microbatches of a step, if their gradients are summed exactly; 0: they are summed in floats.
    """

    @property
    def cut(self) -> Sequence[range]: ...
    @property
    def rows(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def autocast(self) -> bool: ...
    @property
    def exact_sums(self) -> int: ...

    def build(self, stage: int, device: torch.device) -> nn.Module:
        """The layers of a stage, with their initial values."""

    def optimizer(self, stage: int, parameters: Mapping[str, nn.Parameter]) -> StageOptimizer:
        """The optimizer of a stage's parameters, before the first update."""

    def inputs(self, stage: int) -> ArraySpec:
        """The tensor that a stage takes."""

    def targets(self) -> ArraySpec:
        """The tensor that the last stage's loss takes besides the output."""

    def check_ids(self, ids: torch.Tensor, what: str) -> None:
        """Refuse ids in inputs or targets that the model cannot look up. Raises ValueError."""

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss over the rows, a scalar."""

    def digest(self, code: Iterable[ModuleType]) -> str:
        """Hexadecimal digits that depend on all of this, and on the sources of these modules."""


@dataclass(frozen=True)
class Training:
    """One training of one language model, cut into stages: the same for every peer of every stage.

    Args:
        model: as a row of layers.
        cut: the layers that each stage holds.
        optimizer_settings: rates, clip and decay.
        rows: sequences in a microbatch, B.
        sequence: tokens a sequence, T.
        seed: of initial values and dropout.
        update: the optimizer's name, of `pipelined.training.optimizer.exact`.
        dtype: of parameters, sums and the tensors between stages.
        autocast: bfloat16 for matrix products inside the forward.
        text: digest of the tokenizer, and also of the text if a seed must find the same sequences in every process.
        exact_sums: as in `StageTraining`.

    Raises:
        UsageError: the stages are not all of the model's layers in their order, two of them would share a parameter,
            or no optimizer has this name.
    """

    model: LanguageModel
    cut: tuple[range, ...]
    optimizer_settings: OptimizerConfig
    rows: int
    sequence: int
    seed: int
    update: str = "adamw"
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    text: str = ""
    exact_sums: int = 0

    def __post_init__(self) -> None:
        find_update(self.update)
        if [layer for stage in self.cut for layer in stage] != list(range(self.model.layers)) or not all(self.cut):
            fact = f"stages that are not the model's layers in order (layers: {self.model.layers}, cut: {self.cut})"
            raise UsageError(f"{fact}; let every stage begin where the one before it ends")
        self._refuse_ties()

    def build(self, stage: int, device: torch.device) -> nn.Module:
        """See `StageTraining`."""
        module = self.model.build(self.cut[stage], self.dtype, device, self.seed)
        return module.requires_grad_()

    def optimizer(self, stage: int, parameters: Mapping[str, nn.Parameter]) -> ExactOptimizer:
        """See `StageTraining`."""
        return ExactOptimizer(parameters, self.update, self.optimizer_settings)

    def inputs(self, stage: int) -> ArraySpec:
        """See `StageTraining`: token ids (B, T) for the first stage, then the residual stream (B, T, C)."""
        shape = self.model.shape_of(self.cut[stage].start, self.rows, self.sequence)
        return (dtype_name(self.dtype if stage else torch.int64), shape)

    def targets(self) -> ArraySpec:
        """See `StageTraining`: labels (B, T)."""
        return self.inputs(0)

    def check_ids(self, ids: torch.Tensor, what: str) -> None:
        """Raises ValueError: an id is outside the vocabulary. On a GPU its look-up would end the process."""
        lowest, highest = map(int, ids.aminmax())
        vocabulary = self.model.shape_of(self.model.layers, 1, 1)[-1]
        if lowest < 0 or highest >= vocabulary:
            raise ValueError(f"unexpected {what} (ids: {lowest} to {highest}, symbols: {vocabulary})")

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See `StageTraining`: the mean nats a token."""
        return self.model.loss(output, targets)

    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The shape of every parameter of each stage. Cost: no memory, for a model of any size."""
        modules = [self.model.build(layers, self.dtype, "meta", None) for layers in self.cut]
        return [{name: tuple(parameter.shape) for name, parameter in module.named_parameters()} for module in modules]

    def digest(self, code: Iterable[ModuleType]) -> str:
        """The blake2b of all of this, as hexadecimal digits.

        Args:
            code: modules that compute with it, besides the model's own.
        """
        fields = {
            "model": dict(self.model.identity()),
            "cut": [[stage.start, stage.stop] for stage in self.cut],
            "shapes": self.shapes(),
            "recipe": asdict(self.optimizer_settings),
            "batch": [self.rows, self.sequence],
            "numbers": [self.seed, self.update, str(self.dtype), self.autocast, self.exact_sums],
            "text": self.text,
            "code": digest_of_code([sys.modules[type(self.model).__module__], *code]),
        }
        return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=32).hexdigest()

    def _refuse_ties(self) -> None:
        """Raises UsageError: two stages share a parameter. They sum separately, so its copies would diverge."""
        holder: dict[str, int] = {}
        for stage, names in enumerate(self.shapes()):
            for name in names:
                if holder.setdefault(name, stage) != stage:
                    fact = f"stages {holder[name]} and {stage} would share {name}"
                    raise UsageError(f"{fact}, but a swarm ties nothing between stages; untie it, or take one stage")


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in messages and records, such as float32."""
    return str(dtype).removeprefix("torch.")


def digest_of_code(modules: Iterable[ModuleType]) -> str:
    """The blake2b of the sources of these modules and of all modules that they import names from, in one package."""
    sources = dict[str, bytes]()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module.__name__ not in sources:
            sources[module.__name__] = Path(module.__file__ or "").read_bytes()
            waiting += _imported_modules(module)
    listing = sorted((name, hashlib.blake2b(source).hexdigest()) for name, source in sources.items())
    return hashlib.blake2b(json.dumps(listing).encode(), digest_size=32).hexdigest()


def _imported_modules(module: ModuleType) -> list[ModuleType]:
    """The modules of the same package from which a module has names."""
    package = module.__name__.partition(".")[0]
    names = {getattr(value, "__module__", None) for value in vars(module).values()}
    module_names = sorted(name for name in names if isinstance(name, str) and name.partition(".")[0] == package)
    return [sys.modules[name] for name in module_names if name in sys.modules and sys.modules[name].__file__]
