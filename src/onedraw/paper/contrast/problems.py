"""The problems of the contrast, as a user would write them (docs/contrast.md).

Inside ABC: the paper's toy; a g-and-k model explored by a random walk; a Gaussian process whose set-up is paid once
per theta; a target with heavy tails. Outside: a linear Gaussian state-space model by particle filters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import onedraw as od
from onedraw.engines.arrays import Array
from onedraw.estimators.protocol import Estimator

Unit = Literal["simulations", "seconds"]


@dataclass(frozen=True)
class ContrastLine:
    """One line of the figure: which problem, at which numbers M, and what a point may cost."""

    key: str
    panel: str
    label: str
    counts: tuple[int, ...]
    """Pseudo-samples M, particles N or, for r-hit, hits r."""
    budget: int
    """Simulations of one point."""
    chains: int
    unit: Unit = "simulations"
    times: int = 0
    """Observations of a state-space model."""
    power: float = 0.5
    """Steps of a filter's chains fall with N to this power: chains with few particles must be long, and are cheap."""


DOUBLING = tuple(2**power for power in range(7))

LINES: tuple[ContrastLine, ...] = (
    ContrastLine("toy", "1", "ABC, the toy", DOUBLING, 8_000_000, 256),
    ContrastLine("g-and-k", "2", "ABC, g-and-k, random walk", DOUBLING, 1_500_000, 128),
    ContrastLine("process", "3", "ABC, Gaussian process with a set-up", (*DOUBLING, 256, 1024), 30_000, 16, "seconds"),
    ContrastLine("filter-100", "4", "particle MCMC, T = 100", DOUBLING, 80_000_000, 128, times=100),
    ContrastLine(
        "filter-400", "4", "particle MCMC, T = 400", (4, 16, 32, 64, 128, 256), 435_000_000, 32, times=400, power=0.75
    ),
    ContrastLine("tails", "5", "fixed M", DOUBLING[:5], 1_000_000, 128),
    ContrastLine("hits", "5", "r-hit", (1, 2), 1_000_000, 128),
)
QUICK = {"toy": 8, "g-and-k": 8, "process": 2, "filter-100": 1, "tails": 3, "hits": 3}
"""How many times less a quick contrast spends on a point; it leaves out the lines that are not here."""


def line_of(key: str) -> ContrastLine:
    """The line of that name.

    >>> line_of("toy").counts[:3]
    (1, 2, 4)
    """
    return next(line for line in LINES if line.key == key)


# --- 2: g-and-k ---------------------------------------------------------------------------------------------

OBSERVATIONS = 48
G_AND_K_EPS = 2.0
G_AND_K_SCALE = (0.2, 0.55, 0.18, 0.64)
"""Spread of the four summaries at the parameters that made the data: their units."""


def g_and_k_data(rng: np.random.Generator, A: Array, B: Array, g: Array, k: Array) -> Array:
    """Rows of observations A + B (1 + 0.8 tanh(g z/2)) (1 + z^2)^k z with standard normal z."""
    z = rng.standard_normal((A.size, OBSERVATIONS))
    skewed = 1 + 0.8 * np.tanh(0.5 * g[:, None] * z)
    return A[:, None] + B[:, None] * skewed * np.exp(k[:, None] * np.log1p(z * z)) * z


