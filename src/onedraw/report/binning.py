"""Weighted histograms of one parameter: what plots and pages draw of a marginal posterior."""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective as effective_number
from onedraw.results.export import prior_draws
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


def marginals_of(post: Posterior) -> dict[str, MarginalHistogram]:
    """The marginal of each parameter, with the prior's if there is a model."""
    before = {}
    if post.model is not None:
        theta = prior_draws(post.model, post.seed, PRIOR_DRAWS)
        before = dict(zip(post.model.prior.labels, theta.T, strict=True))
    effective = None if post.weights is None else effective_number(post.weights)
    found = {}
    for name, values in post.columns.items():
        prior = before.get(name)
        kept = values.reshape(-1)
        if post.weights is not None:
            kept = kept[post.weights.reshape(-1) > 0]
        edges = edges_of(kept, prior, effective)
        shown = None if prior is None else density_of(prior, None, edges)
        found[name] = MarginalHistogram(edges, density_of(values, post.weights, edges), shown)
    return found


class DensityGrid(NamedTuple):
    """The density of two parameters on a grid, smoothed."""

    across: Array
    up: Array
    density: Array
    """(up, across)"""
    at_draws: Array
    """The density at each draw."""
    weights: Array

    def level(self, share: float) -> float:
        """The density above which this share of the draws lies, by weight."""
        order = np.argsort(self.at_draws)[::-1]
        mass = np.cumsum(self.weights[order])
        return float(self.at_draws[order[min(int(np.searchsorted(mass, share * mass[-1])), len(order) - 1)]])


def density_grid(across: Array, up: Array, weights: Array | None = None, points: int = 64) -> DensityGrid:
    """The density of draws (n,) of two parameters, smoothed with a normal kernel of their own shape by Scott's rule.

    >>> rng = np.random.default_rng(1)
    >>> grid = density_grid(rng.normal(size=4_000), rng.normal(size=4_000))
    >>> radius = np.hypot(*np.meshgrid(grid.across, grid.up))[grid.density > grid.level(0.5)].max()
    >>> bool(abs(radius - np.sqrt(2 * np.log(2))) < 0.2)  # half of a normal lies within this radius
    True
    """
    from scipy import ndimage, signal

    values = np.array([across, up], dtype=float)
    weights = np.ones(values.shape[1]) if weights is None else weights
    covariance = np.cov(values, aweights=weights, bias=True) * effective_number(weights) ** (-1 / 3)
    widths = np.maximum(np.sqrt(np.diag(covariance)), 1e-12)
    low, high = np.quantile(values, [0.001, 0.999], axis=1)
    edges = np.linspace(low - 3 * widths, high + 3 * widths, points + 1)
    step = edges[1] - edges[0]
    # Not narrower than a cell, also along a line.
    covariance += np.diag(np.square(step / 2))
    away = np.arange(-(points // 2), points // 2 + 1)
    offsets = np.stack(np.meshgrid(away * step[0], away * step[1], indexing="ij"), axis=-1)
    kernel = np.exp(-0.5 * np.einsum("...i,ij,...j", offsets, np.linalg.inv(covariance), offsets))
    counted = np.histogram2d(values[0], values[1], [edges[:, 0], edges[:, 1]], weights=weights)[0]
    smoothed = np.maximum(signal.fftconvolve(counted, kernel / kernel.sum(), mode="same"), 0.0)
    places = (values - edges[0][:, None]) / step[:, None] - 0.5
    middles = 0.5 * (edges[1:] + edges[:-1])
    at_draws = ndimage.map_coordinates(smoothed, places, order=1, mode="constant")
    return DensityGrid(middles[:, 0], middles[:, 1], smoothed.T, at_draws, weights)
