"""One graph of a module, as `torch.export` traces it: in one dtype, for training or for evaluation."""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from functools import cached_property
from io import StringIO
from itertools import accumulate, pairwise
from math import inf
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from pipelined.errors import line_of
from pipelined.training.job.check_model import ModelError, require_kind
from pipelined.training.models.cut_graph import Boundary, CutGraph

MAX_SHARE = 1 / 8
"""A piece that makes up a larger share of the work is cut further where more tensors cross."""
REMEDY = "let that line compute with tensor operations alone, or train a row of layers with pp.Sequential"
NO_CACHE = "let it return tensors, tuples, lists and dicts; a model of transformers does with config.use_cache = False"
UNKNOWN = re.compile(r"Found <class '[\w.<>]*?(\w+)'> in output")
"""What torch says of an output that is neither a tensor nor made of some."""


class TracedProgram:
    """The graph of a module, with the tensors that it uses.

    Args:
        example: a tensor, a tuple of arguments, or a dict of keyword arguments.
    Attributes:
        constants: the names of tensors that the module's code made, such as `torch.tensor(2.0)`.
    Raises:
        ModelError: `torch.export` cannot trace the module.
    """

    def __init__(self, module: nn.Module, example: Any):
        self._module = module
        self._example = example
        self._training = module.training
        self._exported = _export_program(module, example)
        names = first_names(module)
        states = dict[str, str]()
        untrained = []
        self.constants = set[str]()
        for spec in self._exported.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT or spec.target is None:
                continue
            states[spec.arg.name] = names.get(spec.target, spec.target)
            if spec.kind != InputKind.PARAMETER:
                untrained.append(spec.arg.name)
            if spec.kind == InputKind.CONSTANT_TENSOR:
                self.constants.add(spec.target)
        self.graph = CutGraph(self._exported.graph, states, frozenset(untrained))

    @property
    def outputs(self) -> pytree.TreeSpec:
        """The structure of what the module returns."""
        return self._exported.call_spec.out_spec

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter, a buffer or a constant, by its name."""
        if name in self.constants:
            return self._exported.constants[name]
        *path, leaf = name.split(".")
        tensor: torch.Tensor = getattr(self._module.get_submodule(".".join(path)), leaf)
        return tensor

    def boundary(self, name: str) -> Boundary:
        """The boundary before a module.

        Raises:
            ModelError: the graph has no such boundary.
        """
        boundary = next((cut for cut in self.graph.boundaries if cut.name == name), None)
        if boundary is None:
            mode = "training" if self._training else "evaluation"
            fact = f"{type(self._module).__name__} in {mode} cannot be cut before {name}, where it was cut when traced"
            raise ModelError(f"{fact}; let its forward call the same modules in training and in evaluation")
        return boundary

    def leaves(self, x: Any) -> list[Any]:
        """The inputs as the graph takes them.

        Raises:
            ModelError: they have another structure or other sizes than the example.
        """
        spec, example_spec = (pytree.tree_structure(_arguments(inputs)) for inputs in (x, self._example))
        if spec != example_spec:
            fact = f"the inputs have another structure than the example (inputs: {_describe_input(x)}, example: "
            raise ModelError(f"{fact}{_describe_input(self._example)}); trace an example that is like the inputs")
        leaves = pytree.tree_leaves(_arguments(x))
        for node, value in zip(self.graph.inputs, leaves, strict=True):
            if isinstance(node.meta["val"], torch.Tensor):
                self._require_sizes(node.meta["val"], value)
        return leaves

    def evenly_cut(self) -> list[Boundary]:
        """The boundaries to use: where the fewest tensors cross, and others in pieces with too much work."""
        boundaries = self.graph.boundaries
        chosen = list[Boundary]()
        for crossing in sorted({len(boundary.live) for boundary in boundaries}):
            ends = [0, *sorted(boundary.position for boundary in chosen), len(self.graph.work)]
            pieces = [(a, b) for a, b in pairwise(ends) if self._operation_cost(a, b) > MAX_SHARE * self._sums[-1]]
            for start, stop in pieces:
                chosen += [cut for cut in boundaries if len(cut.live) == crossing and start < cut.position < stop]
        return sorted(chosen, key=lambda boundary: boundary.position)

    def costs(self, cuts: Sequence[str]) -> list[float]:
        """The operations for one row, plus the parameters, of each piece between these cuts."""
        positions = [0, *(self.boundary(name).position for name in cuts), len(self.graph.work)]
        return [1.0 + self._operation_cost(start, stop) for start, stop in pairwise(positions)]

    def _operation_cost(self, start: int, stop: int) -> float:
        return self._sums[stop] - self._sums[start]

    @cached_property
    def _sums(self) -> list[float]:
        """The operations before each place in the graph, each with the parameters that it uses first."""
        operations = self._operations()
        seen = set[str]()
        counts = []
        for node in self.graph.work:
            names = {self.graph.states[used.name] for used in node.all_input_nodes if used.name in self.graph.states}
            counts.append(operations[node] + sum(self.tensor(name).numel() for name in names - seen))
            seen |= names
        return [0.0, *accumulate(counts)]

    def _operations(self) -> Mapping[fx.Node, float]:
        """The floating-point operations of each node for one row of the example, counted without values."""
        leaves = pytree.tree_leaves(_arguments(self._example))
        rows = next((len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()), 1)
        examples = iter(leaves)
        specs = self._exported.graph_signature.input_specs
        values = [
            next(examples) if spec.kind == InputKind.USER_INPUT else self.tensor(str(spec.target)) for spec in specs
        ]
        with (
            FakeTensorMode(allow_non_fake_inputs=True) as fake,
            torch.no_grad(),
            FlopCounterMode(display=False) as flops,
        ):
            fake_values = [fake.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in values]
            counter = _Counter(self._exported.graph_module, flops)
            counter.run(*fake_values)
        return {node: count / max(1, rows) for node, count in counter.counts.items()}

    def _require_sizes(self, traced: torch.Tensor, value: torch.Tensor) -> None:
        require_kind(value.dtype, traced.dtype, "that was traced for")
        limits = self._exported.range_constraints
        least = [size if isinstance(size, int) else int(limits[size.node.expr].lower) for size in traced.shape]
        most = [size if isinstance(size, int) else inf for size in traced.shape]
        bounds = list(zip(least, most, strict=True))
        fits = len(bounds) == value.dim() and all(
            low <= length <= high for (low, high), length in zip(bounds, value.shape, strict=True)
        )
        if not fits:
            expected = ", ".join(f"{low}" if low == high else f"{low} or more" for low, high in bounds)
            fact = f"inputs of shape {tuple(value.shape)} for a model that was traced for ({expected})"
            if inf not in most:
                fact += ", as its code works for one number of rows alone"
            raise ModelError(f"{fact}; give pp.trace an example with the sizes of one microbatch")


class _Counter(fx.Interpreter):
    """Runs a graph and counts the floating-point operations of each node."""

    def __init__(self, module: fx.GraphModule, flops: FlopCounterMode):
        super().__init__(module)
        self._flops = flops
        self.counts = dict[fx.Node, float]()

    def run_node(self, n: fx.Node) -> Any:
        before = self._flops.get_total_flops()
        result = super().run_node(n)
        self.counts[n] = float(self._flops.get_total_flops() - before)
        return result


def first_names(module: nn.Module) -> dict[str, str]:
    """The name of every parameter and buffer, tied ones too, and the first name of the same tensor."""
    name_of: dict[int, str] = {}
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: name_of.setdefault(id(tensor), name) for name, tensor in tensors}


def _export_program(module: nn.Module, example: Any) -> ExportedProgram:
    """The exported program, with an open number of rows if the module's code allows that."""
    try:
        return _export(module, example, open_rows=True)
    except Exception:
        try:
            return _export(module, example, open_rows=False)
        except Exception as error:
            fact = f"{type(module).__name__} cannot be traced"
            if unknown := UNKNOWN.search(str(error)):
                raise ModelError(f"{fact}, because its forward returns a {unknown[1]}; {NO_CACHE}") from error
            raise ModelError(f"{fact}: {_reason(error)}; {REMEDY}") from error


