"""What the links of a group cost: the alpha, beta and gamma of the Hockney model, in which every algorithm is priced.

The one rule: all ranks of a group hold equal links, for `auto` chooses by them. Knows no algorithm.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Links:
    """The price of one message of m bytes, alpha + m * beta seconds, and of reducing it, m * gamma seconds.

    The defaults are of the order of ranks that share one machine's memory; measure, and pass what was found.

    Args:
        alpha: seconds a message takes however short it is.
        beta: seconds a byte on the wire takes.
        gamma: seconds it takes to reduce one byte of an array into another.
        far: the same between ranks of different nodes; None where they are as those of one node.
    Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", section 2.
    """

    alpha: float = 2e-5
    beta: float = 1.5e-10
    gamma: float = 5e-11
    far: "Links | None" = None

    def __post_init__(self) -> None:
        if min(self.alpha, self.beta, self.gamma) < 0:
            raise ValueError(f"a link costs less than nothing ({self}); measure again")
