"""Weighted least squares with confidence: what a few measurements say of the numbers behind them. Pure numpy.

The rule: an estimate never goes without the interval in which it lies 19 times out of 20; costs are never negative.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_SPREAD = 0.01
"""Of a measurement: a smaller standard error is luck, and would outweigh all others."""


@dataclass(frozen=True)
class Sample:
    """One measurement repeated.

    Args:
        regressors: how often each of the unknown numbers goes into it.
        seconds: of each repetition.
    """

    regressors: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def middle(self) -> float:
        return statistics.median(self.seconds)

    @property
    def error(self) -> float:
        """Standard error of the middle, from the median distance to it (1.48 of these are a normal deviation)."""
        distance = 1.4826 * statistics.median(abs(second - self.middle) for second in self.seconds)
        return max(distance / math.sqrt(len(self.seconds)), LEAST_SPREAD * self.middle, 1e-9)


@dataclass(frozen=True)
class Fit:
    """What was found.

    Args:
        values: the unknown numbers, none below 0.
        margins: half the width of each one's 95 % interval; infinite where there are no more samples than unknowns.
    """

    values: tuple[float, ...]
    margins: tuple[float, ...]

    def plain(self, *names: str) -> dict[str, list[float | None]]:
        """Value and margin by name, as JSON can hold them."""
        finite = [margin if math.isfinite(margin) else None for margin in self.margins]
        return {name: [value, margin] for name, value, margin in zip(names, self.values, finite, strict=True)}


def fit(samples: Sequence[Sample]) -> Fit:
    """The numbers that make the weighted squares of the differences least, each sample weighing 1 / its error².

    What would be negative is 0, and the others are found again without it.

    Raises:
        ValueError: no sample, or samples of different numbers of regressors.
    """
    sizes = {len(sample.regressors) for sample in samples}
    if len(sizes) != 1:
        raise ValueError(f"samples have different regressors (counts: {sorted(sizes)}); give each all of them")
    matrix = np.array([sample.regressors for sample in samples], float)
    weights = np.array([1.0 / sample.error for sample in samples])
    seen = np.array([sample.middle for sample in samples])
    used = [column for column in range(matrix.shape[1]) if matrix[:, column].any()]
    values = np.zeros(matrix.shape[1])
    while used:
        found = _solve(matrix[:, used] * weights[:, None], seen * weights)
        if found.min() >= 0.0:
            values[used] = found
            break
        used.pop(int(found.argmin()))
    margins = _margins(matrix[:, used] * weights[:, None], (seen - matrix @ values) * weights)
    return Fit(tuple(map(float, values)), _spread(margins, used, matrix.shape[1]))


def _solve(matrix: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Least squares, each column scaled to one length, as a byte's cost is a millionth of a message's."""
    lengths = np.linalg.norm(matrix, axis=0)
    return np.linalg.lstsq(matrix / lengths, seen, rcond=None)[0] / lengths


def _margins(matrix: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Half widths: the t quantile times the root of the covariance's diagonal.

    The covariance is that of the samples' own errors, or what the residuals show, whichever is more.
    """
    freedom = matrix.shape[0] - matrix.shape[1]
    if freedom < 1 or not matrix.shape[1]:
        return np.full(matrix.shape[1], math.inf)
    lengths = np.linalg.norm(matrix, axis=0)
    covariance = np.linalg.pinv((matrix / lengths).T @ (matrix / lengths))
    scatter = max(1.0, float(residuals @ residuals) / freedom)
    return student(freedom) * np.sqrt(scatter * np.diag(covariance)) / lengths


def student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t, within 1 % from 3 degrees of freedom on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5; below 3 its own closed forms.
    """
    if freedom == 1:
        return math.tan(math.pi * CONFIDENCE / 2)
    if freedom == 2:
        return CONFIDENCE * math.sqrt(2 / (1 - CONFIDENCE**2))
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _spread(margins: np.ndarray, used: list[int], count: int) -> tuple[float, ...]:
    """The margins of all numbers; one that was put to 0 has none."""
    found = dict(zip(used, margins, strict=True))
    return tuple(float(found.get(number, 0.0)) for number in range(count))
