"""The tolerances that a report can show from one run, and the posterior at each.

Every number is that of `post.at(eps).summary()`: a page shows what a program would get, and computes nothing itself.
"""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective
from onedraw.report.binning import MarginalHistogram, density_of
from onedraw.results.posterior import Posterior
from onedraw.results.summary import SummaryRow

POSITIONS = 33
"""Positions of the slider."""
FEWEST_DRAWS = 50
"""The effective number of weights that the smallest tolerance must leave."""
SEARCH = 40


class SliderPosition(NamedTuple):
    """The run at one tolerance."""

    eps: float
    effective: float
    """(sum w)² / sum w²: the effective number of weights."""
    rows: dict[str, SummaryRow]
    density: dict[str, Array]


def tolerances(post: Posterior, positions: int = POSITIONS) -> tuple[float, ...]:
    """Tolerances from the run's own down to the smallest that leaves enough draws, in equal ratios.

    All but the run's own and that of the posterior itself are rounded to three figures, so that they can be typed.
    A ValueError if the run kept no distances.
    """
    kernel = post.kernel_for_at()

    def left(eps: float) -> float:
        try:
            weights = post.at(eps).weights
        except ValueError:
            return 0.0
        assert weights is not None
        return effective(weights)

    top = kernel.eps
    now = float(post.settings.get("eps") or top)
    if left(top) < FEWEST_DRAWS:
        return tuple(sorted({top, now}, reverse=True))
    low, high = math.log(top) - 40.0, math.log(top)
    for _ in range(SEARCH):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if left(math.exp(middle)) >= FEWEST_DRAWS else (middle, high)
    between = [float(f"{eps:.3g}") for eps in np.geomspace(top, math.exp(high), positions)[1:]]
    return tuple(sorted({top, now, *(eps for eps in between if eps < top)}, reverse=True))


def positions_of(post: Posterior, marginals: dict[str, MarginalHistogram]) -> list[SliderPosition]:
    """What the run says at each tolerance, in the bins of these marginals; empty if there is none."""
    found = []
    for eps in tolerances(post):
        try:
            there = post.at(eps)
        except ValueError:
            continue
        assert there.weights is not None
        density = {name: density_of(post.columns[name], there.weights, one.edges) for name, one in marginals.items()}
        found.append(SliderPosition(eps, effective(there.weights), there.summary().rows, density))
    return found
