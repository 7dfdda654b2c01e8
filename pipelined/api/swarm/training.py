"""A user's model, loss and optimizer as the stages of a swarm compute them, and the record of what is trained.

The first trainer writes the record to the directory; peers read it there. Each process builds the model by its own
code, and a digest over settings, initial values and code finds one that differs.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from pipelined.api.swarm.optimizer import UserStageOptimizer
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.errors import UsageError, refuse_below, whole
from pipelined.programs.partition import partition
from pipelined.swarm.rules import Rules
from pipelined.swarm.settings import SharedSettings
from pipelined.swarm.stages import torch_stage
from pipelined.swarm.stages.training import ArraySpec, digest_of_code
from pipelined.training.exchange.compression import NONE
from pipelined.training.job.check_model import ModelError
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers, bind


@dataclass(frozen=True, kw_only=True)
class UserTask(SharedSettings):
    """What a swarm trains, as the directory keeps it; each field as in `train`.

    Args:
        rows: of a microbatch.
        x, y: dtype and shape of the inputs and the targets of a microbatch.
    """

    depth: int
    microbatches: int
    steps: int
    rows: int
    x: ArraySpec
    y: ArraySpec
    dtype: str = "float32"
    autocast: bool = False
    seed: int = 0
    clip: float = 0.0

    def __post_init__(self) -> None:
        for name in ("depth", "microbatches", "steps"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1))
        refuse_below(0, "clip", self.clip)
        self.check_shared()
        for dtype in (self.dtype, self.x[0], self.y[0]):
            if not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise UsageError(f"torch has no dtype {dtype!r:.80}; use one release of torch in the whole swarm")

    def pack(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "UserTask":
        """Read the directory's record. Raises UsageError: another release wrote it."""
        try:
            record = json.loads(data)
            specs = {name: (str(record[name][0]), tuple(map(int, record[name][1]))) for name in ("x", "y")}
            return cls(**{**record, **specs})
        except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError) as error:
            fact = f"the directory has no training of pipelined.swarm ({error})"
            raise UsageError(f"{fact}; give the coordinator of such a swarm, and use one release") from error

    def differences(self, other: "UserTask") -> str:
        """What differs in another task, in words."""
        own_values, other_values = asdict(self), asdict(other)
        names = [name for name in own_values if own_values[name] != other_values[name]]
        return ", ".join(f"{name}: {own_values[name]} here, {other_values[name]} there" for name in names)


@dataclass(frozen=True)
class UserProgram:
    """What a user gives to every process of a swarm: a model, a loss, and an optimizer."""

    model: Layers
    loss: Loss
    optimizer: Callable[[], UserOptimizer]


