"""A backward in two halves, for any module, by way of the autograd graph it left behind.

    output ── Linear2 ── GELU ── Linear1 ── x        the path: what leads to the stage's input
                 │                 │
               W2, b2            W1, b1              leaves: where gradients are added up

The input half walks the path alone and notes the gradient that arrives at each *junction*, a node from which a leaf
hangs off the path. The weight half goes from each junction to its leaves and nowhere else, so that both halves together
compute each gradient once. The one rule: the numbers are those of the whole backward, to the bit. This file knows
graphs; it must not know of stages, microbatches or messages.

Source: Qi et al., Zero Bubble Pipeline Parallelism (2024), section 2, for the split.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = tuple[torch.Tensor | None, ...]
"""What arrives at a node: one gradient for each of its outputs, None where there is none."""


@dataclass
class _Group:
    """Junctions that share leaves, whose gradients must therefore be added up in one go."""

    junctions: list[Node]
    leaves: dict[Node, None]

    @property
    def alone(self) -> bool:
        """Whether there is one way to the leaves only, so that nothing else of the path is needed again."""
        return len(self.junctions) == 1

    def run(self, arrived: dict[Node, Gradients], again: bool) -> None:
        """Add what arrived at the junctions to their leaves' gradients.

        Where there are several, one may lie on the way from another to a leaf: each is held to what arrived then.

        Args:
            again: what is gone through here may be needed by another group.
        """
        seeds = [
            (GradientEdge(node, place), gradient)
            for node in self.junctions
            for place, gradient in enumerate(arrived[node])
            if gradient is not None
        ]
        several = [] if self.alone else self.junctions
        held = [node.register_prehook(partial(_instead, arrived[node])) for node in several]
        try:
            edges, gradients = zip(*seeds, strict=True)
            leaves = [leaf.variable for leaf in self.leaves]
            torch.autograd.backward(edges, gradients, again, inputs=leaves)
        finally:
            _remove(held)


@dataclass
class WeightHalf:
    """What is left to do of a backward whose input half is done: `run` it once."""

    _groups: list[_Group] = field(default_factory=list)
    _arrived: dict[Node, Gradients] = field(default_factory=dict)
    _whole: tuple[GradientEdge, torch.Tensor] | None = None

    @property
    def gradients(self) -> list[torch.Tensor]:
        """Those that are kept for it."""
        whole = self._whole[1:] if self._whole else ()
        return [*whole, *(g for arrived in self._arrived.values() for g in arrived if g is not None)]

    def run(self) -> None:
        """Add up the parameters' gradients, as `torch.autograd.backward` does, and let go of everything.

        Cost: where a parameter is used twice on the path, what lies between the uses is gone through again.
        """
        groups, arrived, whole = self._groups, self._arrived, self._whole
        self._groups, self._arrived, self._whole = [], {}, None
        if whole is not None:
            torch.autograd.backward(*whole)
        again = not all(group.alone for group in groups)
        for group in groups:
            group.run(arrived, again)


def backward_input(
    output: torch.Tensor, gradient: torch.Tensor, x: torch.Tensor | None
) -> tuple[torch.Tensor | None, WeightHalf]:
    """The input half.

    Args:
        output: of a module; its graph is used up, both halves together.
        gradient: of the output, of its shape.
        x: the module's input, a leaf; None where nobody wants its gradient.
    Returns: x's gradient, and the weight half. Without x, or where x has no part in the output, the gradient is None
        and the weight half is the whole backward.
    Cost: activations that only the input half needs are let go of, unless a parameter is used twice; the gradients at
        the junctions are kept until the weight half.
    """
    root = get_gradient_edge(output)
    path = set() if x is None else _path(root.node, get_gradient_edge(x).node)
    if not path:
        return None, WeightHalf(_whole=(root, gradient))
    groups, arrived = _group({node: leaves for node in path if (leaves := _leaves(node, path))}), {}
    junctions = [node for group in groups for node in group.junctions]
    hooks = [node.register_prehook(partial(arrived.__setitem__, node)) for node in junctions]
    try:
        (back,) = torch.autograd.grad(output, [x], gradient, retain_graph=True)
    finally:
        _remove(hooks)
    if all(group.alone for group in groups):
        _release(path.difference(junctions))
    return back, WeightHalf(groups, arrived)


def _path(root: Node, target: Node) -> set[Node]:
    """The nodes from which the target is reached, itself included; empty if the root is not among them."""
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in _below([root]):
        for used, _ in node.next_functions:
            users[used].append(node)
    path, climbing = set(), [target] if target is root or target in users else []
    while climbing:
        node = climbing.pop()
        if node not in path:
            path.add(node)
            climbing += users[node]
    return path


def _leaves(node: Node, path: set[Node]) -> dict[Node, None]:
    """The leaves that hang off the path at this node."""
    off = [used for used, _ in node.next_functions if used is not None and used not in path]
    return dict.fromkeys(found for found in _below(off) if hasattr(found, "variable"))


def _below(roots: Sequence[Node]) -> Iterable[Node]:
    """These nodes and all that they lead to, each once."""
    seen, waiting = dict.fromkeys(roots), list(roots)
    while waiting:
        for used, _ in waiting.pop().next_functions:
            if used is not None and used not in seen:
                seen[used] = None
                waiting.append(used)
    return seen


def _group(leaves_of: dict[Node, dict[Node, None]]) -> list[_Group]:
    group_of: dict[Node, _Group] = {}
    for junction, leaves in leaves_of.items():
        group = _Group([junction], dict(leaves))
        for other in {id(group_of[leaf]): group_of[leaf] for leaf in leaves if leaf in group_of}.values():
            group.junctions += other.junctions
            group.leaves |= other.leaves
        group_of.update(dict.fromkeys(group.leaves, group))
    return list({id(group): group for group in group_of.values()}.values())


def _release(nodes: Iterable[Node]) -> None:
    """Let go of what these nodes saved for a backward that they will not take part in again."""
    for node in nodes:
        for name in _saved_names(type(node)):
            saved = getattr(node, name)
            for one in saved if isinstance(saved, tuple) else (saved,):
                _drop(one)


def _drop(saved: Any) -> None:
    """Replace a saved tensor by nothing: packing it away is how autograd allows that."""
    try:
        saved.register_hooks(lambda tensor: None, lambda nothing: None)
    except RuntimeError:
        return  # nothing was saved there, or it is packed by hooks of the module's own


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _instead(gradients: Gradients, reached: Gradients) -> Gradients:
    return gradients


def _remove(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()
