"""The split backward: the backward of any module in two halves, computed on its autograd graph.

    output ── Linear2 ── GELU ── Linear1 ── x        the path: the nodes that lead to the stage's input
                 │                 │
               W2, b2            W1, b1              leaves: where gradients are accumulated

The input half follows only the path and keeps the gradient that arrives at each *junction*, a node of the path with a
leaf beside the path. The weight half goes from each junction only to its leaves, so both halves together compute each
gradient once. All gradients equal those of the whole backward, bit for bit.

Source: Qi et al., Zero Bubble Pipeline Parallelism (2024), section 2, for the split.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.checkpoint import CheckpointFunction

from pipelined.errors import UsageError
from pipelined.training.graph.recompute import Ticket

NodeGradients = tuple[torch.Tensor | None, ...]
"""The gradients that arrive at a node: one for each of its outputs, or None."""
Seed = tuple[GradientEdge, torch.Tensor]
"""An output of the module, and its gradient."""


@dataclass
class _Group:
    """Junctions that share leaves; the gradients of these leaves must be accumulated in one backward.

    Args:
        seeds: outputs beside the path that lead to the same leaves.
    """

    junctions: list[Node]
    leaves: dict[Node, None]
    seeds: list[Seed] = field(default_factory=list)

    @property
    def is_alone(self) -> bool:
        """Whether at most one way leads from the path to the leaves, so that no node of the path is needed again."""
        return len(self.junctions) < 2

    def join(self, other: "_Group") -> None:
        """Take in another group, with which this one shares a leaf."""
        self.junctions += other.junctions
        self.leaves |= other.leaves
        self.seeds += other.seeds

    def run(self, arrived: dict[Node, NodeGradients], keeps_graph: bool) -> None:
        """Accumulate the leaves' gradients from the gradients that arrived at the junctions.

        With several junctions, one may lie on the way from another to a leaf: each uses only the gradient that arrived
        at it in the input half.

        Args:
            keeps_graph: whether another group may need the nodes that this one passes through.
        """
        seeds = [
            (GradientEdge(node, place), gradient)
            for node in self.junctions
            for place, gradient in enumerate(arrived[node])
            if gradient is not None
        ]
        seeds += self.seeds
        several = [] if self.is_alone else self.junctions
        hooks = [node.register_prehook(partial(_replace_gradients, arrived[node])) for node in several]
        try:
            edges, gradients = zip(*seeds, strict=True)
            leaves = [_variable(leaf) for leaf in self.leaves]
            torch.autograd.backward(edges, gradients, keeps_graph, inputs=leaves)
        finally:
            _remove(hooks)


def _variable(leaf: Any) -> torch.Tensor:
    """The tensor behind a node that accumulates gradients; torch's type of nodes does not have it."""
    return leaf.variable


@dataclass
class WeightHalf:
    """The rest of a backward after its input half: `run` it once."""

    _groups: list[_Group] = field(default_factory=list)
    _arrived: dict[Node, NodeGradients] = field(default_factory=dict)
    _seeds_of_whole: list[Seed] = field(default_factory=list)

    @property
    def gradients(self) -> list[torch.Tensor]:
        """The gradients at the junctions, kept for this half."""
        seeds = [*self._seeds_of_whole, *(seed for group in self._groups for seed in group.seeds)]
        seed_gradients = [gradient for _, gradient in seeds]
        return [*seed_gradients, *(g for arrived in self._arrived.values() for g in arrived if g is not None)]

    def run(self) -> None:
        """Accumulate the parameters' gradients, as `torch.autograd.backward` does, and free all that was kept.

        Cost: if a parameter is used twice on the path, the nodes between the uses are computed again.
        """
        groups, arrived, seeds = self._groups, self._arrived, self._seeds_of_whole
        self._groups = []
        self._arrived = {}
        self._seeds_of_whole = []
        if seeds:
            outputs, gradients = zip(*seeds, strict=True)
            torch.autograd.backward(outputs, gradients)
        keeps_graph = not all(group.is_alone for group in groups)
        for group in groups:
            group.run(arrived, keeps_graph)


