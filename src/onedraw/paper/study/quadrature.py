"""Exact values of the study: acceptance rates, tolerances and posteriors without Monte Carlo (docs/study.md).

With the prior as the proposal, Algorithm 2's ratio is T'/T, where T is the average of M kernel values. Write
G(t) = P(T > t) for a fresh draw (theta from the prior, then M pseudo-samples). The stationary T is the fresh one
biased by its size, so the acceptance rate is

    E[T min(1, T'/T)] / E[T] = E[min(T, T')] / E[T] = int G(t)^2 dt / int G(t) dt.

For the uniform kernel T = j/M with j the hit count, p(j) = int pi(theta) Bin(j; M, tau(theta)) dtheta, and the
integrals are sums over P(j >= k). Two bounds hold for every kernel and bracket the search for eps:
rate at M = 1 <= rate at M <= M * (rate at M = 1), the first because averaging shrinks T in the convex order, the
second because min(sum a, sum b) <= sum of all min(a_i, b_k).

Errors. Uniform kernel: Gauss-Legendre panels whose width follows the sharpest feature; doubling the order moves no
rate of the study by more than 1e-12 relative (`tests/test_study_exact.py`). Gaussian kernel: the law of
the sum of M kernel values on a lattice, by FFT; `gaussian_acceptance_rate` returns the value extrapolated to step
zero together with the change between the two finest lattices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from onedraw.arguments import one_of, positive, whole_number
from onedraw.engines.arrays import Array
from onedraw.paper.study.settings import KERNELS, FigurePoint, KernelName, Toy

ORDER = 16
"""Gauss-Legendre nodes in a panel."""

TAIL = 9.5
"""Standard deviations after which a normal tail is dropped: 2e-21, far below rounding."""

TINY = 1e-300

NARROW = 0.5
"""Half-width of the hit window, in units of sigma_y, below which two normal cdfs would cancel."""

LATTICE = 512
"""Lattice cells on [0, 1] for one Gaussian kernel value."""

ZOOM = 8
"""Ratio of the ranges that get a lattice of their own."""

SPACING = 0.25
"""Distance of theta nodes for the Gaussian kernel, in units of min(1, sigma_y)."""

NEGLIGIBLE = 1e-8
"""Share of the Gaussian kernel's E[min(T, T')] that may be left out at the smallest values of T."""

SEARCH_LATTICE = 64
"""The coarse lattice on which the search for a Gaussian kernel's eps begins."""

SMALLEST_LATTICE_MEAN = 1e-8
"""Mean kernel value below which the rounding of a Fourier transform (1e-16 absolute) would show."""


class Moments(NamedTuple):
    """Mean and standard deviation of the ABC posterior pi_K."""

    mean: float
    sd: float


class Approximation(NamedTuple):
    """A value and a statement of its error in absolute terms."""

    value: float
    error: float


def normal_density(x: Array) -> Array:
    """The standard normal density."""
    return np.asarray(np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi))


