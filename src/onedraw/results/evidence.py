"""The evidence at a tolerance: the prior mean of K, on the log scale, with its error."""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from onedraw.arguments import number_or_nan
from onedraw.engines.arrays import Array


class LogEvidence(NamedTuple):
    """Log of the prior mean of K(distance / eps), for the kernel and the tolerance that it names.

    >>> found = LogEvidence(-2.0, 0.1, "uniform", 0.5)
    >>> found.interval(0.9)
    (-2.1644853626951472, -1.8355146373048528)
    >>> print(found)
    -2 ± 0.1 (uniform kernel, eps = 0.5)
    """

    value: float
    se: float
    """Standard error."""
    kernel: str
    eps: float

    def interval(self, probability: float = 0.9) -> tuple[float, float]:
        """The interval that holds the true value with this probability."""
        if not 0 < number_or_nan(probability) < 1:
            raise ValueError(f"probability must lie between 0 and 1, got {probability!r}: it is the interval's content")
        reach = NormalDist().inv_cdf(0.5 + probability / 2) * self.se
        return self.value - reach, self.value + reach

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.se:.2g} ({self.kernel} kernel, eps = {self.eps:.4g})"


def lowered_evidence(
    value: float, se: float, log_ratio: Array, weights: Array | None, groups: Array | None
) -> tuple[float, float]:
    """The log evidence at a smaller tolerance and its error, from the ratios of K (n,) of weighted draws of a run.

    The relative variance of sum_i w_i r_i, with weights that sum to 1, replaces that of sum_i w_i; draws of one group
    count together.

    >>> half = np.log([1.0, 0.0 + 1e-300, 1.0, 1e-300])
    >>> value, se = lowered_evidence(np.log(0.04), (0.96 / 4) ** 0.5, half, None, None)  # 4 of 100, and then 2 of 100
    >>> round(float(np.exp(value)), 6), round(se, 6) == round((0.98 / 2) ** 0.5, 6)
    (0.02, True)
    """
    log_ratio = log_ratio.reshape(-1)
    before = np.full(len(log_ratio), 1.0 / len(log_ratio)) if weights is None else weights / weights.sum()
    after = before * np.exp(log_ratio)
    ratio = float(after.sum())
    if ratio == 0.0:
        return -math.inf, math.inf
    of = np.arange(len(before)) if groups is None else np.unique(groups, return_inverse=True)[1]
    squares = [float(np.square(np.bincount(of, one)).sum()) for one in (before, after / ratio)]
    return value + math.log(ratio), math.sqrt(max(se * se + squares[1] - squares[0], 0.0))
