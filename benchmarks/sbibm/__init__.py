"""Four tasks of the public benchmark sbibm, with reference posteriors and published scores, and three more as a check.

From sbibm 1.1.0 (Lueckmann, Boelts, Greenberg, Gonçalves and Macke, Benchmarking Simulation-Based Inference, AISTATS
2021), MIT licence: data/LICENSE. Files hold observations 1 to 10, the parameters that made them, and 10,000 reference
draws each; those of gaussian_linear follow from its closed form. `published_c2st.csv` has the published scores of
rejection, sequential ABC and neural posterior estimation. The simulators are written here from the paper's statements.

The three further tasks have observations and reference draws of our own making, from the exact likelihood.
"""

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import onedraw as od

DATA = Path(__file__).resolve().parent / "data"
TASKS = ("gaussian_linear", "two_moons", "slcp", "sir")
FURTHER = ("gaussian_linear_uniform", "gaussian_mixture", "bernoulli_glm")


@dataclass(frozen=True)
class Task:
    """One task: its prior, its simulator, and how to draw from the posterior where that is known."""

    name: str
    prior: od.Prior
    simulate: Any

    def model(self, observation: int) -> od.Model:
        """The model with observation 1, 2, ..."""
        return od.Model(self.prior, od.batched(self.simulate), self.observed(observation))

    def observed(self, observation: int) -> np.ndarray:
        """The data of an observation."""
        if self.name in TASKS:
            return _file(self.name)["observation"][observation - 1].astype(float)
        rng = np.random.default_rng([observation, len(self.name)])
        theta = self.prior.sample(rng, 1)
        return self.simulate(rng, **self.prior.columns(theta))[0]

    def reference(self, observation: int) -> np.ndarray:
        """10,000 draws from the posterior."""
        if self.name in TASKS and self.name != "gaussian_linear":
            return _file(self.name)["reference_posterior"][observation - 1].astype(float)
        return EXACT[self.name](self.observed(observation), np.random.default_rng(observation))


@lru_cache
def _file(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{name}.npz") as archive:
        return {key: archive[key] for key in archive.files}


def published(task: str, budget: int, observations: list[int]) -> dict[str, float]:
    """Mean published score of each algorithm over these observations; NaN where there is none."""
    scores: dict[str, list[float]] = {}
    with (DATA / "published_c2st.csv").open() as file:
        for row in csv.DictReader(file):
            there = row["task"] == task and int(row["num_simulations"]) == budget
            if there and int(row["num_observation"]) in observations:
                scores.setdefault(row["algorithm"], []).append(float(row["c2st"]))
    return {
        name: float(np.mean(scores[name])) if name in scores else float("nan") for name in ("REJ-ABC", "SMC-ABC", "NPE")
    }


def task(name: str) -> Task:
    """The task of this name."""
    return {
        "gaussian_linear": lambda: Task(
            name, od.Prior(**{f"t{i}": stats.norm(0, 0.1**0.5) for i in range(10)}), _linear
        ),
        "two_moons": lambda: Task(name, _box(2, 1.0), _two_moons),
        "slcp": lambda: Task(name, _box(5, 3.0), _slcp),
        "sir": lambda: Task(name, od.Prior(t0=stats.lognorm(0.5, scale=0.4), t1=stats.lognorm(0.2, scale=0.125)), _sir),
        "gaussian_linear_uniform": lambda: Task(name, _box(10, 1.0), _linear),
        "gaussian_mixture": lambda: Task(name, _box(2, 10.0), _mixture),
        "bernoulli_glm": lambda: Task(
            name, od.Prior.joint([f"t{i}" for i in range(10)], _glm_prior, _glm_log_prior), _glm
        ),
    }[name]()


def _box(dim: int, bound: float) -> od.Prior:
    return od.Prior(**{f"t{i}": stats.uniform(-bound, 2 * bound) for i in range(dim)})


def _columns(theta: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack(list(theta.values()))


def _linear(rng, **theta):
    means = _columns(theta)
    return means + np.sqrt(0.1) * rng.standard_normal(means.shape)


def _two_moons(rng, t0, t1):
    angle = rng.uniform(-np.pi / 2, np.pi / 2, len(t0))
    radius = 0.1 + 0.01 * rng.standard_normal(len(t0))
    shift = np.column_stack([-np.abs(t0 + t1), t1 - t0]) / np.sqrt(2)
    return np.column_stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)]) + shift


def _slcp(rng, t0, t1, t2, t3, t4):
    first, second, correlation = t2**2, t3**2, np.tanh(t4)
    root = np.sqrt(first**2 + 1e-6)
    lower = correlation * first * second / root
    rest = np.sqrt(second**2 + 1e-6 - lower**2)
    noise = rng.standard_normal((len(t0), 4, 2))
    x = t0[:, None] + root[:, None] * noise[:, :, 0]
    y = t1[:, None] + lower[:, None] * noise[:, :, 0] + rest[:, None] * noise[:, :, 1]
    return np.stack([x, y], axis=2).reshape(len(t0), 8)


def _sir(rng, t0, t1):
    return rng.binomial(1000, _infected(t0, t1)).astype(float)