class UserTraining:
    """A user's model cut into the stages of a task; see `pipelined.swarm.stages.training.StageTraining`.

    Raises:
        UsageError: the layers do not chain, more than one tensor goes between two stages, a stage has nothing to train,
            two stages share a parameter, or layers keep statistics in buffers.
    Cost: builds the whole model once; its digest reads all values.
    """

    def __init__(self, program: UserProgram, task: UserTask):
        self.task, self._program = task, program
        self.seed, self.rows, self.autocast = task.seed, task.rows, task.autocast
        self.exact_sums = task.microbatches if task.exact_sums else 0
        self.dtype: torch.dtype = getattr(torch, task.dtype)
        self.model = bind(program.model, program.loss, task.seed, _zeros(task.x))
        self.cut = tuple(partition(self.model.costs(1), task.depth))
        self._specs = self._measure_inputs()
        self._refuse_stages()
        self._digest = self._digest_of_values()
        self.model.release()

    def build(self, stage: int, device: torch.device | str) -> nn.Module:
        """See `StageTraining`."""
        return self.model.build(self.cut[stage], self.dtype, device, self.seed)

    def optimizer(self, stage: int, parameters: Mapping[str, nn.Parameter]) -> UserStageOptimizer:
        """See `StageTraining`."""
        return UserStageOptimizer(parameters, self._program.optimizer, self.seed, stage)

    def inputs(self, stage: int) -> ArraySpec:
        """See `StageTraining`."""
        return self._specs[stage]

    def targets(self) -> ArraySpec:
        """See `StageTraining`."""
        return self.task.y

    def check_ids(self, ids: torch.Tensor, what: str) -> None:
        """See `StageTraining`: a user's layers check their own inputs."""

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See `StageTraining`."""
        return self.model.loss(output, targets)

    def digest(self, code: Iterable[ModuleType]) -> str:
        """See `StageTraining`."""
        parts = [self._digest, digest_of_code([sys.modules[__name__], *code])]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=32).hexdigest()

    def rules(self) -> Rules:
        """The rules that all processes must share."""
        task = self.task
        return Rules(
            model=self.digest([torch_stage]),
            stages=task.depth,
            batch=task.microbatches,
            samples=float(task.microbatches * task.rows),
            clip=task.clip,
            lease_s=task.lease,
            rebalance_s=task.rebalance,
            codec="" if task.compress == NONE else task.compress,
            sums_codec="" if task.compress_sums == NONE else task.compress_sums,
        )

    def whole_state(self, states: Iterable[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Every parameter and buffer, as the same `nn.Sequential` names them.

        Args:
            states: of all stages, as tensors by NAME/FIELD.
        """
        tensors = dict[str, torch.Tensor]()
        for stage, state in enumerate(states):
            for name, value in self.build(stage, "cpu").state_dict().items():
                trained_value = state.get(f"{name}/value")
                tensors[name] = value if trained_value is None else torch.as_tensor(trained_value).clone()
        return self.model.state_dict(tensors)

    def check_first(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Compute the loss of one microbatch, without gradients.

        Raises:
            UsageError: the layers or the loss fail, or the loss is not a finite number.
        Cost: one forward of the whole model in memory.
        """
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                for stage in range(len(self.cut)):
                    x = self.build(stage, "cpu")(x)
                loss = self.loss(x, y)
            except Exception as error:
                fact = f"the first microbatch cannot be computed ({type(error).__name__}: {error})"
                raise ModelError(f"{fact}; correct the layers, the loss or the batches") from error
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ModelError("the loss is not one number; let it return the mean over the microbatch, a scalar")
        if not loss.isfinite():
            raise ModelError(f"the loss of the first microbatch is {float(loss)}; correct the inputs or the loss")

    def _measure_inputs(self) -> list[ArraySpec]:
        """The tensor that each stage takes, on the meta device or, where a layer needs values, by computing."""
        try:
            return self._measure_inputs_on("meta")
        except (NotImplementedError, RuntimeError):
            return self._measure_inputs_on("cpu")

    def _measure_inputs_on(self, device: str) -> list[ArraySpec]:
        specs = [self.task.x]
        x = _zeros(self.task.x).to(device)
        for stage in range(len(self.cut)):
            module = self.build(stage, device)
            first_buffers = {name: (buffer, buffer._version) for name, buffer in module.named_buffers()}
            parameter_writes = {name: parameter._version for name, parameter in module.named_parameters()}
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                x = module(x)
            for name, buffer in module.named_buffers():
                if first_buffers[name][0] is not buffer or first_buffers[name][1] != buffer._version:
                    fact = f"layer {name.partition('.')[0]} keeps statistics in a buffer ({name})"
                    remedy = "take a norm without running statistics, such as GroupNorm"
                    raise ModelError(f"{fact}, which the peers of a swarm do not exchange; {remedy}")
            for name, parameter in module.named_parameters():
                if parameter._version != parameter_writes[name]:
                    fact = f"layer {name.partition('.')[0]} writes a parameter in its forward ({name})"
                    raise ModelError(f"{fact}, so peers would differ; change it in the step of your optimizer")
            self._refuse_stream(stage, x)
            specs.append((self.task.dtype, tuple(x.shape)))
        return specs

    def _refuse_stream(self, stage: int, x: object) -> None:
        if stage == len(self.cut) - 1:
            return
        last_layer = self.cut[stage][-1]
        if not isinstance(x, torch.Tensor):
            fact = f"layer {last_layer} ends stage {stage} with a {type(x).__name__}, and a swarm sends one tensor"
            raise ModelError(f"{fact} between stages; let it return one tensor, or choose another depth")
        if not x.is_floating_point():
            fact = f"layer {last_layer} ends stage {stage} with {x.dtype}, which has no gradient"
            raise ModelError(f"{fact}; choose another depth")

    def _refuse_stages(self) -> None:
        """Refuse stages that a swarm cannot train."""
        holder: dict[str, int] = {}
        for stage, layers in enumerate(self.cut):
            parameters = dict(self.build(stage, "meta").named_parameters())
            if not any(parameter.requires_grad for parameter in parameters.values()):
                fact = f"stage {stage} has nothing to train (layers {layers.start} to {layers.stop - 1})"
                raise ModelError(f"{fact}; choose a depth below {len(self.cut)}")
            for name in parameters:
                if holder.setdefault(name, stage) != stage:
                    fact = f"stages {holder[name]} and {stage} share {name}, but a swarm ties nothing between stages"
                    raise ModelError(f"{fact}; choose a depth at which one stage has both, or untie them")

    def _digest_of_values(self) -> str:
        """The blake2b of the task, the layers with their code and initial values, and the optimizer's settings."""
        digest = hashlib.blake2b(digest_size=32)
        settings = (asdict(self.task), dict(self.model.identity()), torch.__version__, _name(self._program.loss))
        digest.update(json.dumps(settings, sort_keys=True, default=repr).encode())
        for stage in range(len(self.cut)):
            module = self.build(stage, "cpu")
            digest.update("".join(sorted({_source(type(layer)) for layer in module.modules()})).encode())
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}".encode())
                digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = self._program.optimizer().build({"weight": parameter})
        digest.update(f"{type(optimizer).__name__} {optimizer.defaults!r}".encode())
        return digest.hexdigest()


def spec_of(tensor: torch.Tensor) -> ArraySpec:
    """The dtype and shape of a tensor."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _zeros(spec: ArraySpec) -> torch.Tensor:
    dtype, shape = spec
    return torch.zeros(shape, dtype=getattr(torch, dtype))


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _source(kind: type) -> str:
    """The source of a layer's class; "" of torch's own, and where there is no file."""
    if kind.__module__.partition(".")[0] == "torch":
        return ""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""
