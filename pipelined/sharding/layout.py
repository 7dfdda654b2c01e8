"""Layout: what each rank of a mesh holds of a tensor, as "S1:node S0:gpu".

On each axis of the mesh a tensor is split (S), partial (P) or, where the axis is not named, broadcast (B):

    S1:gpu      dimension 1 is cut along the axis gpu; rank i of the axis holds part i
    P:gpu       each rank holds a tensor of the whole shape; the tensor is their sum (Pmean: their mean, Pmax: maximum)
    (unnamed)   each rank of the axis holds the same

Two axes on one dimension are nested cuts, the first named is the outermost: "S0:node S0:gpu" gives each node a block of
rows, and each of its GPUs a block of that. A length is cut as `collectives.segment` cuts: part i of n begins at
i · length // n. The order of axes on different dimensions means nothing.

"S1/3:gpu" first cuts dimension 1 into 3 parts, and then each part along gpu. A rank holds a piece of all three, so its
columns are strided. Two uses:

    S1/3:gpu          queries, keys and values side by side, each split by heads
    S1/2:b P:c        a product whose reduce-scatter over c (2 ranks) completes "S1:c S1:b": part c of all columns, and
                      in it part b. So rank q = c · p1 + b of a row of ranks holds column block q, and the weight
                      whose columns are "S1/2:b" has the blocks c · p1 + b for every c.

A gather over an axis that is not the innermost leaves such a layout: "S1:c S1:b" without c is "S1/2:b".

Source: AutoDDL, section 4.1 (OneFlow's SBP); the strided split is of this project.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pipelined.errors import UsageError
from pipelined.sharding.mesh import Mesh

REDUCTIONS = ("sum", "mean", "max")
SPLIT = re.compile(r"S(\d+)((?:/\d+)*):([A-Za-z_]\w*)")
PARTIAL = re.compile(r"P(sum|mean|max)?:([A-Za-z_]\w*)")

Cut = str | int
"""One cut of a dimension, of which the outermost comes first: along an axis, or into parts that every rank keeps."""


class Layout:
    """How a tensor lies on the axes of a mesh.

    Args:
        text: words S<dimension>[/<parts>...]:<axis> and P[mean|max]:<axis>; "B" or "" is broadcast on every axis.
    Attributes:
        cuts: for each dimension that is cut, its cuts.
        partial: the op of each partial axis, "sum", "mean" or "max".
    Raises:
        UsageError: an unknown word, an axis is named twice, or a maximum stands beside a sum or mean.
    """

    __slots__ = ("_hash", "_key", "cuts", "partial")

    def __init__(self, text: str = "B"):
        cuts: dict[int, tuple[Cut, ...]] = {}
        partial: dict[str, str] = {}
        for word in text.split() if text != "B" else ():
            if split_word := SPLIT.fullmatch(word):
                dimension = int(split_word[1])
                parts = split_word[2].split("/")[1:]
                axis = split_word[3]
                cuts[dimension] = *cuts.get(dimension, ()), *map(int, parts), axis
            elif partial_word := PARTIAL.fullmatch(word):
                axis = partial_word[2]
                partial[axis] = "several" if axis in partial else partial_word[1] or "sum"
            else:
                remedy = "write S0:AXIS, S1/3:AXIS, P:AXIS, Pmean:AXIS or Pmax:AXIS, and leave out an axis"
                fact = f"no word of a layout: {word!r} (layout: {text!r})"
                raise UsageError(f"{fact}; {remedy} on which the tensor is broadcast")
        self._set(cuts, partial)
        split_axes = [cut for axes in cuts.values() for cut in axes if isinstance(cut, str)]
        for axis in (*split_axes, *partial):
            if split_axes.count(axis) + (axis in partial) > 1 or partial.get(axis) == "several":
                raise UsageError(f"axis {axis!r} is named twice (layout: {text!r}); split or sum over it once")
        if 0 in (cut for axes in cuts.values() for cut in axes):
            raise UsageError(f"a dimension is cut into 0 parts (layout: {text!r}); cut it into 1 or more")
        if not are_commutative(partial):
            fact = f"a maximum beside a sum or mean has no order (layout: {text!r})"
            raise UsageError(f"{fact}; reduce one of them first")

    @classmethod
    def of(cls, cuts: Mapping[int, Sequence[Cut]], partial: Mapping[str, str] | None = None) -> "Layout":
        """The layout of these cuts and partial axes, which are known to be valid."""
        layout = cls.__new__(cls)
        layout._set(cuts, partial or {})
        return layout

    def _set(self, cuts: Mapping[int, Sequence[Cut]], partial: Mapping[str, str]) -> None:
        trimmed = {dimension: _trim_cuts(cuts[dimension]) for dimension in sorted(cuts)}
        self.cuts = {dimension: tuple(kept) for dimension, kept in trimmed.items() if kept}
        self.partial = dict(sorted(partial.items()))
        self._key = tuple(self.cuts.items()), tuple(self.partial.items())
        self._hash = hash(self._key)  # each move of each microbatch looks its path up

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> "tuple[type[Layout], tuple[str]]":
        return Layout, (str(self),)  # a hash of text counts in one process alone

    def __repr__(self) -> str:
        return f"Layout({str(self)!r})"

    def __str__(self) -> str:
        words = []
        parts = ""
        for dimension, cuts in self.cuts.items():
            for cut in cuts:
                if isinstance(cut, int):
                    parts += f"/{cut}"
                else:
                    words.append(f"S{dimension}{parts}:{cut}")
                    parts = ""
        words += [f"P{'' if op == 'sum' else op}:{axis}" for axis, op in self.partial.items()]
        return " ".join(words) or "B"

    @property
    def split(self) -> dict[str, int]:
        """The dimension that each split axis cuts."""
        return {cut: dimension for dimension, cuts in self.cuts.items() for cut in cuts if isinstance(cut, str)}

    def check(self, mesh: Mesh, dimensions: int) -> None:
        """Raises UsageError: the mesh lacks an axis, or a dimension that is cut is not below `dimensions`."""
        mesh.require([*self.split, *self.partial])
        for dimension in self.cuts:
            if dimension >= dimensions:
                fact = f"no dimension {dimension} to split (layout: {str(self)!r}, dimensions: {dimensions})"
                raise UsageError(f"{fact}; dimensions are counted from 0")

    def without_trivial_axes(self, mesh: Mesh) -> "Layout":
        """The same layout without axes of one rank, on which split, partial and broadcast are one."""
        cuts = {d: [cut for cut in cuts if _size(cut, mesh) > 1] for d, cuts in self.cuts.items()}
        return Layout.of(cuts, {axis: op for axis, op in self.partial.items() if mesh.sizes[axis] > 1})

    def cotangent(self, mesh: Mesh, replicated: Sequence[str] = ()) -> "Layout":
        """The layout of the tensor's gradient.

        S stays S. P becomes B: each summand has the whole gradient. B becomes P where the ranks of the axis then
        compute different things with the tensor, and stays B where they compute the same. Confusing the two makes
        gradients too large by the size of the axis.

        The gradient is that of the tensor. A rank's own piece has this over the ranks of each axis whose mean it is.

        Args:
            replicated: the axes whose ranks all compute the same with the tensor.
        Raises:
            UsageError: a maximum has no gradient here.
        """
        return _cotangent(self, mesh, tuple(replicated))


@lru_cache(maxsize=1 << 12)
def _cotangent(layout: Layout, mesh: Mesh, replicated: tuple[str, ...]) -> Layout:
    """See `Layout.cotangent`; each step asks for the same ones."""
    mesh.require(replicated)
    if "max" in layout.partial.values():
        raise UsageError(f"a maximum has no backward (layout: {str(layout)!r}); reduce it outside of the gradient")
    broadcast = set(mesh.sizes) - set(layout.split) - set(layout.partial) - set(replicated)
    return Layout.of(layout.cuts, dict.fromkeys(broadcast, "sum"))


def are_commutative(partial: Mapping[str, str]) -> bool:
    """Whether the reductions may be done in any order: sums and means may, a maximum among them may not."""
    return "max" not in partial.values() or set(partial.values()) == {"max"}


def _trim_cuts(cuts: Sequence[Cut]) -> list[Cut]:
    """Without cuts into one part, and without the innermost parts that every rank keeps."""
    kept = [cut for cut in cuts if cut != 1]
    while kept and isinstance(kept[-1], int):
        kept.pop()
    return kept


def _size(cut: Cut, mesh: Mesh) -> int:
    return cut if isinstance(cut, int) else mesh.sizes[cut]