def backward_input(
    outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor | None], WeightHalf]:
    """The input half.

    Args:
        outputs: outputs of a module that require a gradient; the two halves together free their graph.
        gradients: of the outputs, with their shapes.
        inputs: the module's inputs of which gradients are needed, all leaves.
    Returns: the gradient of each input, None where no output depends on it; and the weight half. If no output depends
        on an input, the weight half is the whole backward.
    Raises:
        UsageError: a reentrant checkpoint lies in the graph; its backward is a whole one.
    Cost: activations that only the input half needs are freed, unless a parameter is used twice; the gradients at the
        junctions are kept until the weight half.
    """
    seeds = [(get_gradient_edge(output), gradient) for output, gradient in zip(outputs, gradients, strict=True)]
    nodes = nodes_below([edge.node for edge, _ in seeds])
    path = _path(nodes, [get_gradient_edge(x).node for x in inputs])
    if not path:
        return [None] * len(inputs), WeightHalf(_seeds_of_whole=seeds)
    _refuse_reentrant_checkpoints(nodes)
    groups = [_Group([node], leaves) for node in path if (leaves := _leaves(_nodes_beside(node, path)))]
    groups += [_Group([], _leaves([seed[0].node]), [seed]) for seed in seeds if seed[0].node not in path]
    groups = _join(groups)
    arrived: dict[Node, NodeGradients] = {}
    junctions = [node for group in groups for node in group.junctions]
    hooks = [node.register_prehook(partial(arrived.__setitem__, node)) for node in junctions]
    starts, arriving = zip(*(seed for seed in seeds if seed[0].node in path), strict=True)
    try:
        input_gradients = torch.autograd.grad(starts, inputs, arriving, retain_graph=True, allow_unused=True)
    finally:
        _remove(hooks)
    if all(group.is_alone for group in groups):
        _release(path.difference(junctions))
    return list(input_gradients), WeightHalf(groups, arrived)


def _refuse_reentrant_checkpoints(nodes: Iterable[Node]) -> None:
    """Raise UsageError where one is among the nodes: torch runs it only in a backward without stated inputs."""
    if any(isinstance(node, CheckpointFunction._backward_cls) for node in nodes):
        fact = "a layer calls torch.utils.checkpoint with use_reentrant=True"
        remedy = "use use_reentrant=False, pp.recomputed(layer), or a schedule with a whole backward (one_f_one_b)"
        raise UsageError(f"{fact}, which the split backward of this schedule cannot run; {remedy}")


def _path(nodes: Collection[Node], targets: Sequence[Node]) -> set[Node]:
    """Those of the nodes under the outputs from which a target can be reached, the target included."""
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for used, _ in node.next_functions:
            if used is not None:
                users[used].append(node)
    path = set()
    climbing = [target for target in targets if target in nodes]
    while climbing:
        node = climbing.pop()
        if node not in path:
            path.add(node)
            climbing += users[node]
    return path


def _nodes_beside(node: Node, path: set[Node]) -> list[Node]:
    """The nodes that a node of the path uses beside the path."""
    return [used for used, _ in node.next_functions if used is not None and used not in path]


def _leaves(roots: Sequence[Node]) -> dict[Node, None]:
    """The leaves that these nodes lead to."""
    return dict.fromkeys(node for node in nodes_below(roots) if hasattr(node, "variable"))


def nodes_below(roots: Sequence[Node]) -> dict[Node, None]:
    """These nodes and all nodes that they lead to, each once."""
    seen = dict.fromkeys(roots)
    waiting = list(roots)
    while waiting:
        for used, _ in waiting.pop().next_functions:
            if used is not None and used not in seen:
                seen[used] = None
                waiting.append(used)
    return seen


def _join(groups: Iterable[_Group]) -> list[_Group]:
    """Join the groups that share leaves."""
    group_of: dict[Node, _Group] = {}
    for group in groups:
        for other in {id(group_of[leaf]): group_of[leaf] for leaf in group.leaves if leaf in group_of}.values():
            group.join(other)
        group_of.update(dict.fromkeys(group.leaves, group))
    return list({id(group): group for group in group_of.values()}.values())


def _release(nodes: Iterable[Node]) -> None:
    """Free the tensors that these nodes saved, as they take part in no further backward."""
    for node in nodes:
        for name in _saved_names(type(node)):
            value = getattr(node, name)
            for saved_tensor in value if isinstance(value, tuple) else (value,):
                _drop(saved_tensor)


def _drop(saved: Any) -> None:
    """Free a saved tensor: autograd allows this through its hooks for packing."""
    try:
        saved.register_hooks(lambda tensor: None, lambda nothing: None)
    except RuntimeError:  # nothing is saved there, or hooks have packed it: those of the module, or `run_recomputed`
        if isinstance(ticket := saved.data, Ticket):
            ticket.run = ticket.tensor = None


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _replace_gradients(gradients: NodeGradients, reached: NodeGradients) -> NodeGradients:
    return gradients


def _remove(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()
