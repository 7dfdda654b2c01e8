"""The losses of many trainings: each way to train beside the plain one that it should equal, seed by seed.

Trainings are compared seed by seed, because those of one seed have the same data; a difference is judged by the
differences between seeds. Arithmetic alone.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.swarm.language_model import Trained

LAST = 20
"""Steps that a curve is smoothed over."""
PROMISED = 0.01
"""Of the final loss, with 8 bits."""
HEAD = f"{'':32} final loss (sd)    beside plain (least to most)       curve, sd   alike  died"


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Args:
        plain: the name of the way that it should equal; its own, where it is one of those.
        swarm: by a swarm, or by a plain loop.
        churn: peers die and come.
        codec, sums: of what goes between stages, and of the sums of gradients.
        squeeze: what makes the stream between stages narrow.
        backwards: a plain loop adds the microbatches in the opposite order.
    """

    plain: str
    swarm: bool = True
    churn: bool = False
    codec: str = "none"
    sums: str = "none"
    squeeze: str = "none"
    backwards: bool = False


@dataclass(frozen=True)
class Row:
    """One way to train, over all seeds.

    Args:
        finals: the final validation loss by seed.
        plain: the same of the plain way.
        farthest: how far its mean curve is from the plain one's at most, in standard deviations of the seeds.
        alike: steps at the beginning with losses that equal the plain ones to the bit, in the seed with the fewest.
        died: peers killed, all seeds together.
    """

    name: str
    finals: tuple[float, ...]
    plain: tuple[float, ...]
    farthest: float
    alike: int
    died: int

    @property
    def beside(self) -> list[float]:
        """By seed, the final loss beside the plain one, as a share of it."""
        return [mine / other - 1 for mine, other in zip(self.finals, self.plain, strict=True)]

    @property
    def noise(self) -> float:
        """How far seeds of the plain way differ: the standard deviation, as a share of the loss."""
        return statistics.stdev(self.plain) / statistics.mean(self.plain)

    @property
    def within(self) -> bool:
        """The mean curve nowhere leaves the plain one by more than seeds differ, nor the loss the promise."""
        off = abs(statistics.mean(self.beside))
        return self.farthest <= 1 and off <= min(PROMISED, self.noise)

    def line(self) -> str:
        """The row for people."""
        mean, spread = statistics.mean(self.finals), statistics.stdev(self.finals)
        off = f"{statistics.mean(self.beside):+.3%} ({min(self.beside):+.3%} to {max(self.beside):+.3%})"
        return (
            f"{self.name:32} {mean:.4f} ({spread:.4f})  {off:34}  {self.farthest:8.4f}  {self.alike:6}  {self.died:4}"
        )


def smoothed(losses: Sequence[float]) -> list[float]:
    """Means of `LAST` steps."""
    return [statistics.fmean(losses[end - LAST : end]) for end in range(LAST, len(losses) + 1)]


def rows_of(arms: Mapping[str, Arm], trained: Mapping[tuple[str, int], Trained], seeds: Sequence[int]) -> list[Row]:
    """A row for each way."""
    rows = list[Row]()
    for name, arm in arms.items():
        mine = [trained[name, seed] for seed in seeds]
        plain = [trained[arm.plain, seed] for seed in seeds]
        curves = [[smoothed(each.losses) for each in some] for some in (mine, plain)]
        rows.append(
            Row(
                name,
                tuple(each.score for each in mine),
                tuple(each.score for each in plain),
                _farthest(*curves),
                min(_alike(a.losses, b.losses) for a, b in zip(mine, plain, strict=True)),
                sum(each.died for each in mine),
            )
        )
    return rows


def _farthest(mine: Sequence[Sequence[float]], plain: Sequence[Sequence[float]]) -> float:
    """Of the mean over seeds, in the seeds' standard deviation, the root of its mean square over the curve."""
    points = list(zip(*plain, strict=True))
    noise = math.sqrt(statistics.fmean(statistics.variance(point) for point in points))
    pairs = zip(zip(*mine, strict=True), points, strict=True)
    return max(abs(statistics.fmean(here) - statistics.fmean(there)) for here, there in pairs) / noise


def _alike(mine: Sequence[float], plain: Sequence[float]) -> int:
    differ = (step for step, (a, b) in enumerate(zip(mine, plain, strict=True)) if a != b)
    return next(differ, len(plain))
