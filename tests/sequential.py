"""Problems with known answers for samplers that choose their own tolerance, and how far runs are from them.

The answer depends on the tolerance that a run ends at, so each problem gives its posterior as a function of the kernel:
weights on a grid of parameters, by quadrature or enumeration, without onedraw.
"""

import os
import signal
import time
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import integrate, stats

import onedraw as od
from onedraw.results.monte_carlo_error import Draws, monte_carlo
from tests.reference import hit, toy
from tests.stored_run import in_child

GRID = np.linspace(-6.0, 6.0, 4_801)


def normalised(density):
    return density / density.sum()


class Toy:
    """theta ~ N(0, 1), y ~ N(theta, 1), y_obs = 2."""

    model = toy()
    grid: ClassVar[dict[str, Any]] = {"theta": GRID}

    @staticmethod
    def weights(kernel):
        return normalised(stats.norm.pdf(GRID) * hit(GRID, kernel))


@od.batched
def simulate_square(rng, theta):
    return theta**2 + 0.3 * rng.standard_normal(theta.size)


class TwoPieces:
    """y ~ N(theta², 0.3²), y_obs = 2: a piece on each side of zero, of different size by the prior N(0.4, 1)."""

    model = od.Model(od.Prior(theta=stats.norm(0.4, 1.0)), simulate_square, observed=2.0)
    grid: ClassVar[dict[str, Any]] = {"theta": GRID}

    @staticmethod
    def weights(kernel):
        if kernel.name == "uniform":
            inside = [stats.norm.cdf((2.0 + side * kernel.eps - GRID**2) / 0.3) for side in (1, -1)]
            return normalised(stats.norm.pdf(GRID, 0.4) * (inside[0] - inside[1]))
        return normalised(stats.norm.pdf(GRID, 0.4) * stats.norm.pdf(2.0, GRID**2, np.hypot(0.3, kernel.eps)))


@od.batched
def simulate_sum(rng, a, b):
    return a + b + 0.5 * rng.standard_normal(a.size)


class Ordered:
    """a, b uniform on [0, 3] with a < b, y ~ N(a + b, 0.5²), y_obs = 1.5: a constrained prior in two dimensions."""

    prior = od.Prior(a=stats.uniform(0, 3), b=stats.uniform(0, 3), where=lambda a, b: a < b)
    model = od.Model(prior, simulate_sum, observed=1.5)
    _axis = (np.arange(300) + 0.5) / 100
    _a, _b = (part.ravel() for part in np.meshgrid(_axis, _axis))
    grid: ClassVar[dict[str, Any]] = {"a": _a, "b": _b}

    @classmethod
    def weights(cls, kernel):
        reach = [stats.norm.cdf((1.5 + side * kernel.eps - cls._a - cls._b) / 0.5) for side in (1, -1)]
        # Half of the cells on the diagonal is inside.
        return normalised((reach[0] - reach[1]) * np.where(cls._a < cls._b, 1.0, np.where(cls._a == cls._b, 0.5, 0.0)))


@od.batched
def simulate_counted(rng, k, mu):
    return np.stack([k + rng.standard_normal(k.size), mu + k + rng.standard_normal(k.size)], axis=1)


class Counted:
    """k ~ Poisson(2), mu ~ N(0, 1), y = (k, mu + k) + noise: a whole number beside a real one, by enumeration."""

    model = od.Model(od.Prior(k=stats.poisson(2), mu=stats.norm(0, 1)), simulate_counted, observed=[3.0, 4.0],
                     distance=od.batched(lambda y, observed: np.abs(y - observed).max(axis=1)))  # fmt: skip
    _k, _mu = (part.ravel() for part in np.meshgrid(np.arange(16.0), np.linspace(-5, 5, 501)))
    grid: ClassVar[dict[str, Any]] = {"k": _k, "mu": _mu}

    @classmethod
    def weights(cls, kernel):
        eps = kernel.eps
        first = stats.norm.cdf(3 + eps - cls._k) - stats.norm.cdf(3 - eps - cls._k)
        second = stats.norm.cdf(4 + eps - cls._k - cls._mu) - stats.norm.cdf(4 - eps - cls._k - cls._mu)
        return normalised(stats.poisson.pmf(cls._k, 2) * stats.norm.pdf(cls._mu) * first * second)


@od.batched
def simulate_signal_and_noise(rng, theta):
    return np.stack([theta + rng.standard_normal(theta.size), rng.standard_normal(theta.size)], axis=1)


class SignalAndNoise:
    """One summary follows theta ~ N(0, 20²), the other is noise: by the prior's spread the first hardly counts."""

    axis = np.linspace(-12.0, 18.0, 2_001)

    def model(self, **more):
        return od.Model(
            od.Prior(theta=stats.norm(0, 20)), simulate_signal_and_noise, [3.0, 0.0],
            distance=od.scaled(pilot=200, **more),
        )  # fmt: skip

    def exact(self, scale, eps):
        """Mean and sd of pi_K for that scale, integrating over both summaries."""
        apart = np.linspace(-eps * scale[0], eps * scale[0], 401)
        reach = scale[1] * np.sqrt(np.maximum(eps**2 - (apart / scale[0]) ** 2, 0.0))
        other = 2 * stats.norm.cdf(reach) - 1
        density = stats.norm.pdf(self.axis, 0, 20) * integrate.simpson(
            stats.norm.pdf(apart[None, :] + 3.0 - self.axis[:, None]) * other, x=apart, axis=1
        )
        density /= density.sum()
        mean = density @ self.axis
        return mean, np.sqrt(density @ (self.axis - mean) ** 2)


def errors(sampler, problem, functions, seeds, **more):
    """(seeds, functions): how far each run's means are from the exact ones at its own tolerance, in standard errors."""
    found = []
    for seed in seeds:
        post = sampler(problem.model, seed=seed, **more)
        weights = problem.weights(post.kernel)
        row = []
        for function in functions:
            values = np.asarray(function(**post.draws), dtype=float)
            error = monte_carlo(values, Draws(post.weights, True, post.groups)).mcse
            exact = float((weights * function(**problem.grid)).sum())
            row.append(((post.weights * values).sum() - exact) / error)
        found.append(row)
    return np.array(found)


def assert_right(z, spread=1.5, bias=0.5):
    """Over n runs the mean error is within 4 of its own errors (and `bias`, of order 1/particles), none is wild.

    Errors that are stated half as large as they are would double the spread.
    """
    n = len(z)
    assert (np.abs(z.mean(axis=0)) < 4 / np.sqrt(n) + bias).all(), z.mean(axis=0)
    assert (np.sqrt((z**2).mean(axis=0)) < spread).all(), np.sqrt((z**2).mean(axis=0))


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork and no SIGKILL")


def assert_shown(name, path):
    """The file of a run that goes on, and of one that was killed then, shows draws of its own tolerance."""
    child, read, until = in_child(name, path, pause=0.004), None, time.monotonic() + 60
    while (read is None or read.shape[1] == 0) and time.monotonic() < until:
        assert child.poll() is None, "the run ended before it was looked at"
        time.sleep(0.02)
        try:
            read = od.load(path)
        except od.StoreError:
            continue
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    for post in (read, od.load(path)):
        assert post.status.reason == "unfinished" and post.shape[1] > 0
        assert post.weights.sum() == pytest.approx(1.0) and len(post.path) > 0
        assert (post.kernel.log_average(np.atleast_3d(post.distances)) > -np.inf).all()
        assert post.kernel.eps == post.settings["eps"] and post.settings["distance"]["name"] == "scaled"
    assert od.load(path).cost.simulations >= read.cost.simulations > 80
