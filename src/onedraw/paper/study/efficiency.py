"""Exact asymptotic variances of Algorithm 2 on the study's model, for the third figure (docs/theory.md).

The chain lives on (theta, j) with j >= 1 hits out of M and stationary law w(theta, j) proportional to
pi(theta) Bin(j; M, tau(theta)) j.

*Independence proposal, q = prior.* The acceptance probability min(1, j'/j) sees only hit counts, and given a newly
accepted j' theta' has the law pi(theta) Bin(j'; M, tau(theta))/p(j') whatever came before. Write f = m(j) + r with
m(j) = E[f | j]. Then E[r | j'] = 0 under the proposal, so P r = rho(j) r with rho(j) the probability of rejection,
while P maps functions of j to functions of j. The two parts never meet, and

    v(f, Q_M) = v(m, chain on j) + sum_j w(j) Var(f | j) (1 + rho(j))/(1 - rho(j)):

a linear system of size M, exact up to the quadrature in theta.

*Gaussian random walk.* theta is put on an even grid, which makes a finite reversible chain; (I - P) h = f is
solved by conjugate gradients in the inner product of w, preconditioned by the probability of leaving a state (it
removes the stickiness of states with little chance of a better proposal). P is never stored: cumulative sums over
j' give the products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onedraw.arguments import positive
from onedraw.engines.arrays import Array
from onedraw.paper.study.quadrature import ORDER, Approximation, binomial_table, posterior_moments, prior_quadrature
from onedraw.paper.study.settings import PSEUDO_SAMPLES, ProposalName, Toy, step_cost
from onedraw.results.certificate import gain_bound, gain_bounds_nonnegative

GRID = 480
"""Steps of the theta grid of the random walk; grids of half and a quarter of the steps serve the extrapolation."""

REACH = 7.0
"""Prior standard deviations covered by the grid. States out there are rare but sticky: what they add to the
asymptotic variance falls like the prior's tail, not like the posterior's."""

OPTIMAL_SCALE = 2.38
"""Random-walk scale in posterior standard deviations: the usual choice in one dimension."""


def independence_variance_on_grid(prior: Array, hits: Array, values: Array) -> float:
    """v(f, Q_M) for q = prior on a discrete prior, by the decomposition in the module's docstring.

    Parameters: `prior` weights (n,), `hits` the table Bin(j; M, tau(theta)) for j = 1..M (n, M), `values` f(theta)
    (n,). The weights may leave out theta that never hits: a proposal there is a rejection.
    """
    law = prior @ hits
    held = law > 0
    law, hits = law[held], hits[:, held]
    count = np.flatnonzero(held) + 1.0
    stationary = count * law / (count @ law)
    conditional = prior[:, None] * hits / law
    mean = values @ conditional
    variance = ((values[:, None] - mean) ** 2 * conditional).sum(axis=0)

    accepted = law * np.minimum(1.0, count[None, :] / count[:, None])
    leave = accepted.sum(axis=1)
    within = float(stationary @ (variance * (2 - leave) / leave))

    centred = mean - stationary @ mean
    # Adding the stationary law to every row removes the constant functions from the null space (docs/theory.md).
    generator = np.diag(leave) - accepted + stationary
    potential = np.linalg.solve(generator, centred)
    return within + float(stationary @ (centred * (2 * potential - centred)))


def grid_variance(
    prior: Array, proposal: Array, ratio: Array, hits: Array, values: Array, *, precision: float = 1e-10
) -> float:
    """v(f, Q_M) of Algorithm 2 on a grid of n values of theta, for any proposal.

    Parameters: `prior` weights (n,); `proposal` q(i -> k) (n, n), rows may sum to less than 1 (the rest is
    rejected); `ratio` prior_k q(k -> i)/(prior_i q(i -> k)) (n, n); `hits` Bin(j; M, tau_i) for j = 1..M (n, M);
    `values` f (n,). `precision` bounds the relative residual; the error of the result is of its square's order.
    """
    hits = hits[:, : _largest_hit_count(prior, hits)]
    size, most = hits.shape
    count = np.arange(1.0, most + 1)
    stationary = prior[:, None] * hits * count
    stationary /= stationary.sum()

    # From (i, j) the hit counts j' < j/ratio are accepted with probability ratio*j'/j, the others always.
    below = np.ceil(count / np.maximum(ratio, 1e-300)[:, :, None]) - 1
    index = np.clip(below, 0, most).astype(np.int32)
    index += (np.arange(size, dtype=np.int32) * (most + 1))[None, :, None]
    weighted = proposal * ratio
    rows = max(1, 2**18 // (size * most))

    def accepted(function: Array) -> Array:
        """(theta, j) -> sum over accepted proposals of proposal probability times acceptance times function."""
        incoming = hits * function
        partial = np.zeros((size, most + 1))
        partial[:, 1:] = np.cumsum(incoming * count, axis=1)
        certain = np.zeros((size, most + 1))
        certain[:, :-1] = np.cumsum(incoming[:, ::-1], axis=1)[:, ::-1]
        result = np.empty((size, most))
        for first in range(0, size, rows):
            block = slice(first, first + rows)
            place = index[block]
            always = np.matmul(proposal[block, None, :], certain.ravel()[place])[:, 0]
            sometimes = np.matmul(weighted[block, None, :], partial.ravel()[place])[:, 0]
            result[block] = always + sometimes / count
        return result

    leave = accepted(np.ones((size, most)))
    # A state that double precision gives no mass is never entered and must only not divide by zero.
    leave = np.where((stationary > 0) & (leave > 0), leave, 1.0)
    centred = np.broadcast_to(values[:, None], hits.shape) - float(stationary.sum(axis=1) @ values)

    potential = np.zeros_like(hits)
    residual = centred.copy()
    step = residual / leave
    direction = step
    size_now = start = float((stationary * residual * step).sum())
    if start <= 0:
        return 0.0
    for _ in range(10 * most * size):
        image = leave * direction - accepted(direction)
        length = size_now / float((stationary * direction * image).sum())
        potential += length * direction
        residual -= length * image
        step = residual / leave
        size_before, size_now = size_now, float((stationary * residual * step).sum())
        if size_now <= precision**2 * start:
            return float((stationary * centred * (2 * potential - centred)).sum())
        direction = step + (size_now / size_before) * direction
    raise RuntimeError(
        f"the linear system of {most * size} states did not reach a residual of {precision}: ask for less"
    )


def _largest_hit_count(prior: Array, hits: Array) -> int:
    """The largest hit count that is kept: those above carry less than 1e-16 of the stationary law."""
    mass = np.arange(1, hits.shape[1] + 1) * (prior @ hits)
    tail = np.cumsum(mass[::-1])[::-1] / mass.sum()
    return int(np.flatnonzero(tail > 1e-16)[-1]) + 1


def independence_variance(toy: Toy, eps: float, pseudo_samples: int, order: int = ORDER) -> float:
    """v(f, Q_M) for f(theta) = theta, uniform kernel, proposing from the prior.

    At M = 1 every rejection is a repeat and v = v(f)(2 - p)/p with p the acceptance rate:

    >>> from onedraw.paper.study.quadrature import kernel_mean
    >>> p, sd = kernel_mean(Toy(), 0.25), posterior_moments(Toy(), 0.25).sd
    >>> bool(abs(independence_variance(Toy(), 0.25, 1) / (sd**2 * (2 - p) / p) - 1) < 1e-12)
    True
    """
    theta, prior = prior_quadrature(toy, eps, pseudo_samples, order)
    return independence_variance_on_grid(prior, binomial_table(toy, eps, pseudo_samples, theta), theta)


def random_walk_on_grid(
    toy: Toy, eps: float, pseudo_samples: int, scale: float, grid: int, precision: float = 1e-10
) -> float:
    """v(f, Q_M) for f(theta) = theta and the increment N(0, scale^2), on an even grid of `grid` steps in theta."""
    mean, sd = posterior_moments(toy, eps)
    low, high = min(-REACH, mean - REACH * sd), max(REACH, mean + REACH * sd)
    step = (high - low) / grid
    if step > 0.5 * toy.sigma_y:
        needed = math.ceil(2 * (high - low) / toy.sigma_y)
        raise ValueError(f"grid={grid} is too coarse for sigma_y={toy.sigma_y}: it needs at least {needed} steps")
    # Zero is a grid point: the kink of min(1, ratio) at theta' = -theta then falls on the grid for every theta,
    # the error is regular in step^2 and can be extrapolated.
    theta: Array = np.arange(math.floor(low / step), math.ceil(high / step) + 1.0) * step
    prior = np.exp(-0.5 * theta**2)
    gap = theta[None, :] - theta[:, None]
    proposal = np.exp(-0.5 * (gap / scale) ** 2) * step / (scale * math.sqrt(2 * math.pi))
    ratio = np.exp(0.5 * (theta[:, None] ** 2 - theta[None, :] ** 2))
    hits = binomial_table(toy, eps, pseudo_samples, theta)
    return grid_variance(prior, proposal, ratio, hits, theta, precision=precision)


def random_walk_variance(
    toy: Toy, eps: float, pseudo_samples: int, scale: float | None = None, grid: int = GRID
) -> Approximation:
    """v(f, Q_M) for f(theta) = theta, uniform kernel, Gaussian random walk of standard deviation `scale`.

    `scale` defaults to OPTIMAL_SCALE posterior standard deviations. The value is extrapolated in step^2
    from `grid` and half as many steps. Kinks between grid points make the convergence uneven, so the error
    returned is the larger of the last change and a quarter of the one before it.
    """
    if grid < 8 or grid % 4:
        raise ValueError(f"grid must be a multiple of 4 from 8 on, got {grid}: a quarter of it is used too")
    if scale is None:
        scale = OPTIMAL_SCALE * posterior_moments(toy, eps).sd
    positive("scale", scale, "the random walk's standard deviation")
    coarse, middle, fine = (
        random_walk_on_grid(toy, eps, pseudo_samples, scale, grid // shrink) for shrink in (4, 2, 1)
    )
    return Approximation(fine + (fine - middle) / 3, max(abs(fine - middle), abs(middle - coarse) / 4))


@dataclass(frozen=True)
class EfficiencyCurve:
    """v(f, Q_M) against M for f(theta) = theta, with v(f) under pi_K: what the third figure is drawn from."""

    proposal: ProposalName
    toy: Toy
    eps: float
    pseudo_samples: tuple[int, ...]
    variance: tuple[float, ...]
    error: tuple[float, ...]
    single_variance: float
    posterior_variance: float

    @property
    def kappa(self) -> float:
        """Integrated autocorrelation time of the chain with M = 1: v(f, Q_1)/v(f)."""
        return self.single_variance / self.posterior_variance


def efficiency_curve(
    proposal: ProposalName,
    toy: Toy,
    eps: float,
    pseudo_samples: Sequence[int] = PSEUDO_SAMPLES,
    scale: float | None = None,
    grid: int = GRID,
) -> EfficiencyCurve:
    """Exact v(f, Q_M) for every M in `pseudo_samples`; `scale` and `grid` concern the random walk alone."""
    if proposal not in ("independence", "random_walk"):
        raise ValueError(f"no proposal {proposal!r}: choose 'independence' or 'random_walk'")

    def estimate(count: int) -> Approximation:
        if proposal == "random_walk":
            return random_walk_variance(toy, eps, count, scale, grid)
        value = independence_variance(toy, eps, count)
        return Approximation(value, abs(value - independence_variance(toy, eps, count, 2 * ORDER)))

    found = {count: estimate(count) for count in {1, *pseudo_samples}}
    return EfficiencyCurve(
        proposal=proposal,
        toy=toy,
        eps=eps,
        pseudo_samples=tuple(pseudo_samples),
        variance=tuple(found[count].value for count in pseudo_samples),
        error=tuple(found[count].error for count in pseudo_samples),
        single_variance=found[1].value,
        posterior_variance=posterior_moments(toy, eps).sd ** 2,
    )


def serial_cost(curve: EfficiencyCurve, discount: float = 1.0) -> Array:
    """v(f, Q_M) c_M: cost of a unit of accuracy on one processor, in steps of M = 1; one value for each M."""
    return np.array(curve.variance) * _costs(curve.pseudo_samples, discount)


def parallel_cost(curve: EfficiencyCurve) -> tuple[Array, Array]:
    """Cost on M processors: (a) one chain with M draws side by side, v(f, Q_M); (b) M chains of Q_1, v(f, Q_1)/M."""
    return np.array(curve.variance), curve.single_variance / np.array(curve.pseudo_samples, dtype=float)


class GainBounds(NamedTuple):
    """Upper bounds on v(f, Q_1)/(c_M v(f, Q_M)), one value for each M (docs/theory.md)."""

    general: Array
    """(M/c_M) kappa/(kappa - M + 1), which needs no positivity; infinite from M = kappa + 1 on."""
    positive: Array
    """(2M - 1)/c_M, for Q_M >= 0."""
    kappa: Array
    """kappa/c_M, for Q_M >= 0."""

    @property
    def best(self) -> Array:
        """The smallest of the three; both proposals of the study have Q_M >= 0."""
        return np.asarray(np.min(self, axis=0))


def gain_bounds(curve: EfficiencyCurve, discount: float = 1.0) -> GainBounds:
    """The certificate's bounds on what each M could gain over M = 1, from kappa alone."""
    pairs = list(zip(curve.pseudo_samples, _costs(curve.pseudo_samples, discount).tolist(), strict=True))
    general = np.array([gain_bound(curve.kappa, count, cost) for count, cost in pairs])
    kappa, positive = np.array([gain_bounds_nonnegative(curve.kappa, count, cost) for count, cost in pairs]).T
    return GainBounds(general, positive, kappa)


def cost_floor(curve: EfficiencyCurve, discount: float = 1.0) -> Array:
    """The certificate drawn beside `serial_cost`: no M can cost less than v(f, Q_1)/(largest gain)."""
    return np.asarray(curve.single_variance / gain_bounds(curve, discount).best)


def _costs(pseudo_samples: Sequence[int], discount: float) -> Array:
    return np.array([step_cost(count, discount) for count in pseudo_samples])
