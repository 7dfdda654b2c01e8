"""The values of a traced graph that share memory, are overwritten, or are drawn at random."""

from collections.abc import Iterator, Sequence

import torch
from torch import fx
from torch.fx.node import Argument

BATCH_NORM = torch.ops.aten.batch_norm.default
DETACH = torch.ops.aten.detach_.default
"""It changes no value; `torch.tensor` inside a module calls it."""


class Aliases:
    """Which values may share memory, and which of them are overwritten."""

    def __init__(self, nodes: Sequence[fx.Node]):
        self._parent: dict[fx.Node, fx.Node] = {}
        self._nodes = nodes
        self._writers: list[tuple[fx.Node, fx.Node]] = []
        for node in nodes:
            for source, is_write in _aliased_arguments(node):
                self._parent[self._root(node)] = self._root(source)
                if is_write:
                    self._writers.append((node, source))
        self._written = {self._root(source) for _, source in self._writers}

    def is_written(self, node: fx.Node) -> bool:
        return self._root(node) in self._written

    def overwritten_groups(self) -> Iterator[tuple[list[fx.Node], list[fx.Node]]]:
        """Values that share memory, and the operations that overwrite them."""
        groups: dict[fx.Node, list[fx.Node]] = {}
        for node in self._nodes:
            if self.is_written(node):
                groups.setdefault(self._root(node), []).append(node)
        for root, group in groups.items():
            yield group, [writer for writer, source in self._writers if self._root(source) is root]

    def _root(self, node: fx.Node) -> fx.Node:
        while node in self._parent and self._parent[node] is not node:
            node = self._parent[node]
        return node


def _aliased_arguments(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """The arguments with which a node's result may share memory, and whether the node overwrites them."""
    if node.op != "call_function":
        return
    if node.target == BATCH_NORM and node.args[5]:  # its schema does not tell that it writes its statistics
        yield from ((used, True) for used in _nodes_in(node.args[3:5]))
    if not isinstance(node.target, torch._ops.OpOverload):
        writes = any(is_write for inner in _inner_operations(node) for _, is_write in _aliased_arguments(inner))
        yield from ((used, writes) for used in node.all_input_nodes if used.op != "get_attr")
        return
    arguments = node.target._schema.arguments
    pairs = [
        *zip(arguments, node.args, strict=False),
        *((a, node.kwargs[a.name]) for a in arguments if a.name in node.kwargs),
    ]
    for argument, value in pairs:
        if argument.alias_info is not None or draws_itself(node):  # a dropout that drops nothing returns its input
            for used in _nodes_in(value):
                info = argument.alias_info
                yield used, info is not None and info.is_write and node.target != DETACH


def _nodes_in(value: Argument) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.map_arg(value, nodes.append)  # type: ignore[arg-type]
    return nodes


def _inner_operations(node: fx.Node) -> Iterator[fx.Node]:
    """The operations of the graphs that a node calls."""
    for used in node.all_input_nodes:
        if used.op == "get_attr":
            nested = getattr(used.graph.owning_module, str(used.target), None)
            if isinstance(nested, fx.GraphModule):
                for inner in nested.graph.nodes:
                    yield inner
                    yield from _inner_operations(inner)


def draws_in(node: fx.Node) -> list[fx.Node]:
    """The draws of random numbers in an operation: itself, or operations of the graphs that it calls."""
    return [operation for operation in (node, *_inner_operations(node)) if draws_itself(operation)]


def draws_itself(node: fx.Node) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
