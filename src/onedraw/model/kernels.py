"""Kernels K(d / eps) that turn a distance into a weight; the largest weight is 1.

A kernel is compared on the log scale, so that a Gaussian kernel far from the data still tells two states apart.
Its target is pi_K(theta), proportional to pi(theta) times the mean of K over pseudo-samples (docs/theory.md).
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onedraw.arguments import number_or_nan, positive, shown
from onedraw.engines.arrays import Array, DeviceParts, namespace
from onedraw.failures import FAULTS, told

EPS_MEANING = "the tolerance, the scale of the distances still accepted"


@dataclass(frozen=True)
class Kernel:
    """log K as a function of distance / eps.

    `profile` maps an array u = distance / eps >= 0 to log K(u) <= 0. `indicator` says that K is 1 for u < 1 and 0
    elsewhere, so that averages are counts. `support` is the u beyond which K is zero (inf if there is none).
    `formula` is the name of the profile in compiled loops, empty for a user's own.

    >>> made = gaussian(0.5)
    >>> made.name, made.eps, made.support
    ('gaussian', 0.5, inf)
    >>> made.with_eps(0.1).eps
    0.1
    """

    name: str
    eps: float
    """The tolerance; None if the run is to choose it, as in `od.smc(model, kernel=od.gaussian())`."""
    profile: Callable[[Array], Array]
    support: float
    indicator: bool = False
    formula: str = ""
    device_parts = DeviceParts(numbers=("eps",), fixed=("name", "profile", "support", "indicator"))

    def log_weight(self, distance: Array) -> Array:
        """log K of each distance, in the shape given; -inf where the distance is NaN."""
        xp = namespace(distance)
        if self.indicator:
            return xp.where(distance < self.eps, 0.0, -np.inf)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scaled = distance / self.eps
            log_weight = self.profile(scaled)
        log_weight = xp.where((scaled < self.support) & ~xp.isnan(scaled), log_weight, -np.inf)
        # Numbers on a device cannot be looked at while the program for it is written.
        if xp is np and log_weight.size and not log_weight.max() <= 0.0:
            worst = int(np.nanargmax(np.where(np.isnan(log_weight), np.inf, log_weight)))
            raise ValueError(
                f"kernel {self.name!r} gives log K = {log_weight.flat[worst]:.6g} at distance/eps = "
                f"{scaled.flat[worst]:.6g}: log K must be at most 0 everywhere (K at most 1) and never NaN"
            )
        return log_weight

    def log_average(self, distances: Array) -> Array:
        """log of the mean of K over the last axis: (n, M) -> (n,)."""
        if distances.shape[-1] == 1:
            return self.log_weight(distances[..., 0])
        xp = namespace(distances)
        with np.errstate(divide="ignore"):
            if self.indicator:
                return log_share(xp.count_nonzero(distances < self.eps, axis=-1), distances.shape[-1])
            log_weight = self.log_weight(distances)
            largest = log_weight.max(axis=-1)
            shift = xp.where(xp.isfinite(largest), largest, 0.0)
            average: Array = xp.log(xp.mean(xp.exp(log_weight - shift[..., None]), axis=-1)) + shift
            return average

    def with_eps(self, eps: float) -> "Kernel":
        """The same kernel at another tolerance."""
        return replace(self, eps=positive("eps", eps, EPS_MEANING))


def _checked(eps: float | None) -> Any:
    """A tolerance, or None if the run is to choose it."""
    return None if eps is None else positive("eps", eps, EPS_MEANING)


def log_share(hits: Array, draws: int) -> Array:
    """log of the mean of an indicator that was 1 so often."""
    return namespace(hits).log(hits / draws)


def uniform(eps: float | None = None) -> Kernel:
    """K = 1 if the distance is below eps (strictly), 0 otherwise. Without eps the run chooses the tolerance.

    >>> uniform(0.5).log_weight(np.array([0.4, 0.5]))
    array([  0., -inf])
    """
    return Kernel("uniform", _checked(eps), _flat, 1.0, True, "flat")


def gaussian(eps: float | None = None) -> Kernel:
    """K = exp(-d² / (2 eps²)).

    >>> gaussian(0.5).log_weight(np.array([0.5, 1.0]))
    array([-0.5, -2. ])
    """
    return Kernel("gaussian", _checked(eps), _gaussian, math.inf, formula="gaussian")


def epanechnikov(eps: float | None = None) -> Kernel:
    """K = 1 - (d / eps)² if d < eps, 0 otherwise.

    >>> np.exp(epanechnikov(1.0).log_weight(np.array([0.0, 0.5, 1.0]))).round(4)
    array([1.  , 0.75, 0.  ])
    """
    return Kernel("epanechnikov", _checked(eps), _epanechnikov, 1.0, formula="epanechnikov")


def triangular(eps: float | None = None) -> Kernel:
    """K = 1 - d / eps if d < eps, 0 otherwise.

    >>> np.exp(triangular(1.0).log_weight(np.array([0.0, 0.25, 1.0]))).round(4)
    array([1.  , 0.75, 0.  ])
    """
    return Kernel("triangular", _checked(eps), _triangular, 1.0, formula="triangular")


def laplace(eps: float | None = None) -> Kernel:
    """K = exp(-d / eps).

    >>> laplace(0.5).log_weight(np.array([0.5, 1.0]))
    array([-1., -2.])
    """
    return Kernel("laplace", _checked(eps), _laplace, math.inf, formula="laplace")


ON_ARRAYS = "it must work on arrays of distance/eps and give log K at each"


def kernel(log_profile: Callable[[Array], Array], eps: float | None = None, *, support: float = math.inf) -> Kernel:
    """A kernel of your own: `log_profile(u)` gives log K for an array u = distance / eps.

    Its largest value must be 0 (K = 1), which is checked on a grid here and at every use. If K is zero beyond some u,
    give `support=u`: early stopping and `Posterior.at` rely on it.

    >>> student = kernel(lambda u: -2.0 * np.log1p(u**2), eps=0.1)
    >>> kernel(lambda u: np.exp(-u), eps=0.1)
    Traceback (most recent call last):
    ...
    ValueError: kernel '<lambda>' gives log K = 1 at distance/eps = 0: log K must be at most 0 everywhere (K at most \
1) and never NaN
    """
    if not callable(log_profile):
        raise ValueError(f"log_profile must be a function of distance/eps, got {log_profile!r}")
    if not number_or_nan(support) > 0:
        raise ValueError(f"support must be positive, got {shown(support)}: K is zero from distance/eps = support on")
    made = Kernel(getattr(log_profile, "__name__", "kernel"), _checked(eps), log_profile, support)
    grid = np.concatenate([[0.0], np.logspace(-6, 6, 2401)])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        try:
            values = np.asarray(log_profile(grid))
        except FAULTS as error:
            raise ValueError(f"log_profile failed at {grid.size} distances ({told(error)}): {ON_ARRAYS}") from error
    if values.shape != grid.shape or values.dtype.kind not in "fiub":
        raise ValueError(
            f"log_profile returned {values.dtype} of shape {values.shape} for {grid.size} distances: {ON_ARRAYS}"
        )
    largest = made.with_eps(1.0).log_weight(grid).max()
    if largest < -1e-6:
        warnings.warn(
            f"the largest value found of kernel {made.name!r} is K = {math.exp(largest):.3g}, not 1: divide it by "
            f"that (add {-largest:.3g} to log K) and rejection accepts {math.exp(-largest):.3g} times as often",
            stacklevel=2,
        )
    return made


def _flat(u: Array) -> Array:
    return namespace(u).zeros_like(u)


def _gaussian(u: Array) -> Array:
    return -0.5 * u * u


def _epanechnikov(u: Array) -> Array:
    return namespace(u).log1p(-u * u)


def _triangular(u: Array) -> Array:
    return namespace(u).log1p(-u)


def _laplace(u: Array) -> Array:
    return -u