@lru_cache(maxsize=16)
def gauss_legendre(order: int) -> tuple[Array, Array]:
    """Nodes and weights on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return nodes, weights


def panel_nodes(low: Array, high: Array, order: int) -> tuple[Array, Array]:
    """Nodes and weights for integrals from `low` to `high`, both (n,): shapes (n, order)."""
    nodes, weights = gauss_legendre(order)
    half = 0.5 * (high - low)[:, None]
    return 0.5 * (high + low)[:, None] + half * nodes, half * weights


def window_probability(centre: ArrayLike, sd: float, radius: ArrayLike) -> Array:
    """P(|X| < radius) for X ~ N(centre, sd^2), accurate in relative terms also in the far tail.

    >>> float(window_probability(0.0, 1.0, 1e-12)) / 2e-12 * math.sqrt(2 * math.pi)
    1.0
    """
    from scipy.special import ndtr

    centre, radius = np.broadcast_arrays(np.abs(centre) / sd, np.asarray(radius, dtype=float) / sd)
    probability = np.asarray(ndtr(radius - centre) - ndtr(-radius - centre))
    narrow = radius < NARROW
    if narrow.any():
        nodes, weights = gauss_legendre(20)
        place = radius[narrow][:, None] * nodes - centre[narrow][:, None]
        probability[narrow] = radius[narrow] * (normal_density(place) @ weights)
    return probability


def outside_probability(centre: ArrayLike, sd: float, radius: ArrayLike) -> Array:
    """P(|X| >= radius) for X ~ N(centre, sd^2): a sum of two tails, so that nothing cancels."""
    from scipy.special import ndtr

    distance, reach = np.abs(centre) / sd, np.asarray(radius, dtype=float) / sd
    return np.asarray(ndtr(distance - reach) + ndtr(-distance - reach))


def hit_probability(toy: Toy, eps: float, theta: ArrayLike) -> Array:
    """tau(theta) = P(|y - y_obs| < eps | theta), of the shape of `theta`."""
    return window_probability(toy.y_obs - np.asarray(theta, dtype=float), toy.sigma_y, eps)


def miss_probability(toy: Toy, eps: float, theta: ArrayLike) -> Array:
    """1 - tau(theta), of the shape of `theta`, accurate even if tau is almost 1."""
    return outside_probability(toy.y_obs - np.asarray(theta, dtype=float), toy.sigma_y, eps)


def binomial_table(toy: Toy, eps: float, pseudo_samples: int, theta: Array) -> Array:
    """Bin(j; M, tau(theta)) for j = 1..M: shape (len(theta), M)."""
    from scipy.special import betaln

    hits = np.arange(1, pseudo_samples + 1)
    log_choose = -np.log(pseudo_samples + 1.0) - betaln(pseudo_samples - hits + 1.0, hits + 1.0)
    log_hit = np.log(np.maximum(hit_probability(toy, eps, theta), TINY))
    log_miss = np.log(np.maximum(miss_probability(toy, eps, theta), TINY))
    log_table = log_choose + np.multiply.outer(log_hit, hits) + np.multiply.outer(log_miss, pseudo_samples - hits)
    return np.asarray(np.exp(log_table))


def panel_edges(toy: Toy, eps: float, pseudo_samples: int = 1) -> Array:
    """Edges of the quadrature panels in theta: they hold all but 1e-19 of prior times tau.

    A panel is no wider than half of what changes fastest in it: the prior (width 1), near y_obs -+ eps the
    hit probability (width sigma_y), and a binomial of M > 64 (narrower by sqrt(64/M)).
    """
    centre, sigma, marginal_sd = abs(toy.y_obs), toy.sigma_y, toy.marginal_sd
    # pi_K is N(y/s^2, sigma_y^2/s^2) mixed over y ~ N(0, s^2) cut to the hit window.
    nearest = max(centre - eps, 0.0)
    low_y, high_y = max(centre - eps, -TAIL * marginal_sd), min(centre + eps, nearest + TAIL * marginal_sd)
    reach = TAIL * sigma / marginal_sd
    low, high = low_y / marginal_sd**2 - reach, high_y / marginal_sd**2 + reach
    sharpness = 0.5 * min(1.0, math.sqrt(64 / pseudo_samples))
    width = sharpness * (min(sigma, 1.0) if sigma > 0.5 else 1.0)
    edges = [np.linspace(low, high, max(2, math.ceil((high - low) / width) + 1))]
    if sigma <= 0.5:
        local = np.linspace(-TAIL, TAIL, math.ceil(2 * TAIL / sharpness) + 1) * sigma
        edges += [centre - eps + local, centre + eps + local]
    merged = np.unique(np.concatenate(edges))
    merged = merged[(merged >= low) & (merged <= high)]
    return merged if toy.y_obs >= 0 else -merged[::-1]


def prior_quadrature(toy: Toy, eps: float, pseudo_samples: int = 1, order: int = ORDER) -> tuple[Array, Array]:
    """Nodes theta and weights (prior density included) for integrals of pi(theta) Bin(j; M, tau(theta)), j >= 1."""
    edges = panel_edges(toy, eps, pseudo_samples)
    theta, weights = (part.ravel() for part in panel_nodes(edges[:-1], edges[1:], order))
    return theta, weights * normal_density(theta)


@lru_cache(maxsize=4096)
def hit_count_law(toy: Toy, eps: float, pseudo_samples: int, order: int = ORDER) -> Array:
    """p(j) = int pi(theta) Bin(j; M, tau(theta)) dtheta for j = 0..M: shape (M + 1,), read-only.

    The entries for j >= 1 are accurate in relative terms; p(0) is what is left.

    >>> law = hit_count_law(Toy(), 0.25, 4)
    >>> bool(abs(law.sum() - 1) < 1e-15)
    True
    """
    positive("eps", eps, "the kernel's width")
    whole_number("pseudo_samples", pseudo_samples, "the number of draws per proposal")
    theta, weights = prior_quadrature(toy, eps, pseudo_samples, order)
    hits = weights @ binomial_table(toy, eps, pseudo_samples, theta)
    law = np.concatenate([[1.0 - hits.sum()], hits])
    law.flags.writeable = False
    return law


def _checked(kernel: str, eps: float) -> str:
    positive("eps", eps, "the kernel's width")
    return one_of("kernel", kernel, KERNELS)


def kernel_mean(toy: Toy, eps: float, kernel: KernelName = "uniform") -> float:
    """Mean kernel value under the prior: the acceptance probability of Algorithm 1, for every M (docs/theory.md, L1).

    >>> round(kernel_mean(Toy(), 0.25), 6)
    0.052157
    """
    if _checked(kernel, eps) == "uniform":
        return float(window_probability(toy.y_obs, toy.marginal_sd, eps))
    spread = math.hypot(toy.marginal_sd, eps)
    return eps / spread * math.exp(-0.5 * (toy.y_obs / spread) ** 2)


def acceptance_rate(toy: Toy, eps: float, pseudo_samples: int, kernel: KernelName = "uniform") -> float:
    """Acceptance rate of Algorithm 2 in its stationary law, proposing from the prior (docs/study.md).

    >>> round(acceptance_rate(Toy(), 0.25, 64) / 64, 7)
    0.0058751
    """
    if _checked(kernel, eps) == "gaussian":
        return gaussian_acceptance_rate(toy, eps, pseudo_samples).value
    return uniform_acceptance_rate(toy, eps, pseudo_samples)


def uniform_acceptance_rate(toy: Toy, eps: float, pseudo_samples: int, order: int = ORDER) -> float:
    """The rate for the uniform kernel: sum_k P(j >= k)^2 / sum_k P(j >= k), all terms positive."""
    law = hit_count_law(toy, eps, pseudo_samples, order)
    survival = np.cumsum(law[:0:-1])
    return float(survival @ survival / survival.sum())


def _single_gaussian_rate(toy: Toy, eps: float) -> float:
    """The Gaussian kernel's rate at M = 1 by quadrature: T > t is |y - y_obs| < eps*u with t = exp(-u^2/2)."""
    width = 0.5 * min(1.0, toy.marginal_sd / eps)
    edges = np.linspace(0.0, TAIL, math.ceil(TAIL / width) + 1)
    u, weights = panel_nodes(edges[:-1], edges[1:], ORDER)
    survival = window_probability(toy.y_obs, toy.marginal_sd, eps * u)
    return float((weights * u * np.exp(-0.5 * u**2) * survival**2).sum()) / kernel_mean(toy, eps, "gaussian")


