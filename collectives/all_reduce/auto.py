"""Auto: by memory that the ranks share, where they do; else the cheapest algorithm by its price.

The one rule: the choice depends only on the size of the group, the bytes and the links, which all ranks share, and on
whether they share memory, which all learn alike; so all choose alike without a word.
"""

from collectives._group import Group
from collectives._links import Links
from collectives._reduction import Reduction
from collectives._vector import Vector
from collectives.all_reduce._known import algorithms, known


async def all_reduce(group: Group, vector: Vector, reduction: Reduction) -> None:
    """Run `shared` where it can be, else the algorithm that `choose` names."""
    lent = group.size > 1 and await group.shared() is not None
    chosen = "shared" if lent else choose(group.size, vector.nbytes, group.links)
    await known(chosen).all_reduce(group, vector, reduction)


def choose(size: int, nbytes: int, links: Links) -> str:
    """The name of the algorithm that costs least; of equals, the last by name (`ring` before `multi_ring`)."""
    names = [name for name in reversed(algorithms()) if known(name).__name__ != __name__]
    return min(names, key=lambda name: _price(name, size, nbytes, links))


def cost(size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
    """Seconds that the chosen algorithm takes."""
    links = Links(alpha, beta, gamma)
    return _price(choose(size, nbytes, links), size, nbytes, links)


def _price(name: str, size: int, nbytes: int, links: Links) -> float:
    return known(name).cost(size, nbytes, links.alpha, links.beta, links.gamma)
