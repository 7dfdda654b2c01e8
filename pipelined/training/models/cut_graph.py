"""The graph of a traced module, cut where one of its modules begins.

    embed ── layers.0 ── layers.1 ── head      a boundary lies before each module; over it go the live tensors:
                     │                         computed before it and used after it
                 live tensors

What depends on neither inputs nor parameters (positions, masks, sizes of the batch) is computed again in each part that
uses it. Operations keep their order, and each is in one part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, map_aggregate

from pipelined.training.models.graph_aliases import Aliases, draws_in, draws_itself

CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")
SIZE = torch.ops.aten.sym_size.int
Draws = Callable[[Callable[..., Any], str], Callable[..., Any]]
"""Wraps an operation that draws random numbers; the draw has a name."""


@dataclass(frozen=True)
class Boundary:
    """A place where the graph may be cut.

    Attributes:
        name: the module that begins there; its second call is "name@1".
        position: the first operation after it.
        live: the values that cross it.
    """

    name: str
    position: int
    live: tuple[fx.Node, ...]


class CutGraph:
    """One traced graph, in the order of its operations.

    Args:
        graph: as `torch.export` makes it, with parameters, buffers and constants as placeholders.
        states: the name of a parameter, a buffer or a constant, by placeholder.
        constants: the placeholders that no update changes: constants and buffers that the graph only reads.
    """

    def __init__(self, graph: fx.Graph, states: Mapping[str, str], constants: frozenset[str]):
        self.states = states
        nodes = [node for node in graph.nodes if not _is_check(node)]
        self.inputs = [node for node in nodes if node.op == "placeholder" and node.name not in states]
        (self.output,) = (node for node in nodes if node.op == "output")
        self._aliases = Aliases(nodes)
        self._free: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in nodes:
            self._note_if_free(node, constants)
        calls = (node for node in nodes if node.op == "call_function" and node not in self._free)
        self.work = list(calls)
        self._index = {node: index for index, node in enumerate(self.work)} | {self.output: len(self.work)}

    @cached_property
    def boundaries(self) -> list[Boundary]:
        """Every place where the graph may be cut: all that crosses it is a tensor that nothing overwrites later."""
        cuttable: list[Boundary] = []
        names = set[str]()
        previous_stack = _stack(self.work[0]) if self.work else []
        for position, node in enumerate(self.work):
            stack = _stack(node)
            module = next((name for name in stack if name not in previous_stack), None)
            previous_stack = stack
            if position and module is not None and module not in names and not self._splits_a_write(position):
                boundary = Boundary(module, position, tuple(self._live_values(position)))
                if boundary.live and self._can_cross(boundary):
                    cuttable.append(boundary)
                    names.add(module)
        return cuttable

    def states_in(self, start: Boundary | None, stop: Boundary | None) -> list[str]:
        """The names of the parameters, buffers and constants that a part uses, in the order of their first use."""
        used: dict[str, None] = {}
        for node in self._range(start, stop):
            for source in self._sources(node):
                if source.name in self.states:
                    used[self.states[source.name]] = None
        return list(used)

    @cached_property
    def draw_names(self) -> dict[fx.Node, str]:
        """The name of every draw of random numbers: its module's; a module's further draws are "name+1", "name+2"."""
        count: dict[str, int] = {}
        names = {}
        for node in self.work:
            for draw in draws_in(node):
                name = (_stack(draw) or _stack(node) or [""])[-1]
                count[name] = index = count.get(name, -1) + 1
                names[draw] = f"{name}+{index}" if index else name
        return names

    def is_free(self, node: fx.Node) -> bool:
        """Whether a value depends on neither inputs nor parameters, except for their sizes."""
        return node in self._free

    def _range(self, start: Boundary | None, stop: Boundary | None) -> list[fx.Node]:
        first = start.position if start else 0
        last = stop.position if stop else len(self.work)
        return [*self.work[first:last], *([] if stop else [self.output])]

    def _sources(self, node: fx.Node) -> Iterator[fx.Node]:
        """What a node uses, and what the free values use that it uses."""
        for used in node.all_input_nodes:
            yield used
            if self.is_free(used) and used.target != SIZE:
                yield from self._sources(used)

    def _note_if_free(self, node: fx.Node, constants: frozenset[str]) -> None:
        if node.target == SIZE:
            self._free[node] = frozenset([node])
        elif node.op == "get_attr" or (node.op == "placeholder" and node.name in constants):
            self._free[node] = frozenset()
        elif node.op == "call_function" and not self._aliases.is_written(node) and not draws_in(node):
            if all(used in self._free for used in node.all_input_nodes):
                self._free[node] = frozenset[fx.Node]().union(*(self._free[used] for used in node.all_input_nodes))

    def _live_values(self, position: int) -> Iterator[fx.Node]:
        for node in (*self.inputs, *self.work[:position]):
            if self._last_use.get(node, -1) >= position:
                yield node

    def _can_cross(self, boundary: Boundary) -> bool:
        if not all(isinstance(node.meta.get("val"), torch.Tensor) for node in boundary.live):
            return False
        for size, source in ((size, size.args[0]) for size in self._last_use if size.target == SIZE):
            is_before = isinstance(source, fx.Node) and self._index.get(source, -1) < boundary.position
            if is_before and self._last_use[size] >= boundary.position and find_size(size, boundary.live) is None:
                return False
        return True

    @cached_property
    def _last_use(self) -> dict[fx.Node, int]:
        """The last operation that uses a value, or a size, be it through free values."""
        last = {}
        for node, index in self._index.items():
            for used in node.all_input_nodes:
                for value in (used, *self._free.get(used, ())):
                    last[value] = index
        return last

    def _splits_a_write(self, position: int) -> bool:
        """Whether a value lies before a position, or is a buffer used before it, and is overwritten after it."""
        return any(first < position <= last for first, last in self._writes)

    @cached_property
    def _writes(self) -> list[tuple[int, int]]:
        """For all values that share memory and are overwritten: the first and the last operation of them."""
        spans = []
        for group, writers in self._aliases.overwritten_groups():
            buffers = [node for node in group if node.name in self.states]
            users = [user for node in buffers for user in node.users]
            last = [self._index[node] for node in (*writers, *users) if node in self._index]
            first = [self._index[node] for node in (*group, *users) if node in self._index]
            is_input = any(node in self.inputs for node in group)
            if last:
                spans.append((-1 if is_input else min(first), max(last)))
        return spans


class PartGraph:
    """The operations between two boundaries (None: the start, the end), as a graph of their own.

    Args:
        device: operations that name a device are moved to this one.
        draws: wraps the operations that draw random numbers.
        nested: the first part of the names of attributes.
    Attributes:
        graph: its placeholders are the values that arrive, its output a list of those that leave.
        nested: the graphs that it calls, by the name of the attribute in which it expects them.
    """

    def __init__(
        self,
        whole: CutGraph,
        start: Boundary | None,
        stop: Boundary | None,
        *,
        device: torch.device,
        draws: Draws,
        nested: str,
    ):
        self.graph = fx.Graph()
        self.nested = dict[str, fx.GraphModule]()
        self._whole = whole
        self._device = device
        self._draws = draws
        self._prefix = nested
        arriving = start.live if start else whole.inputs
        self._arriving = {node: self.graph.placeholder(node.name) for node in arriving}
        self._copies: dict[fx.Node, Argument] = dict(self._arriving)
        first = start.position if start else 0
        last = stop.position if stop else len(whole.work)
        for node in whole.work[first:last]:
            self._copies[node] = self._copy_node(node)
        leaving: Any = list(stop.live) if stop else whole.output.args[0]
        self.graph.output(fx.map_arg(leaving, self._value))

    def handed_on(self) -> dict[int, int]:
        """What is only handed on: by its position among the values that arrive, its position among those that leave."""
        output = self.graph.output_node()
        leaving: Any = output.args[0]
        return {
            position: leaving.index(node)
            for position, node in enumerate(self._arriving.values())
            if set(node.users) == {output} and leaving.count(node) == 1
        }

    def _value(self, node: fx.Node) -> Argument:
        """A value in this graph; what is free is computed here when it is first used."""
        if node not in self._copies:
            if node.target == SIZE:
                return self._size(node)
            self._copies[node] = self._fetch_attribute(node)
        return self._copies[node]

    def _fetch_attribute(self, node: fx.Node) -> fx.Node:
        if node.op == "placeholder":
            return self.graph.get_attr(self._whole.states[node.name])
        if node.op == "get_attr":
            name = f"{self._prefix}_{len(self.nested)}"
            self.nested[name] = self._copy_nested(getattr(node.graph.owning_module, str(node.target)))
            return self.graph.get_attr(name)
        return self._copy_node(node)

    def _size(self, node: fx.Node) -> Argument:
        source, dim = node.args
        assert isinstance(source, fx.Node)
        if isinstance(node.meta["val"], int):
            return node.meta["val"]
        if source not in self._copies and not self._whole.is_free(source):
            found = find_size(node, tuple(self._arriving))
            assert found is not None  # a boundary is only where it is found
            source, dim = found
        self._copies[node] = size = self.graph.call_function(SIZE, (self._value(source), dim))
        return size

    def _copy_node(self, node: fx.Node) -> fx.Node:
        copied = self.graph.node_copy(node, self._value)  # type: ignore[arg-type]
        self._settle(copied, self._whole.draw_names.get(node))
        return copied

    def _settle(self, node: fx.Node, draw_name: str | None) -> None:
        """Put an operation on this device, and wrap it if it draws random numbers."""
        node.args = map_aggregate(node.args, self._move_device)  # type: ignore[assignment]
        node.kwargs = map_aggregate(node.kwargs, self._move_device)  # type: ignore[assignment]
        if draw_name is not None and callable(node.target) and draws_itself(node):
            node.target = self._draws(node.target, draw_name)

    def _move_device(self, argument: Argument) -> Argument:
        return self._device if isinstance(argument, torch.device) else argument

    def _copy_nested(self, module: fx.GraphModule) -> fx.GraphModule:
        """A copy of a nested graph."""
        graph = fx.Graph()
        copies = dict[fx.Node, fx.Node]()
        graph.output(graph.graph_copy(module.graph, copies))  # type: ignore[arg-type]
        for node, copied in copies.items():
            self._settle(copied, self._whole.draw_names.get(node))
        copied_module = fx.GraphModule(module, graph)
        for name, inner in module.named_children():
            if isinstance(inner, fx.GraphModule):
                setattr(copied_module, name, self._copy_nested(inner))
        return copied_module


def find_size(size: fx.Node, values: Sequence[fx.Node]) -> tuple[fx.Node, int] | None:
    """A value and a dimension of it with this size, whatever the batch."""
    expected = size.meta["val"]
    for value in values:
        for dim, length in enumerate(value.meta["val"].shape):
            if not isinstance(length, int) and not isinstance(expected, int) and length.node.expr == expected.node.expr:
                return value, dim
    return None


def _is_check(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "").split(".")[0] in CHECKS


def _stack(node: fx.Node) -> list[str]:
    """The names of the modules in which an operation lies, the outermost first; the root has none."""
    names = []
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        if path and not path.startswith("_empty_nn_module_stack"):
            names.append(path + "".join(key.partition("@")[1:]))
    return names