def octiles(y: Array) -> Array:
    """Place, width, skewness and weight of the tails of each row, from its octiles."""
    ordered = np.sort(y, axis=1)[:, [OBSERVATIONS * eighth // 8 for eighth in range(1, 8)]]
    o1, o2, o3, o4, o5, o6, o7 = ordered.T
    width = o6 - o2
    return np.stack([o4, width, (o6 + o2 - 2 * o4) / width, (o7 - o5 + o3 - o1) / width], axis=1)


def g_and_k() -> od.Model:
    """Data from A = 3, B = 1, g = 2, k = 0.5, compared by their octiles."""
    from scipy import stats

    truth = [np.array([value]) for value in (3.0, 1.0, 2.0, 0.5)]
    return od.Model(
        od.Prior(
            A=stats.norm(3, 0.5), B=stats.gamma(6, scale=1 / 6), g=stats.norm(2, 1), k=stats.gamma(4, scale=1 / 8)
        ),
        od.batched(g_and_k_data),
        observed=g_and_k_data(np.random.default_rng(6), *truth)[0],
        summary=od.batched(octiles),
        distance=od.scaled(scale=G_AND_K_SCALE),
    )


# --- 3: a Gaussian process ----------------------------------------------------------------------------------

PLACES = 100
PROCESS_EPS = 0.1


def prepare_process(scale: float) -> Array:
    """The Cholesky factor of the covariance at this length scale: what every theta pays once."""
    x = np.linspace(0, 1, PLACES)
    gap = np.abs(x[:, None] - x)
    return np.asarray(np.linalg.cholesky(np.exp(-gap / scale) + 1e-6 * np.eye(PLACES)))


def draw_process(rng: np.random.Generator, root: Array, m: int) -> Array:
    """m fields from one factor."""
    return np.asarray(rng.standard_normal((m, PLACES)) @ root.T)


def roughness(y: Array) -> Array:
    """Spread, and size of the steps between neighbours in tens, of each field."""
    return np.stack([y.std(axis=1), np.abs(y[:, 10:] - y[:, :-10]).mean(axis=1)], axis=1)


def process() -> od.Model:
    """One field with an unknown length scale, 0.3 in truth."""
    from scipy import stats

    return od.Model(
        od.Prior(scale=stats.uniform(0.05, 1.5)),
        od.staged(prepare_process, draw_process),
        observed=draw_process(np.random.default_rng(3), prepare_process(0.3), 1)[0],
        summary=od.batched(roughness),
    )


# --- 4: a state-space model ---------------------------------------------------------------------------------

NOISE = 2.0
MEMORY = 0.8


def series(times: int) -> Array:
    """Observations of mu + x_t with noise N(0, 2^2) and mu = 0; x_t = 0.8 x_(t-1) + 0.6 N(0, 1), x_0 ~ N(0, 1)."""
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal(), np.empty(times)
    for t in range(times):
        y[t] = x + NOISE * rng.standard_normal()
        x = MEMORY * x + math.sqrt(1 - MEMORY**2) * rng.standard_normal()
    return y


def _initial(rng: np.random.Generator, shape: tuple[int, int], mu: Array) -> Array:
    return rng.standard_normal(shape)


def _transition(rng: np.random.Generator, x: Array, mu: Array) -> Array:
    return np.asarray(MEMORY * x + math.sqrt(1 - MEMORY**2) * rng.standard_normal(x.shape))


def _log_observation(y: float, x: Array, mu: Array) -> Array:
    z = (y - mu - x) / NOISE
    return np.asarray(-0.5 * z * z - math.log(NOISE * math.sqrt(2 * math.pi)))


def state_space(times: int, particles: int) -> Estimator:
    """A particle filter for the first `times` observations; the parameter is the level mu."""
    from scipy import stats

    return od.particle_filter(
        od.Prior(mu=stats.norm(0, 3)),
        initial=_initial,
        transition=_transition,
        log_observation=_log_observation,
        data=series(times),
        particles=particles,
    )


def kalman(times: int, mu: Any) -> Array:
    """The exact log likelihood at each mu, by the Kalman filter.

    >>> bool(kalman(100, [0.0])[0] > kalman(100, [3.0])[0])
    True
    """
    mu = np.atleast_1d(np.asarray(mu, dtype=float))
    mean, variance = np.zeros_like(mu), 1.0
    log_likelihood = np.zeros_like(mu)
    for y in series(times):
        total = variance + NOISE**2
        log_likelihood += -0.5 * (y - mu - mean) ** 2 / total - 0.5 * math.log(2 * math.pi * total)
        gain = variance / total
        mean = MEMORY * (mean + gain * (y - mu - mean))
        variance = MEMORY**2 * (1 - gain) * variance + 1 - MEMORY**2
    return log_likelihood


def exact_posterior(times: int, points: int = 4000) -> tuple[Array, Array]:
    """Values of mu and their probabilities under the exact posterior, on an even grid."""
    mu = np.linspace(-4, 4, points)
    log_density = kalman(times, mu) - mu**2 / 18
    mass = np.exp(log_density - log_density.max())
    return mu, mass / mass.sum()


# --- 5: heavy tails -----------------------------------------------------------------------------------------

TAILS_EPS = 1.0
REACH = 30.0
WALK = 2.0


def _cauchy(rng: np.random.Generator, theta: Array) -> Array:
    return np.asarray(theta + rng.standard_cauchy(theta.size))


def tails() -> od.Model:
    """A place observed once with Cauchy noise, under a flat prior: the posterior falls like theta^-2.

    The chance of a hit falls as fast as the posterior itself, so that out there a chain with fixed M waits.
    """
    from scipy import stats

    return od.Model(od.Prior(theta=stats.uniform(-REACH, 2 * REACH)), od.batched(_cauchy), observed=0.0)
