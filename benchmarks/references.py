"""Whether the reference posteriors that this project computes are right: a second computation of each.

python -m benchmarks references. For the tasks whose reference draws are made here (benchmarks/sbibm), draws by another
method are compared with them: rejection from the prior for gaussian_linear_uniform, a grid for gaussian_mixture, and
importance sampling for bernoulli_glm, with likelihoods written a second time. Differences of means and standard
deviations are in standard errors of two samples of independent draws; a marginal's p-value is Kolmogorov and Smirnov's.
"""

import argparse
import sys

import numpy as np
from scipy import special, stats
from scipy.optimize import minimize

from benchmarks.sbibm import FURTHER, GLM_COVARIANCE, GLM_DESIGN, task
from benchmarks.timing import report

DRAWS = 10_000
LARGEST, LEAST_P = 4.5, 0.001
"""Largest difference in standard errors, and least p-value times the number of marginals, that are accepted."""


def by_rejection(observed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """gaussian_linear_uniform: each coordinate from the uniform prior, accepted by its likelihood over the largest."""
    columns = []
    for value in observed:
        theta = rng.uniform(-1, 1, 400_000)
        log_likelihood = stats.norm.logpdf(value, theta, np.sqrt(0.1))
        accepted = theta[np.log(rng.random(theta.size)) < log_likelihood - log_likelihood.max()]
        columns.append(accepted[:DRAWS])
    return np.column_stack([column[: min(map(len, columns))] for column in columns])


def by_grid(observed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """gaussian_mixture: cells of a grid over the posterior, jittered; cells are a tenth of the narrow scale."""
    cells = -10 + 0.01 * np.arange(2000)
    axes = [cells[np.abs(cells - value) < 6] for value in observed]
    first, second = (axis[:, None] if k == 0 else axis[None, :] for k, axis in enumerate(axes))
    square = (observed[0] - first - 0.005) ** 2 + (observed[1] - second - 0.005) ** 2
    density = 0.5 * np.exp(-square / 2) + 50 * np.exp(-50 * square)
    picked = np.searchsorted(np.cumsum(density), density.sum() * rng.random(DRAWS))
    rows, columns = np.unravel_index(np.minimum(picked, density.size - 1), density.shape)
    return np.column_stack([axes[0][rows], axes[1][columns]]) + 0.01 * rng.random((DRAWS, 2))


def by_importance(observed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """bernoulli_glm: Student's t around the mode, weighted by prior times likelihood, resampled."""
    prior = stats.multivariate_normal(np.zeros(10), GLM_COVARIANCE)

    def log_density(theta):
        no_spike = special.log_expit(-theta @ GLM_DESIGN.T)
        return prior.logpdf(theta) + theta @ observed + no_spike.sum(axis=-1)

    found = minimize(lambda theta: -log_density(theta), np.zeros(10), method="BFGS")
    proposal = stats.multivariate_t(found.x, found.hess_inv, df=8, seed=rng)
    for _ in range(3):
        theta = proposal.rvs(100_000)
        log_weight = log_density(theta) - proposal.logpdf(theta)
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        mean = weight @ theta
        covariance = (theta - mean).T @ ((theta - mean) * weight[:, None])
        proposal = stats.multivariate_t(mean, covariance, df=8, seed=rng)
    return theta[rng.choice(len(theta), DRAWS, p=weight)]


SECOND = {
    "gaussian_linear_uniform": by_rejection,
    "gaussian_mixture": by_grid,
    "bernoulli_glm": by_importance,
}


def differences(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Largest difference of means and of standard deviations in standard errors; least p-value of the marginals."""
    first, second = one.std(axis=0), other.std(axis=0)
    mean = (one.mean(axis=0) - other.mean(axis=0)) / np.sqrt(first**2 / len(one) + second**2 / len(other))
    errors = [((sample - sample.mean(axis=0)) ** 2).std(axis=0) / (2 * sample.var(axis=0)) / np.sqrt(len(sample))
              for sample in (one, other)]  # fmt: skip
    spread = np.log(first / second) / np.hypot(*errors)
    least = min(stats.ks_2samp(*pair).pvalue for pair in zip(one.T, other.T, strict=True))
    return float(np.abs(mean).max()), float(np.abs(spread).max()), float(least) * one.shape[1]


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.references", description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs="+", default=list(FURTHER), choices=FURTHER)
    parser.add_argument("--observations", nargs="+", type=int, default=list(range(1, 11)))
    given = parser.parse_args([] if arguments is None else arguments)
    rows: list[tuple[str, str, str, bool | None]] = []
    for name in given.task:
        this, found = task(name), []
        for observation in given.observations:
            second = SECOND[name](this.observed(observation), np.random.default_rng([7, observation]))
            found.append(differences(this.reference(observation), second))
        mean, spread, p = np.array(found).T
        p = min(1.0, p.min() * len(found))
        rows.append((f"{name}: largest difference of means", f"{mean.max():.1f} errors", f"{LARGEST}",
                     bool(mean.max() < LARGEST)))  # fmt: skip
        rows.append((f"{name}: of standard deviations", f"{spread.max():.1f} errors", f"{LARGEST}",
                     bool(spread.max() < LARGEST)))  # fmt: skip
        rows.append((f"{name}: least p-value of the marginals", f"{p:.2g}", f"at least {LEAST_P}", bool(p >= LEAST_P)))
    return report(f"Reference posteriors computed twice, {len(given.observations)} observations, {DRAWS:,} draws", rows)


if __name__ == "__main__":
    raise SystemExit(0 if main(sys.argv[1:]) else 1)
