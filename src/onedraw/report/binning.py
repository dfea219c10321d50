"""Weighted histograms of one parameter: what plots and pages draw of a marginal posterior."""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.results.posterior import Posterior

FEWEST_BINS, MOST_BINS = 16, 48
PRIOR_DRAWS = 50_000
"""Draws from the prior behind its curve."""
MOST_WHOLE = 60
"""Whole numbers that get a bin each, at most."""


class MarginalHistogram(NamedTuple):
    """Bins of one parameter and the density in each."""

    edges: Array
    density: Array
    prior: Array | None
    """None if the run has no model."""


def edges_of(values: Array, prior: Array | None = None, effective: float | None = None) -> Array:
    """Edges of bins for values (n,): their middle 99.8 %, and some of the prior beside it.

    The larger the effective number of draws, the more bins.
    """
    values = np.asarray(values)
    if values.dtype.kind in "iu":
        low, high = int(values.min()), int(values.max())
        width = max(1, math.ceil((high - low + 3) / MOST_WHOLE))
        return np.arange(low - 1.5, high + 1.5 + width, width)
    low, high = np.quantile(values, [0.001, 0.999])
    # Half of its width on both sides, so that the prior is seen beside it; never beyond the prior.
    room = 0.5 * (high - low) if high > low else max(abs(low), 1.0) * 0.5
    ends = [low - room, high + room]
    if prior is not None:
        within = np.quantile(prior, [0.0, 1.0])
        ends = [max(ends[0], min(low, within[0])), min(ends[1], max(high, within[1]))]
    bins = 3.2 * (values.size if effective is None else effective) ** (1 / 3)
    return np.linspace(ends[0], ends[1], int(min(max(bins, FEWEST_BINS), MOST_BINS)) + 1)


def density_of(values: Array, weights: Array | None, edges: Array) -> Array:
    """Share of the weight in each bin over its width: values beyond the bins count in the total.

    >>> density_of(np.array([0.1, 0.2, 0.7, 9.0]), None, np.array([0.0, 0.5, 1.0]))
    array([1. , 0.5])
    """
    values = np.asarray(values, dtype=float).reshape(-1)
    weights = None if weights is None else weights.reshape(-1)
    total = values.size if weights is None else weights.sum()
    counted = np.histogram(values, edges, weights=weights)[0]
    return np.asarray(counted / (max(total, 1e-300) * np.diff(edges)))


def prior_draws(post: Posterior) -> dict[str, Array] | None:
    """Draws from the prior by parameter; None if the run has no model."""
    if post.model is None:
        return None
    rng = Rng(post.seed, Phase.PREDICT, 1).bulk(Purpose.PRIOR)
    return post.model.prior.columns(post.model.prior.sample(rng, PRIOR_DRAWS))


def marginals_of(post: Posterior) -> dict[str, MarginalHistogram]:
    """The marginal of each parameter, with the prior's if there is a model."""
    before = prior_draws(post)
    effective = None if post.weights is None else float(1 / (post.weights**2).sum())
    found = {}
    for name, values in post.draws.items():
        prior = None if before is None else before[name]
        kept = values.reshape(-1)
        if post.weights is not None:
            kept = kept[post.weights.reshape(-1) > 0]
        edges = edges_of(kept, prior, effective)
        shown = None if prior is None else density_of(prior, None, edges)
        found[name] = MarginalHistogram(edges, density_of(values, post.weights, edges), shown)
    return found