def _export(module: nn.Module, example: Any, open_rows: bool) -> ExportedProgram:
    """As `torch.export.export`, without what it prints of code that it cannot trace."""
    detached = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, example)  # it leaves marks on its examples
    args, kwargs = _arguments(detached)
    shapes = _open_rows(args, kwargs) if open_rows else None
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
        finally:
            logging.disable(disabled)


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments of the module's forward."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return tuple(example) if isinstance(example, tuple | list) else (example,), {}


def _open_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Which sizes are open: the first one of each tensor that has as many rows as the first tensor."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]

    def open_size(leaf: Any) -> Any:
        is_batch = isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == len(tensors[0])
        return {0: Dim.DYNAMIC} if is_batch else None

    return (*pytree.tree_map(open_size, args), *pytree.tree_map(open_size, kwargs).values())


def _reason(error: BaseException) -> str:
    """What torch says of a module's code, and the line of that code."""
    message = str(error).partition("For more information")[0]
    text = next((line.strip(" .") for line in message.splitlines() if line.strip()), type(error).__name__)
    line = next((f"{line}: " for cause in _chain(error) if (line := line_of(cause))), "")
    return f"{line}{text}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _describe_input(x: Any) -> str:
    if isinstance(x, Mapping):
        return f"a dict of {', '.join(map(str, x))}"
    return f"a {type(x).__name__}" + (f" of {len(x)}" if isinstance(x, tuple | list) else "")