def _infected(beta, gamma, days=17.0, times=10, steps=136):
    """Share of infected people at days 0, 17, ..., by classical Runge-Kutta steps."""
    healthy, ill = np.full(len(beta), 1 - 1e-6), np.full(len(beta), 1e-6)

    def rate(s, i):
        new = beta * s * i
        return -new, new - gamma * i

    step, out = days / steps, [ill]
    for _ in range(times - 1):
        for _ in range(steps):
            s1, i1 = rate(healthy, ill)
            s2, i2 = rate(healthy + step / 2 * s1, ill + step / 2 * i1)
            s3, i3 = rate(healthy + step / 2 * s2, ill + step / 2 * i2)
            s4, i4 = rate(healthy + step * s3, ill + step * i3)
            healthy = healthy + step / 6 * (s1 + 2 * (s2 + s3) + s4)
            ill = ill + step / 6 * (i1 + 2 * (i2 + i3) + i4)
        out.append(ill)
    return np.clip(np.column_stack(out), 0.0, 1.0)


def _mixture(rng, t0, t1):
    """Two normals with one mean and standard deviations 1 and 0.1."""
    scale = np.where(rng.random(len(t0)) < 0.5, 1.0, 0.1)
    return np.column_stack([t0, t1]) + scale[:, None] * rng.standard_normal((len(t0), 2))


GLM_INPUT = np.random.default_rng(7).standard_normal((100, 9))
"""White noise that drives the spikes: nine independent inputs. The published task has nine lags of one input."""
GLM_DESIGN = np.column_stack([np.ones(100), GLM_INPUT])
_SECOND = np.zeros((9, 9))
for _row in range(9):
    for _back, _value in ((0, 1.0 + np.sqrt(_row / 9.0)), (1, -2.0), (2, 1.0)):
        if _row - _back >= 0:
            _SECOND[_row, _row - _back] = _value
GLM_COVARIANCE = np.zeros((10, 10))
GLM_COVARIANCE[0, 0] = 2.0
GLM_COVARIANCE[1:, 1:] = np.linalg.inv(_SECOND.T @ _SECOND)
_GLM_ROOT = np.linalg.cholesky(GLM_COVARIANCE)


def _glm_prior(rng, n):
    return rng.standard_normal((n, 10)) @ _GLM_ROOT.T


def _glm_log_prior(theta):
    z = np.linalg.solve(_GLM_ROOT, np.asarray(theta).T)
    return -0.5 * np.sum(z**2, axis=0) - np.log(np.diag(_GLM_ROOT)).sum() - 5 * np.log(2 * np.pi)


def _glm(rng, **theta):
    """A hundred spikes from a logistic regression, by their sufficient statistics."""
    chance = 1 / (1 + np.exp(-_columns(theta) @ GLM_DESIGN.T))
    return (rng.random(chance.shape) < chance).astype(float) @ GLM_DESIGN


def _exact_linear(observed, rng):
    return observed / 2 + np.sqrt(0.05) * rng.standard_normal((10_000, 10))


def _exact_uniform(observed, rng):
    return stats.truncnorm.rvs(
        (-1 - observed) / 0.1**0.5, (1 - observed) / 0.1**0.5, observed, 0.1**0.5, size=(10_000, 10), random_state=rng
    )


def _exact_mixture(observed, rng):
    kept = np.empty((0, 2))
    while len(kept) < 10_000:
        scale = np.where(rng.random(20_000) < 0.5, 1.0, 0.1)
        theta = observed + scale[:, None] * rng.standard_normal((20_000, 2))
        kept = np.concatenate([kept, theta[(np.abs(theta) <= 10).all(axis=1)]])
    return kept[:10_000]


def _exact_glm(observed, rng):
    """Random-walk Metropolis with 400 chains from the mode, scaled by the curvature there."""
    from scipy.optimize import minimize

    def log_posterior(theta):
        eta = theta @ GLM_DESIGN.T
        return theta @ observed - np.logaddexp(0.0, eta).sum(axis=1) + _glm_log_prior(theta)

    mode = minimize(lambda theta: -log_posterior(theta[None])[0], np.zeros(10)).x
    chance = 1 / (1 + np.exp(-GLM_DESIGN @ mode))
    hessian = (GLM_DESIGN * (chance * (1 - chance))[:, None]).T @ GLM_DESIGN + np.linalg.inv(GLM_COVARIANCE)
    root = np.linalg.cholesky(np.linalg.inv(hessian))
    theta = mode + rng.standard_normal((400, 10)) @ root.T
    value, kept = log_posterior(theta), []
    for step in range(3000):
        proposed = theta + 2.38 / np.sqrt(10) * rng.standard_normal((400, 10)) @ root.T
        there = log_posterior(proposed)
        accept = np.log(rng.random(400)) < there - value
        theta, value = np.where(accept[:, None], proposed, theta), np.where(accept, there, value)
        if step >= 500 and step % 100 == 99:
            kept.append(theta)
    return rng.permutation(np.concatenate(kept))[:10_000]


EXACT = {
    "gaussian_linear": _exact_linear,
    "gaussian_linear_uniform": _exact_uniform,
    "gaussian_mixture": _exact_mixture,
    "bernoulli_glm": _exact_glm,
}