def _mean_capped(toy: Toy, eps: float, theta: Array, levels: Array) -> Array:
    """E[min(K, t) | theta] of the Gaussian kernel: shape (len(theta), len(levels)).

    A sum of two positive parts, K below t and t itself above, so that differences over small steps stay accurate.
    """
    centre = (toy.y_obs - theta)[:, None]
    with np.errstate(divide="ignore"):
        radius = eps * np.sqrt(-2 * np.log(levels))
    spread = math.hypot(toy.sigma_y, eps)
    mean = eps / spread * np.exp(-0.5 * (centre / spread) ** 2)
    # Multiplying N(centre, sigma_y^2) by K tilts it to another normal law.
    below = mean * outside_probability(centre * (eps / spread) ** 2, toy.sigma_y * eps / spread, radius)
    return below + levels * window_probability(centre, toy.sigma_y, radius)


def _gaussian_nodes(toy: Toy, eps: float, spacing: float) -> tuple[Array, Array]:
    """Equally spaced theta and prior weights; the trapezium rule converges fast for smooth decaying integrands."""
    step = spacing * min(1.0, toy.sigma_y)
    reach = TAIL * (toy.sigma_y + eps)
    low, high = max(-TAIL, toy.y_obs - reach), min(TAIL, toy.y_obs + reach)
    count = max(2, math.ceil((high - low) / step))
    theta = np.linspace(low, high, count + 1)
    return theta, normal_density(theta) * (high - low) / count


