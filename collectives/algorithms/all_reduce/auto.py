"""Auto: the algorithm with the lowest measured price; without prices `shared`, or else the lowest modelled price.

The choice depends only on the nodes, bytes, links and prices of the call, and on whether the ranks share memory. All of
these are equal on all ranks, so all ranks make the same choice without exchanging messages.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from collectives.algorithms.registry import algorithms, module_of
from collectives.arrays import Vector
from collectives.cost_model import Links
from collectives.group import Group
from collectives.reduction import Reduction
from collectives.signature import Signature


async def all_reduce(group: Group, vector: Vector, reduction: Reduction) -> None:
    """Run the algorithm that `choose_for` names; the signature names that of the first of several blocks."""
    allocated = group.prices is not None and group.shared.find(vector) is not None
    chosen = await choose_for(group, vector.nbytes, allocated) if group.prices or not group.shared.memory else "shared"
    call = group.calls.running
    if not call.signature.chosen:
        call.refine(_with_choice(call.signature, chosen))
    await module_of(chosen).all_reduce(group, vector, reduction)


@lru_cache(maxsize=1024)
def _with_choice(signature: Signature, chosen: str) -> Signature:
    return replace(signature, chosen=chosen)


async def choose_for(group: Group, nbytes: int, allocated: bool = False) -> str:
    """The algorithm that all ranks of the group choose for an array of `nbytes`, inside a running call.

    Args:
        allocated: whether the array lies in memory that all ranks map; prices were measured without that.
    """
    if group.prices is not None and not allocated:
        return group.prices.cheapest(nbytes)
    if group.size > 1 and await group.shared.open() is not None:
        return "shared"
    return choose(group.size, nbytes, group.links, group.nodes)


def choose(size: int, nbytes: int, links: Links, nodes: Sequence[int] = ()) -> str:
    """The name of the algorithm with the lowest price; of equals, the last by name (`ring` before `multi_ring`).

    Args:
        nodes: for each rank, the lowest rank on its node; empty: all ranks are on one node.
    """
    names = [name for name in reversed(algorithms()) if module_of(name).__name__ != __name__]
    return min(names, key=lambda name: price(name, size, nbytes, links, nodes))


def price(name: str, size: int, nbytes: int, links: Links, nodes: Sequence[int] = ()) -> float:
    """Seconds by the model; an algorithm without `price` is charged for all links as for links between nodes."""
    algorithm, apart = module_of(name), len(set(nodes)) > 1
    if apart and hasattr(algorithm, "price"):
        return algorithm.price(nodes, nbytes, links)
    worst = links.far if apart and links.far is not None else links
    return algorithm.cost(size, nbytes, worst.alpha, worst.beta, worst.gamma)


def cost(size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
    """Seconds that the chosen algorithm takes."""
    links = Links(alpha, beta, gamma)
    return price(choose(size, nbytes, links), size, nbytes, links)
