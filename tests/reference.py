"""Problems with known answers, and the exact answers, computed without onedraw.

The toy is theta ~ N(0, 1), y | theta ~ N(theta, 1), one observation y_obs. The second problem is a Beta-Binomial
count matched exactly, whose posterior is a Beta distribution.
"""

import numpy as np
from scipy import integrate, stats

import onedraw as od

Y_OBS = 2.0


@od.batched
def simulate_batch(rng, theta):
    return theta + rng.standard_normal(theta.size)


def simulate_one(rng, theta):
    return theta + rng.standard_normal()


def prepare(theta):
    return theta


def draw(rng, theta, m):
    return theta + rng.standard_normal(m)


SIMULATORS = {
    "batched": simulate_batch,
    "plain": simulate_one,
    "staged": od.staged(prepare, draw),
    "compiled": od.compiled(simulate_one),
}


def toy(kind="batched", y_obs=Y_OBS, **more):
    return od.Model(od.Prior(theta=stats.norm(0, 1)), SIMULATORS[kind], observed=y_obs, **more)


def hit(theta, kernel, y_obs=Y_OBS):
    """E[K(|y - y_obs|) | theta] for the toy, by closed form or quadrature."""
    eps = kernel.eps
    if kernel.name == "uniform":
        return stats.norm.cdf(y_obs + eps - theta) - stats.norm.cdf(y_obs - eps - theta)
    if kernel.name == "gaussian":
        return eps * np.sqrt(2 * np.pi) * stats.norm.pdf(y_obs, theta, np.hypot(1.0, eps))
    distance = np.linspace(-6.0, 6.0, 4_801)
    weight = np.exp(kernel.log_weight(np.abs(distance)))
    density = stats.norm.pdf(distance[None, :] + y_obs, np.atleast_1d(theta)[:, None])
    return integrate.simpson(weight * density, x=distance, axis=1)


class Exact:
    """pi_K of the toy on a fine grid: cdf, moments, and the acceptance probability of Algorithm 1."""

    def __init__(self, kernel, y_obs=Y_OBS):
        self.grid = np.linspace(-8.0, 10.0, 1_801)
        density = stats.norm.pdf(self.grid) * hit(self.grid, kernel, y_obs)
        self.acceptance = integrate.simpson(density, x=self.grid)
        self.density = density / self.acceptance
        self.mean = integrate.simpson(self.grid * self.density, x=self.grid)
        self.sd = np.sqrt(integrate.simpson((self.grid - self.mean) ** 2 * self.density, x=self.grid))
        self._cdf = integrate.cumulative_simpson(self.density, x=self.grid, initial=0.0)

    def cdf(self, theta):
        return np.interp(theta, self.grid, self._cdf)


TRIALS, COUNT = 12, 4


@od.batched
def simulate_count(rng, p):
    return rng.binomial(TRIALS, p)


def beta_binomial():
    return od.Model(od.Prior(p=stats.beta(1.5, 2.0)), simulate_count, observed=COUNT)


def beta_posterior():
    return stats.beta(1.5 + COUNT, 2.0 + TRIALS - COUNT)


def beta_evidence():
    return stats.betabinom(TRIALS, 1.5, 2.0).pmf(COUNT)