def _longest_sum(toy: Toy, eps: float, pseudo_samples: int) -> int:
    """A whole number that the sum of M Gaussian kernel values passes with probability below 1e-17 (Chernoff)."""
    from scipy.special import xlogy

    largest_mean = eps / math.hypot(toy.sigma_y, eps)
    share = np.arange(1, pseudo_samples + 1) / pseudo_samples
    exponent = pseudo_samples * (
        xlogy(share, share / largest_mean) + xlogy(1 - share, (1 - share) / (1 - largest_mean))
    )
    beyond = np.flatnonzero((share > largest_mean) & (exponent > 40))
    return int(beyond[0]) + 1 if beyond.size else pseudo_samples


def _power(base: Array, exponent: int) -> Array:
    """base**exponent by repeated squaring: NumPy's complex power goes through a logarithm and is far slower."""
    result = np.ones_like(base) if exponent % 2 == 0 else base
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            result = result * base
    return result


def _sum_survival(toy: Toy, eps: float, pseudo_samples: int, top: float, cells: int, spacing: float) -> Array:
    """P(S > k*h) for k = 0..cells - 1, h = top/cells, with S the sum of M Gaussian kernel values: shape (cells,).

    Each value is split over its two neighbours on the lattice of step h so that its mean is kept. Values above
    `top` are dropped, since they decide nothing about S <= top. The theta integral is taken between the two Fourier
    transforms, so that only one inverse is needed, and a geometric damping holds back what wraps around.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    theta, weights = _gaussian_nodes(toy, eps, spacing)
    step = top / cells
    held = min(cells, round(1 / step))
    levels = np.minimum(np.arange(held + 2) * step, 1.0)
    length = next_fast_len(4 * cells, real=True)
    # At k <= cells <= length/4 the damping costs a factor of 10^3.5 in rounding; what wraps is damped by 1e-14.
    damping = 10.0 ** (-14.0 * np.arange(cells + 1) / length)
    transform = np.zeros(length // 2 + 1, dtype=complex)
    rows = max(1, 2**20 // length)
    for first in range(0, theta.size, rows):
        block = slice(first, first + rows)
        cell_means = np.diff(_mean_capped(toy, eps, theta[block], levels), axis=1) / step
        masses = -np.diff(cell_means, axis=1, prepend=1.0) * damping[: held + 1]
        transform += weights[block] @ _power(rfft(masses, length, axis=1), pseudo_samples)
    law = irfft(transform, length)[:cells] / damping[:cells]
    # Theta outside the nodes is so far from y_obs that S is 0 there: it adds nothing to P(S > t).
    return np.asarray(np.maximum(weights.sum() - np.cumsum(law), 0.0))


def _expected_minimum(toy: Toy, eps: float, pseudo_samples: int, lattice: int, spacing: float) -> float:
    """E[min(T, T')] = (1/M) int P(S > s)^2 ds, with a finer lattice for each smaller range of s.

    S spreads over many orders of magnitude when y_obs is far from the prior; each range [top/ZOOM, top] has a
    lattice of its own, down to a range that cannot matter.
    """
    top: float = _longest_sum(toy, eps, pseudo_samples)
    total, cells, step = 0.0, round(top) * lattice, 1 / lattice
    while top > NEGLIGIBLE * total:
        survival = _sum_survival(toy, eps, pseudo_samples, top, cells, spacing)
        total += float((survival[lattice // ZOOM :] ** 2).sum()) * step
        step /= ZOOM
        top, cells = step * lattice, lattice
    return total / pseudo_samples


@lru_cache(maxsize=1024)
def gaussian_acceptance_rate(
    toy: Toy, eps: float, pseudo_samples: int, lattice: int = LATTICE, spacing: float = SPACING
) -> Approximation:
    """Rate for the Gaussian kernel K(d) = exp(-d^2/(2 eps^2)): quadrature at M = 1, a lattice law by FFT above.

    Parameters: `lattice` cells on [0, 1], `spacing` of theta in units of min(1, sigma_y). Halving the
    lattice's step divides its error by 3 to 5, so the limit is extrapolated geometrically from three lattices, each
    twice as fine as the one before (not at all if they show no pattern); the change from the second to the third,
    some ten times the error of the extrapolated value, is returned as the error.
    """
    positive("eps", eps, "the kernel's width")
    whole_number("pseudo_samples", pseudo_samples, "the number of draws per proposal")
    if lattice < 4 * ZOOM or lattice % (4 * ZOOM):
        raise ValueError(f"lattice must be a multiple of {4 * ZOOM}, got {lattice}: a quarter of it is used too")
    if pseudo_samples == 1:
        rate = _single_gaussian_rate(toy, eps)
        return Approximation(rate, 1e-13 * rate)
    mean = kernel_mean(toy, eps, "gaussian")
    if mean < SMALLEST_LATTICE_MEAN:
        raise ValueError(
            f"eps={eps} gives a mean kernel value of {mean:.1e}, below the {SMALLEST_LATTICE_MEAN:.0e} that a "
            "Fourier transform in double precision resolves: take a larger eps"
        )
    coarse, middle, fine = (
        _expected_minimum(toy, eps, pseudo_samples, lattice // shrink, spacing) / mean for shrink in (4, 2, 1)
    )
    ratio = min(max((fine - middle) / (middle - coarse), 0.0), 0.5) if middle != coarse else 0.0
    return Approximation(fine + (fine - middle) * ratio / (1 - ratio), abs(fine - middle))


def _root(function: Callable[[float], float], low: float, high: float, precision: float = 1e-15) -> float:
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=precision, rtol=8.9e-16))


@lru_cache(maxsize=4096)
def tolerance(rate: float, toy: Toy, pseudo_samples: int, kernel: KernelName = "uniform") -> float:
    """The eps at which Algorithm 2 accepts with probability `rate`.

    >>> round(tolerance(0.004, Toy(), 1), 5), round(tolerance(0.004, Toy(y_obs=8.0), 1), 4)
    (0.01927, 4.2494)
    """
    one_of("kernel", kernel, KERNELS)
    whole_number("pseudo_samples", pseudo_samples, "the number of draws per proposal")
    if not 0 < rate < 1:
        raise ValueError(f"the acceptance rate must lie strictly between 0 and 1, got {rate}")
    high = _single_tolerance(rate, toy, kernel)
    if pseudo_samples == 1:
        return math.exp(high)
    # The bracket is exact in theory; rounding must not cost it its sign.
    low, high = _single_tolerance(rate / pseudo_samples, toy, kernel) - 1e-9, high + 1e-9
    if kernel == "gaussian":
        return _gaussian_tolerance(rate, toy, pseudo_samples, low, high)
    return math.exp(
        _root(lambda x: math.log(uniform_acceptance_rate(toy, math.exp(x), pseudo_samples) / rate), low, high)
    )


def _single_tolerance(rate: float, toy: Toy, kernel: KernelName) -> float:
    """log eps for this rate at M = 1."""
    single = _single_gaussian_rate if kernel == "gaussian" else kernel_mean

    def miss(log_eps: float) -> float:
        return math.log(single(toy, math.exp(log_eps)) / rate)

    low, high = -1.0, 1.0
    while miss(low) > 0:
        low -= 3.0
    while miss(high) < 0:
        high += 1.0
    return _root(miss, low, high)


def _gaussian_tolerance(rate: float, toy: Toy, pseudo_samples: int, low: float, high: float) -> float:
    """Search on a coarse lattice, then a few secant steps with its slope on the fine ones."""

    def coarse(log_eps: float) -> float:
        eps = math.exp(log_eps)
        minimum = _expected_minimum(toy, eps, pseudo_samples, SEARCH_LATTICE, 2 * SPACING)
        return math.log(minimum / kernel_mean(toy, eps, "gaussian") / rate)

    # The coarse lattice is off by up to a per cent or so: the bracket must leave room for that.
    log_eps = _root(coarse, low - 0.05, high + 0.05, 1e-6)
    slope = (coarse(log_eps + 1e-3) - coarse(log_eps - 1e-3)) / 2e-3
    for _ in range(5):
        miss = math.log(gaussian_acceptance_rate(toy, math.exp(log_eps), pseudo_samples).value / rate)
        log_eps -= miss / slope
        if abs(miss) < 1e-4:
            return math.exp(log_eps)
    raise RuntimeError(
        f"no eps found for a rate of {rate} with {pseudo_samples} pseudo-samples at {toy}: the last eps tried, "
        f"{math.exp(log_eps):.6g}, is off by {miss:.1e}; the lattice is too coarse there"
    )


def exact_value(point: FigurePoint, kernel: KernelName = "uniform") -> float:
    """What the figure shows at `point`: the rate per pseudo-sample (1L), else eps, not yet divided by eps at M = 1."""
    if point.eps is not None:
        return acceptance_rate(point.toy, point.eps, point.pseudo_samples, kernel) / point.pseudo_samples
    assert point.acceptance_rate is not None
    return tolerance(point.acceptance_rate, point.toy, point.pseudo_samples, kernel)


def posterior_moments(toy: Toy, eps: float, kernel: KernelName = "uniform") -> Moments:
    """Mean and standard deviation of pi_K(theta) proportional to pi(theta) E[K(y_obs - y) | theta].

    >>> posterior_moments(Toy(2.0, 1.0), 1.0, "gaussian").mean
    0.6666666666666666
    """
    if _checked(kernel, eps) == "gaussian":
        noise = toy.sigma_y**2 + eps**2
        return Moments(toy.y_obs / (1 + noise), math.sqrt(noise / (1 + noise)))
    theta, weights = prior_quadrature(toy, eps)
    weights = weights * hit_probability(toy, eps, theta)
    weights /= weights.sum()
    mean = float(weights @ theta)
    return Moments(mean, math.sqrt(float(weights @ (theta - mean) ** 2)))


def posterior_pdf(toy: Toy, eps: float, theta: ArrayLike, kernel: KernelName = "uniform") -> Array:
    """Density of pi_K at `theta`, of the same shape."""
    theta = np.asarray(theta, dtype=float)
    if _checked(kernel, eps) == "gaussian":
        mean, sd = posterior_moments(toy, eps, kernel)
        return normal_density((theta - mean) / sd) / sd
    return normal_density(theta) * hit_probability(toy, eps, theta) / kernel_mean(toy, eps)


def posterior_cdf(toy: Toy, eps: float, theta: ArrayLike, kernel: KernelName = "uniform") -> Array:
    """P(parameter <= theta) under pi_K, of the shape of `theta`; fit to be handed to a Kolmogorov test.

    >>> posterior_cdf(Toy(0.0, 1.0), 0.5, [-np.inf, 0.0, np.inf]).round(12).tolist()
    [0.0, 0.5, 1.0]
    """
    from scipy.special import ndtr

    theta = np.asarray(theta, dtype=float)
    if _checked(kernel, eps) == "gaussian":
        mean, sd = posterior_moments(toy, eps, kernel)
        return np.asarray(ndtr((theta - mean) / sd))
    edges = panel_edges(toy, eps)

    def integral(low: Array, high: Array) -> Array:
        place, weights = panel_nodes(low, high, ORDER)
        return np.asarray((posterior_pdf(toy, eps, place) * weights).sum(axis=1))

    cumulative = np.concatenate([[0.0], np.cumsum(integral(edges[:-1], edges[1:]))])
    inside = np.clip(theta.ravel(), edges[0], edges[-1])
    panel = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, edges.size - 2)
    below = cumulative[panel] + integral(edges[panel], inside)
    return np.asarray(np.clip(below / cumulative[-1], 0.0, 1.0).reshape(theta.shape))
