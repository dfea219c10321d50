"""The probability that a simulation succeeds, as a function of the parameters: a penalised logistic regression."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve

from onedraw.engines.arrays import Array

ITERATIONS = 25
RIDGE = 1.0


class Success(NamedTuple):
    """Coefficients (p,) of the log odds of success."""

    coefficients: Array

    def log_probability(self, columns: Array) -> Array:
        """Log of the probability at features (n, q) whose first p columns count."""
        odds = columns[:, : len(self.coefficients)] @ self.coefficients
        return -np.logaddexp(0.0, -odds)


def fit_success(columns: Array, succeeded: Array) -> Success | None:
    """From features (n, p) and whether each simulation succeeded (n,); None if all did.

    >>> x = np.column_stack([np.ones(200), np.linspace(-2, 2, 200)])
    >>> found = fit_success(x, x[:, 1] > 0)
    >>> np.exp(found.log_probability(np.array([[1.0, -1.0], [1.0, 0.0], [1.0, 1.0]]))).round(1).tolist()
    [0.0, 0.5, 1.0]
    """
    if succeeded.all():
        return None
    penalty = np.full(columns.shape[1], RIDGE)
    penalty[0] = 1e-3
    found = np.zeros(columns.shape[1])
    for _ in range(ITERATIONS):
        probability = 1.0 / (1.0 + np.exp(-np.clip(columns @ found, -30.0, 30.0)))
        gradient = columns.T @ (succeeded - probability) - penalty * found
        information = (columns * (probability * (1.0 - probability))[:, None]).T @ columns + np.diag(penalty)
        step = solve(information, gradient, assume_a="pos")
        found = found + step * min(1.0, 3.0 / (float(np.abs(columns @ step).max()) + 1e-12))
        if float(np.abs(step).max()) < 1e-8:
            break
    return Success(found)
