"""Weighted least squares with 95 % confidence intervals, for costs that cannot be negative. Pure numpy."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
MIN_SPREAD = 0.01
"""The least relative standard error of a measurement. A smaller one is chance, and would outweigh all other samples."""


@dataclass(frozen=True)
class Sample:
    """One measurement, repeated.

    Args:
        regressors: the factor of each unknown number in the measured time.
        seconds: the time of each repetition.
    """

    regressors: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def error(self) -> float:
        """Standard error of the median, from the median distance to it (times 1.48 it is a standard deviation)."""
        deviation = 1.4826 * statistics.median(abs(second - self.median) for second in self.seconds)
        return max(deviation / math.sqrt(len(self.seconds)), MIN_SPREAD * self.median, 1e-9)


@dataclass(frozen=True)
class Fit:
    """The result of a fit.

    Args:
        values: the estimates, each at least 0.
        margins: half the widths of their 95 % intervals; infinite if there are not more samples than unknowns.
    """

    values: tuple[float, ...]
    margins: tuple[float, ...]

    def to_dict(self, *names: str) -> dict[str, list[float | None]]:
        """[value, margin] by name, as JSON; an infinite margin becomes None."""
        finite = [margin if math.isfinite(margin) else None for margin in self.margins]
        return {name: [value, margin] for name, value, margin in zip(names, self.values, finite, strict=True)}


def fit(samples: Sequence[Sample], weighted: bool = True) -> Fit:
    """The numbers that minimise the weighted squares of the differences; the weight of a sample is 1 / its error².

    If a number would be negative, it is set to 0 and the others are fitted without it. Its margin is 0.

    Args:
        weighted: whether each sample has the weight of its error; else all have that of the errors' mean square.
    Raises:
        ValueError: no samples, or samples with different numbers of regressors.
    """
    sizes = {len(sample.regressors) for sample in samples}
    if len(sizes) != 1:
        raise ValueError(f"samples have different regressors (counts: {sorted(sizes)}); give each all of them")
    matrix = np.array([sample.regressors for sample in samples], float)
    medians = np.array([sample.median for sample in samples])
    errors = np.array([sample.error for sample in samples])
    weights = 1.0 / (errors if weighted else np.full(len(errors), math.sqrt(np.mean(errors**2))))
    columns = [column for column in range(matrix.shape[1]) if matrix[:, column].any()]
    values = np.zeros(matrix.shape[1])
    while columns:
        solution = _solve(matrix[:, columns] * weights[:, None], medians * weights)
        if solution.min() >= 0.0:
            values[columns] = solution
            break
        columns.pop(int(solution.argmin()))
    margins = np.zeros(matrix.shape[1])
    margins[columns] = _margins(matrix[:, columns] * weights[:, None], (medians - matrix @ values) * weights)
    return Fit(tuple(map(float, values)), tuple(map(float, margins)))


def _solve(matrix: np.ndarray, right_side: np.ndarray) -> np.ndarray:
    """Least squares with columns scaled to length 1, because the cost of a byte is a millionth of a message's."""
    lengths = np.linalg.norm(matrix, axis=0)
    return np.linalg.lstsq(matrix / lengths, right_side, rcond=None)[0] / lengths


def _margins(matrix: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Half widths: the t quantile times the root of the covariance's diagonal.

    The covariance is that of the samples' errors or that of the residuals, whichever is larger.
    """
    freedom = matrix.shape[0] - matrix.shape[1]
    if freedom < 1 or not matrix.shape[1]:
        return np.full(matrix.shape[1], math.inf)
    lengths = np.linalg.norm(matrix, axis=0)
    covariance = np.linalg.pinv((matrix / lengths).T @ (matrix / lengths))
    scatter = max(1.0, float(residuals @ residuals) / freedom)
    return student_quantile(freedom) * np.sqrt(scatter * np.diag(covariance)) / lengths


def student_quantile(freedom: int) -> float:
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
