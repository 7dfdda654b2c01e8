"""The theory behind Ravnest on the simplest problem, curvature 1 and unit noise: what delays and clusters do to noise.

Source: Ravnest (2024), equations 1 and 2, Theorem 1 and Corollary 1.1; the closed forms were worked out for this file.
"""

import math

import numpy as np
import pytest


def companion(step, delay):
    """The matrix that takes (w(t), ..., w(t - delay)) one update on: w(t+1) = w(t) - step w(t - delay)."""
    matrix = np.eye(delay + 1, k=-1)
    matrix[0, 0] += 1.0
    matrix[0, delay] -= step
    return matrix


@pytest.mark.parametrize("delay, limit", [*enumerate([2, 1, 0.618, 0.445, 0.347, 0.285])])
def test_a_gradient_of_a_delay_is_stable_below_the_closed_form(delay, limit):
    bound = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    assert bound == pytest.approx(limit, abs=5e-4)
    below, above = (max(abs(np.linalg.eigvals(companion(bound * part, delay)))) for part in (0.999, 1.001))
    assert below < 1 < above


def variance(step, delay):
    """Of w where it has settled, with unit noise in each gradient: the fixed point of its covariance."""
    matrix, size = companion(step, delay), delay + 1
    noise = np.zeros((size, size))
    noise[0, 0] = step**2
    settled = np.linalg.solve(np.eye(size**2) - np.kron(matrix, matrix), noise.ravel())
    return settled[0]


@pytest.mark.parametrize("step", [0.05, 0.3, 0.7])
def test_the_settled_variance_is_that_of_the_closed_forms(step):
    assert variance(step, 0) == pytest.approx(step / (2 - step))
    assert variance(step, 1) == pytest.approx(step * (1 + step) / ((1 - step) * (2 + step)))


@pytest.mark.parametrize("every, lag", [(1, 0), (4, 0), (8, 2), (5, 4)])
def test_rounds_of_any_period_and_lag_leave_the_mean_of_the_clusters_alone(every, lag):
    """w + (average - snapshot): the mean follows one cluster's rule with the mean noise, so its variance is 1/C."""
    clusters, delay, step, steps = 4, 2, 0.25, 60
    noise = np.random.default_rng(7).standard_normal((steps, clusters))
    weights, mean, waiting = [np.full(clusters, 3.0)], [3.0], {}
    for t in range(steps):
        late = max(0, t - delay)
        mean.append(mean[-1] - step * (mean[late] + noise[t].mean()))
        now = weights[-1] - step * (weights[late] + noise[t])
        if (t + 1) % every == 0:
            waiting[t + lag] = now.copy()
        if (snapshot := waiting.pop(t, None)) is not None:
            now = now + (snapshot.mean() - snapshot)
        weights.append(now)
    assert np.allclose(np.mean(weights, axis=1), mean, atol=1e-12)


def expected(clusters, rate=0.002, delays=(3, 2, 1, 0), each=64, start=3.0, goal=1.5):
    """Updates until the expected f = |w|^2 / 2 of the clusters' mean is at the goal, at step C rate; and its floor."""
    step = clusters * rate
    matrices = [companion(step, delay) for delay in delays]
    states = [np.full(delay + 1, start) for delay in delays]
    covariances = [np.zeros((delay + 1, delay + 1)) for delay in delays]
    for updates in range(5000):
        squares = sum(state[0] ** 2 + covariance[0, 0] for state, covariance in zip(states, covariances, strict=True))
        if each * squares / 2 <= goal:
            floor = each / 2 * sum(variance(step, delay) / clusters for delay in delays)
            return updates, floor
        states = [matrix @ state for matrix, state in zip(matrices, states, strict=True)]
        covariances = [matrix @ c @ matrix.T for matrix, c in zip(matrices, covariances, strict=True)]
        for covariance in covariances:
            covariance[0, 0] += step**2 / clusters
    raise AssertionError("the goal is below the floor")


@pytest.mark.parametrize("clusters, simulated", [(1, 1675), (2, 833), (4, 414), (8, 204)])
def test_c_clusters_at_c_times_the_step_reach_the_same_floor_in_a_cth_of_the_time(clusters, simulated):
    """Corollary 1.1; the simulated updates are of one run each, with rounds every 8 updates and a lag of 2."""
    updates, floor = expected(clusters)
    assert updates == pytest.approx(simulated, rel=0.03)
    assert updates == pytest.approx(expected(1)[0] / clusters, rel=0.03)
    assert floor == pytest.approx(0.128, rel=0.04)
