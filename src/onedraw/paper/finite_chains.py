"""Exact chains on a finite grid: every kernel of docs/theory.md as a matrix, every variance as a linear solve.

On grid points θ_1..θ_n with prior weights p, proposal matrix q and an estimator that takes finitely many
values, the algorithms are finite Markov chains. No Monte Carlo is involved: stationary laws are known in
closed form, asymptotic variances take one linear solve,

    v(f, P) = Σ w f (2h − f),    (I − P) h = f    (f centred under w),

and what the theorems say can be checked to machine precision (docs/theory.md).

>>> import numpy as np
>>> problem = Problem(prior=[0.5, 0.5], proposal=[[0.5, 0.5], [0.5, 0.5]], law=bernoulli([0.2, 0.4]))
>>> one, many = pseudo_marginal(problem, 1), pseudo_marginal(problem, 8)
>>> f = np.array([0.0, 1.0])
>>> [round(integrated_autocorrelation(f, chain), 3) for chain in (one, many)]
[5.667, 2.123]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from onedraw.arguments import whole_number
from onedraw.engines.arrays import Array

MAX_STATES = 12_000
MAX_VALUES = 20_000
MAX_PAIRS = 10_000_000
MAX_SERIES = 1_000_000
MERGE = 1e-12
"""Two values of an average closer than this (relative to the largest) are one value that rounding has split."""
LIGHTEST = 1e-290
"""A state lighter than this has lost its last digits to underflow; the proposal to it counts as rejected."""


def _array(name: str, value: ArrayLike, ndim: int) -> Array:
    array = np.array(value, dtype=float)
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)][0]}: remove those grid points")
    if (array < 0).any():
        raise ValueError(f"{name} must not be negative, got {array.min()}: weights and estimates are at least 0")
    array.setflags(write=False)
    return array


def _rows_sum_to_one(name: str, array: Array) -> None:
    sums = array.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > 1e-9:
        raise ValueError(f"{name} row {worst} sums to {sums[worst]}, not 1: divide each row by its sum")


@dataclass(frozen=True, eq=False)
class Law:
    """The law of an estimator at every grid point: K averaged over pseudo-samples, the prior not included.

    values: (n, k), at least 0. probabilities: (n, k), rows sum to 1; rows with fewer values are padded with
    probability 0.
    """

    values: Array
    probabilities: Array

    def __post_init__(self) -> None:
        values = _array("values", self.values, 2)
        probabilities = _array("probabilities", self.probabilities, 2)
        if values.shape != probabilities.shape:
            raise ValueError(f"values {values.shape} and probabilities {probabilities.shape} must have one shape")
        _rows_sum_to_one("probabilities", probabilities)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "probabilities", probabilities)

    @property
    def mean(self) -> Array:
        """(n,) E K at each grid point; τ(θ) for the uniform kernel."""
        return np.asarray((self.values * self.probabilities).sum(axis=1))

    @property
    def largest(self) -> float:
        """The largest value that has positive probability."""
        return float(self.values[self.probabilities > 0].max())

    @property
    def is_uniform(self) -> bool:
        """Whether every value is 0 or 1: the law of the uniform kernel with one pseudo-sample."""
        return bool(((self.values == 0) | (self.values == 1) | (self.probabilities == 0)).all())


@dataclass(frozen=True, eq=False)
class Problem:
    """Prior weights (n,), proposal matrix (n, n), the estimator's law for one pseudo-sample, and the grid.

    The prior is normalised here; theta defaults to 0, 1, …, n − 1.
    """

    prior: Array
    proposal: Array
    law: Law
    theta: Array | None = None

    def __post_init__(self) -> None:
        prior, proposal = _array("prior", self.prior, 1), _array("proposal", self.proposal, 2)
        size = len(prior)
        if proposal.shape != (size, size) or len(self.law.values) != size:
            raise ValueError(
                f"prior has {size} points, proposal shape {proposal.shape}, law {len(self.law.values)} rows: "
                "give all three on the same grid"
            )
        if not prior.sum() > 0 or not (prior * self.law.mean).sum() > 0:
            raise ValueError("prior times hit probability is 0 on the whole grid, so there is no target: enlarge eps")
        _rows_sum_to_one("proposal", proposal)
        theta = np.arange(size, dtype=float) if self.theta is None else np.array(self.theta, dtype=float)
        if theta.shape != (size,):
            raise ValueError(f"theta must have shape ({size},), got {theta.shape}")
        for name, value in {"prior": prior / prior.sum(), "proposal": proposal, "theta": theta}.items():
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @property
    def target(self) -> Array:
        """(n,) the posterior weights π_K, normalised."""
        weights = self.prior * self.law.mean
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True, eq=False)
class Chain:
    """A Markov chain over N states and what is known of it.

    transition: (N, N). stationary: (N,), in closed form. point: (N,), the grid point of each state. outcome:
    (N,), the column of the law the state carries (0 for kernels that carry no estimate). acceptance: (N,),
    P(accept) given that the step was not held. simulations: (N,), expected pseudo-samples of a step, no early
    rejection. size: grid points. tail: an upper bound on acceptance probability that a truncated series left
    out (0 unless r-hit).
    """

    transition: Array
    stationary: Array
    point: Array
    outcome: Array
    acceptance: Array
    simulations: Array
    size: int
    tail: float = 0.0


class ExpectedSimulations(NamedTuple):
    """Expected pseudo-samples of a step: no early rejection, only before simulating, and between draws too.

    before_by_state and between_by_state are aligned with the states of pseudo_marginal(problem,
    pseudo_samples).
    """

    plain: float
    before: float
    between: float
    before_by_state: Array
    between_by_state: Array


# --- laws ---------------------------------------------------------------------------------------------------


def bernoulli(tau: ArrayLike) -> Law:
    """The uniform kernel with one pseudo-sample: K = 1 with probability τ(θ), else 0. tau: (n,)."""
    tau = _array("tau", tau, 1)
    if (tau > 1).any():
        raise ValueError(f"tau must be at most 1, got {tau.max()}: it is a probability of a hit")
    return Law(np.tile([0.0, 1.0], (len(tau), 1)), np.stack([1 - tau, tau], axis=1))


def _merge(values: Array, probabilities: Array) -> tuple[Array, Array]:
    """Sort one law by value, drop what has no mass, and add up the mass of equal values."""
    kept = probabilities > 0
    order = np.argsort(values[kept], kind="stable")
    values, probabilities = values[kept][order], probabilities[kept][order]
    first = np.concatenate([[True], np.diff(values) > MERGE * values[-1]])
    return values[first], np.add.reduceat(probabilities, np.flatnonzero(first))


def _pad(rows: list[tuple[Array, Array]]) -> Law:
    values = np.zeros((len(rows), max(len(row) for row, _ in rows)))
    probabilities = np.zeros_like(values)
    for i, (row, mass) in enumerate(rows):
        values[i, : len(row)], probabilities[i, : len(row)] = row, mass / mass.sum()
    return Law(values, probabilities)


def average(law: Law, pseudo_samples: int, max_values: int = MAX_VALUES) -> Law:
    """The law of the average of M independent copies: T_M without its prior.

    The law itself for M = 1, binomial for the uniform kernel. Otherwise an M-fold convolution in which equal values
    are merged, so that values on a lattice stay few; a ValueError if more than max_values distinct values arise.
    """
    if whole_number("pseudo_samples", pseudo_samples, "the number of draws in an average") == 1:
        return law
    if law.is_uniform:
        return _binomial(law.mean, pseudo_samples)

    def convolve(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        # Equal values can only be merged once all pairs are there, so the pairs have to fit as well.
        if len(a[0]) * len(b[0]) <= MAX_PAIRS:
            sums = _merge(np.add.outer(a[0], b[0]).ravel(), np.outer(a[1], b[1]).ravel())
            if len(sums[0]) <= max_values:
                return sums
        raise ValueError(
            f"the average of {pseudo_samples} pseudo-samples takes more than {max_values} values: "
            "put the law on a lattice first (lattice), or use fewer pseudo_samples"
        )

    rows = []
    for row, mass in zip(law.values, law.probabilities, strict=True):
        one = total = _merge(row, mass)
        for bit in f"{pseudo_samples:b}"[1:]:
            total = convolve(total, total)
            if bit == "1":
                total = convolve(total, one)
        rows.append((total[0] / pseudo_samples, total[1]))
    return _pad(rows)


def _binomial(tau: Array, trials: int) -> Law:
    from scipy import special

    hits = np.arange(trials + 1)
    choose = special.gammaln(trials + 1) - special.gammaln(hits + 1) - special.gammaln(trials - hits + 1)
    tau = tau[:, None]
    mass = np.exp(choose + special.xlogy(hits, tau) + special.xlog1py(trials - hits, -tau))
    return Law(np.tile(hits / trials, (len(tau), 1)), mass / mass.sum(axis=1, keepdims=True))


def handicap(law: Law, alpha: float) -> Law:
    """T_α: 0 with probability α, else T/(1 − α). Same mean, larger in convex order (docs/theory.md, L3)."""
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha must be in [0, 1), got {alpha}: it is the probability of throwing the estimate away")
    zeros = np.zeros((len(law.values), 1))
    return Law(
        np.hstack([zeros, law.values / (1 - alpha)]),
        np.hstack([zeros + alpha, law.probabilities * (1 - alpha)]),
    )


def lattice(law: Law, points: int) -> Law:
    """Move every value to its neighbours on `points` equal steps from 0 to the largest value; the mean stays.

    The mass is split so that each mean, and with it the target, stays what it was; averages then stay small.
    """
    whole_number("points", points, "the number of steps of the lattice")
    steps = law.values * (points / law.largest)
    below = np.minimum(np.floor(steps), points - 1).astype(int)
    upper = np.where(law.probabilities > 0, steps - below, 0.0)
    mass = np.zeros((len(steps), points + 1))
    row = np.arange(len(steps))[:, None]
    np.add.at(mass, (row, below), law.probabilities * (1 - upper))
    np.add.at(mass, (row, below + 1), law.probabilities * upper)
    return Law(np.tile(np.arange(points + 1) * (law.largest / points), (len(steps), 1)), mass)


# --- chains -------------------------------------------------------------------------------------------------


def _hold_the_rest(transition: Array) -> Array:
    """Put what the accepted moves leave over on the diagonal, in place."""
    np.fill_diagonal(transition, 0.0)
    np.fill_diagonal(transition, np.maximum(1 - transition.sum(axis=1), 0.0))
    return transition


def _states(problem: Problem, law: Law) -> tuple[Array, Array, Array]:
    """The (θ, T) pairs a stationary chain visits: grid point, column of the law, stationary weight."""
    weights = problem.prior[:, None] * law.values * law.probabilities
    weights = weights / weights.sum()
    point, outcome = np.nonzero(weights > LIGHTEST)
    stationary = weights[point, outcome]
    return point, outcome, stationary / stationary.sum()


def pseudo_marginal(problem: Problem, pseudo_samples: int = 1) -> Chain:
    """Q_M, Algorithm 2, on the pairs (θ, T) with T > 0.

    P((i,a) → (j,b)) = g_jb min{q_ij, p_j k_jb q_ji / (p_i k_ia)} with k the values and g their probabilities.
    Its stationary law is w_ia ∝ p_i k_ia g_ia. With pseudo_samples=1 the law is used as it stands, whatever
    it is.
    """
    law = average(problem.law, pseudo_samples)
    point, outcome, stationary = _states(problem, law)
    if len(point) > MAX_STATES:
        raise ValueError(
            f"the chain has {len(point)} states, more than {MAX_STATES} (a dense matrix of "
            f"{8e-9 * len(point) ** 2:.1f} GB): use fewer grid points, fewer pseudo_samples, or lattice"
        )
    estimate = problem.prior[point] * law.values[point, outcome]
    drawn = law.probabilities[point, outcome]
    there = problem.proposal[point[:, None], point]
    transition = there.T * estimate
    transition /= estimate[:, None]
    np.minimum(transition, there, out=transition)
    transition *= drawn
    acceptance = transition.sum(axis=1)
    cost = np.full(len(point), float(pseudo_samples))
    return Chain(_hold_the_rest(transition), stationary, point, outcome, acceptance, cost, len(problem.prior))


def _on_grid(problem: Problem, accept: Array, cost: Array, tail: float = 0.0) -> Chain:
    """A chain on θ alone, from accept (n, n) = P(propose j and accept | i) and cost (n,)."""
    point = np.flatnonzero(problem.target > LIGHTEST)
    moves = accept[np.ix_(point, point)]
    stationary = problem.target[point] / problem.target[point].sum()
    acceptance = accept[point].sum(axis=1)
    outcome = np.zeros_like(point)
    return Chain(_hold_the_rest(moves), stationary, point, outcome, acceptance, cost[point], len(problem.prior), tail)


def _prior_moves(problem: Problem) -> Array:
    """(n, n) min{q_ij, p_j q_ji / p_i}: a Metropolis–Hastings step for the prior, before any simulation."""
    back = (problem.prior[:, None] * problem.proposal).T
    ratio = np.divide(back, problem.prior[:, None], out=np.zeros_like(back), where=problem.prior[:, None] > 0)
    return np.minimum(problem.proposal, ratio)


def marginal(problem: Problem) -> Chain:
    """Q_∞: Metropolis–Hastings with the exact target, P_ij = min{q_ij, m_j q_ji / m_i}, m = p E K."""
    certain = Law(problem.law.mean[:, None], np.ones((len(problem.prior), 1)))
    chain = pseudo_marginal(replace(problem, law=certain), 1)
    return replace(chain, simulations=np.zeros_like(chain.simulations))


def wilkinson(problem: Problem) -> Chain:
    """Algorithm 3: P_ij = E K_j · min{q_ij, p_j q_ji / p_i}. No estimate is carried; needs K ≤ 1."""
    if problem.law.largest > 1 + 1e-12:
        raise ValueError(f"Algorithm 3 needs K at most 1, got {problem.law.largest}: divide the law's values by it")
    return _on_grid(problem, _prior_moves(problem) * problem.law.mean, np.ones(len(problem.prior)))


def _hit_probability(problem: Problem) -> Array:
    if not problem.law.is_uniform:
        raise ValueError("one-hit and r-hit need the uniform kernel (values 0 and 1): use bernoulli(tau)")
    return problem.law.mean


def one_hit(problem: Problem) -> Chain:
    """Lee and Łatuszyński's race: P_ij = min{q_ij, p_j q_ji / p_i} · τ_j / (τ_i + τ_j − τ_i τ_j).

    Pairs of pseudo-samples, at θ and at θ', until one of a pair hits: 2/(τ_i + τ_j − τ_i τ_j) simulations on
    average.
    """
    tau = _hit_probability(problem)
    either = tau[:, None] + tau - tau[:, None] * tau
    survive = _prior_moves(problem)
    race = np.divide(survive, either, out=np.zeros_like(either), where=either > 0)
    return _on_grid(problem, race * tau, 2 * race.sum(axis=1))


def _capped_mean(points: Array, weights: Array) -> Callable[[Array], Array]:
    """z ↦ Σ_b weights_b min{1, points_b·z}: piecewise linear, so sort once and look up."""
    order = np.argsort(points)
    points, weights = points[order], weights[order]
    below = np.concatenate([[0.0], np.cumsum(points * weights)])
    above = np.append(np.cumsum(weights[::-1])[::-1], 0.0)

    def mean(z: Array) -> Array:
        with np.errstate(divide="ignore"):
            cut = np.searchsorted(points, 1 / z, side="right")
        return np.asarray(z * below[cut] + above[cut])

    return mean


def r_hit(problem: Problem, hits: int, tail: float = 1e-12) -> Chain:
    """The r-hit kernel: accept with E min{1, R·N/(N' − 1)}, N' draws to r hits at θ', N to r − 1 hits at θ.

    R = p_j q_ji / (p_i q_ij). The series is cut at a length L of N and N' − 1 chosen so that at most `tail`
    of any acceptance probability is lost; what was lost is bounded by chain.tail. Both counts stop at
    the same L, and the pairs (N, N' − 1) and (N' − 1, N) are each other's reverse, so the cut chain is still
    exactly reversible. hits=1 is the one-hit race, which is another kernel.
    """
    from scipy import special, stats

    if whole_number("hits", hits, "the number of hits to wait for") == 1:
        return one_hit(problem)
    tau = _hit_probability(problem)
    point = np.flatnonzero(problem.target > LIGHTEST)
    least = float(tau[point].min())
    longest = hits
    # P(fewer than r hits in L draws) for the rarest hit; I_{1-τ}(L-r+1, r) is that binomial tail.
    while (lost := float(special.betainc(longest - hits + 1, hits, 1 - least))) > tail / 2:
        longest *= 2
        if longest > MAX_SERIES:
            raise ValueError(
                f"tau as small as {least:.3g} needs a series longer than {MAX_SERIES}: drop those grid "
                f"points or raise tail (now {tail:g})"
            )
    draws = np.arange(longest + 1)
    accept = np.zeros_like(problem.proposal)
    for i in point:
        accepted = _capped_mean(draws, stats.nbinom.pmf(draws - hits + 1, hits - 1, tau[i]))
        for j in point:
            back, out = problem.prior[j] * problem.proposal[j, i], problem.prior[i] * problem.proposal[i, j]
            if back > 0 and out > 0:
                there = stats.nbinom.pmf(draws[: longest - hits + 2], hits, tau[j])
                accept[i, j] = problem.proposal[i, j] * float(there @ accepted(back / out / draws[hits - 1 :]))
    rest = np.divide(1, tau, out=np.zeros_like(tau), where=tau > 0)
    cost = hits * (problem.proposal @ rest) + (hits - 1) * rest
    return _on_grid(problem, accept, cost, 2 * lost)


def lazy(chain: Chain, hold: float = 0.5) -> Chain:
    """hold·I + (1 − hold)·P: with probability `hold` a step repeats the state, without cost or test."""
    if not 0 <= hold < 1:
        raise ValueError(f"hold must be in [0, 1), got {hold}: at 1 the chain never moves")
    transition = (1 - hold) * chain.transition
    return replace(chain, transition=_hold_the_rest(transition), simulations=(1 - hold) * chain.simulations)


# --- what a chain does --------------------------------------------------------------------------------------


def acceptance_rate(chain: Chain) -> float:
    """The stationary probability that a proposal is accepted; held steps are not counted."""
    return float(chain.stationary @ chain.acceptance)


def _lift(f: ArrayLike, chain: Chain) -> Array:
    """f on the grid, (n,) or (n, m), as centred functions of the state, (N, m)."""
    values = np.asarray(f, dtype=float)
    if values.ndim not in (1, 2) or len(values) != chain.size:
        raise ValueError(f"f must have shape ({chain.size},) or ({chain.size}, m), by grid point, got {values.shape}")
    lifted = values[chain.point].reshape(len(chain.point), -1)
    return np.asarray(lifted - chain.stationary @ lifted)


def _plain(v: Array, f: ArrayLike) -> Any:
    return float(v[0]) if np.ndim(f) == 1 else v


def variance(f: ArrayLike, chain: Chain) -> Any:
    """v(f): the variance of f under the target. f: (n,) gives a float, (n, m) gives (m,)."""
    return _plain(chain.stationary @ _lift(f, chain) ** 2, f)


def _is_reversible(chain: Chain) -> bool:
    flow = chain.stationary[:, None] * chain.transition
    scale = float(flow.max())
    flow -= flow.T.copy()
    return float(np.abs(flow).max()) <= 1e-11 * scale


def _symmetrised(chain: Chain) -> Array:
    """D^½ P D^-½ with D the stationary law: symmetric, with the eigenvalues of P."""
    if not _is_reversible(chain):
        raise ValueError("the chain is not reversible with respect to its stationary law, so its spectrum is not real")
    root = np.sqrt(chain.stationary)
    return np.asarray(chain.transition * root[:, None] / root)


def _require_connected(chain: Chain) -> None:
    # States at one grid point share their neighbours, so it is enough to look at the grid points.
    points, first = np.unique(chain.point, return_index=True)
    moves = np.add.reduceat(np.add.reduceat(chain.transition, first, axis=0), first, axis=1)
    reach = (moves > 0) | np.eye(len(first), dtype=bool)
    for _ in range(len(first).bit_length()):
        reach = reach @ reach
    if not reach.all():
        lost = points[~reach.all(axis=1) | ~reach.all(axis=0)].tolist()
        raise ValueError(
            f"the chain cannot go from every grid point to every other (look at points {lost[:8]}), so there is no "
            "asymptotic variance: widen the proposal, or drop the points that cannot be reached"
        )


def _poisson(f: Array, chain: Chain) -> Array:
    """h with (I − P) h = f for centred f (N, m), pinned to 0 at the heaviest state.

    Any h serves, since v(f, P) does not change when a constant is added to it. Pinning keeps the small
    numbers of a slow chain intact; adding 1wᵀ to I − P, which gives the h of mean 0, would drown them.
    """
    _require_connected(chain)
    kept = np.arange(len(chain.stationary)) != chain.stationary.argmax()
    h = np.zeros_like(f)
    if not kept.any():
        return h
    leave = chain.transition.copy()
    # 1 − P_aa is summed from the moves out of a: subtracting P_aa from 1 would lose all digits of a rare move.
    np.fill_diagonal(leave, 0.0)
    total = leave.sum(axis=1)
    np.negative(leave, out=leave)
    np.fill_diagonal(leave, total)
    if not _is_reversible(chain):
        h[kept] = np.linalg.solve(leave[np.ix_(kept, kept)], f[kept])
        return h
    from scipy import linalg

    # Symmetrised, the pinned matrix is positive definite: Cholesky, half the work of LU.
    root = np.sqrt(chain.stationary[kept])
    reduced = leave[np.ix_(kept, kept)]
    reduced *= root[:, None]
    reduced /= root
    diagonal = np.diag(reduced).copy()
    try:
        factor = linalg.cho_factor(reduced, lower=True, overwrite_a=True, check_finite=False)
        # What elimination leaves of each diagonal entry: below 1e-12 of it, fewer than four digits are left.
        lost = bool((np.diag(factor[0]) ** 2 < 1e-12 * diagonal).any())
    except np.linalg.LinAlgError:
        lost = True
    if lost:
        raise ValueError(
            "parts of the grid are joined by moves too rare for double precision, so no asymptotic variance can "
            "be computed: widen the proposal, or drop the points that are hardly ever reached"
        )
    h[kept] = linalg.cho_solve(factor, f[kept] * root[:, None], check_finite=False) / root[:, None]
    return h


def asymptotic_variance(f: ArrayLike, chain: Chain) -> Any:
    """v(f, P) = lim n·Var(mean of f over n steps). f: (n,) on the grid gives a float, (n, m) gives (m,)."""
    centred = _lift(f, chain)
    h = _poisson(centred, chain)
    return _plain(chain.stationary @ (centred * (2 * h - centred)), f)


def integrated_autocorrelation(f: ArrayLike, chain: Chain) -> Any:
    """κ = v(f, P)/v(f)."""
    return asymptotic_variance(f, chain) / variance(f, chain)


def variance_form(chain: Chain) -> Array:
    """The matrix A (n, n) with v(f, P) = fᵀ A f for every f on the grid.

    One solve with n right-hand sides answers for all f at once: the largest ratio of two variances over f is
    then a generalised eigenvalue.
    """
    centred = _lift(np.eye(chain.size), chain)
    h = _poisson(centred, chain)
    form = centred.T @ (chain.stationary[:, None] * (2 * h - centred))
    return np.asarray((form + form.T) / 2)


def spectrum(chain: Chain) -> Array:
    """(N,) the eigenvalues of a reversible chain, ascending; the last is 1."""
    return np.asarray(np.linalg.eigvalsh(_symmetrised(chain)))


def spectral_gap(chain: Chain, *, absolute: bool = False) -> float:
    """1 − λ₂ with λ₂ the second largest eigenvalue; with absolute=True, 1 − the second largest modulus."""
    values = spectrum(chain)[:-1]
    if not len(values):
        return 1.0
    return float(1 - (np.abs(values).max() if absolute else values[-1]))


def is_nonnegative(chain: Chain, tolerance: float = 1e-10) -> bool:
    """Whether every eigenvalue is above −tolerance: the symmetrised chain + tolerance·I has a Cholesky."""
    matrix = _symmetrised(chain)
    matrix[np.diag_indices_from(matrix)] += tolerance
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def solve_stationary(transition: ArrayLike) -> Array:
    """The stationary law from the matrix alone, w(I − P + 11ᵀ) = 1ᵀ: for checking the closed forms."""
    matrix = np.asarray(transition, dtype=float)
    return np.asarray(np.linalg.solve((np.eye(len(matrix)) - matrix + 1.0).T, np.ones(len(matrix))))


def expected_simulations(problem: Problem, pseudo_samples: int = 1, bound: float = 1.0) -> ExpectedSimulations:
    """Expected pseudo-samples of a step of Q_M, without and with early rejection, for a kernel up to `bound`.

    A step from T with uniform u continues after m draws iff u ≤ z·(Σ_{i≤m} K_i + (M − m)·bound)/M, z = p_j
    q_ji/(T q_ij). That bound falls in m, so the expected draws are Σ_{m<M} E min{1, z·(Σ_{i≤m} K_i + (M −
    m)·bound)/M}; the term m = 0 alone decides whether to simulate at all (docs/theory.md).
    """
    if problem.law.largest > bound * (1 + 1e-12):
        raise ValueError(f"bound must be at least the largest value {problem.law.largest}, got {bound}")
    full = average(problem.law, pseudo_samples)
    point, outcome, stationary = _states(problem, full)
    estimate = problem.prior[point] * full.values[point, outcome]
    partial = [average(problem.law, m) for m in range(1, pseudo_samples)]
    before, between = np.zeros(len(point)), np.zeros(len(point))
    for j in range(len(problem.prior)):
        out, back = problem.proposal[point, j], problem.prior[j] * problem.proposal[j, point]
        z = np.divide(back, estimate * out, out=np.zeros_like(out), where=out > 0)
        points, weights = [np.array([bound])], [np.ones(1)]
        for m, law in enumerate(partial, start=1):
            points.append((m * law.values[j] + (pseudo_samples - m) * bound) / pseudo_samples)
            weights.append(law.probabilities[j])
        before += out * pseudo_samples * np.minimum(1, z * bound)
        between += out * _capped_mean(np.concatenate(points), np.concatenate(weights))(z)
    means = float(stationary @ before), float(stationary @ between)
    return ExpectedSimulations(float(pseudo_samples), *means, before, between)


# --- problems -----------------------------------------------------------------------------------------------


def discretise(
    prior: Callable[[Array], ArrayLike] | ArrayLike,
    tau: Callable[[Array], ArrayLike] | ArrayLike | tuple[ArrayLike, ArrayLike] | Law,
    grid: ArrayLike,
    *,
    proposal: str | ArrayLike = "random_walk",
    scale: float | None = None,
) -> Problem:
    """A one-dimensional problem with known τ(θ) as a grid problem.

    prior: a density (up to a constant) as a function of θ, or weights (n,). tau: a function of θ, its values
    (n,) on the grid, a table (θ, τ) to interpolate in, or a Law for any other kernel. grid: (n,), increasing.
    proposal: "independence" (from the prior), "random_walk" (Gaussian with standard deviation `scale`,
    normalised on the grid; Metropolis–Hastings corrects the asymmetry this causes at the ends), or a matrix
    (n, n).
    """
    theta = np.array(grid, dtype=float)
    if theta.ndim != 1 or len(theta) < 2 or not (np.diff(theta) > 0).all():
        raise ValueError(f"grid must be an increasing vector of at least 2 points, got shape {theta.shape}")
    width = np.gradient(theta)
    weights = np.asarray(prior(theta), dtype=float) * width if callable(prior) else np.asarray(prior, dtype=float)
    weights = _array("prior", weights, 1)
    if not weights.sum() > 0:
        raise ValueError("prior is 0 on the whole grid: the grid must cover the prior's mass")
    weights = weights / weights.sum()
    if isinstance(proposal, str) and proposal == "independence":
        matrix = np.tile(weights, (len(theta), 1))
    elif isinstance(proposal, str) and proposal == "random_walk":
        if scale is None or not scale > 0:
            raise ValueError(f"scale must be positive for a random walk, got {scale}: the standard deviation of a step")
        matrix = np.exp(-0.5 * ((theta[:, None] - theta) / scale) ** 2) * width
        matrix /= matrix.sum(axis=1, keepdims=True)
    elif isinstance(proposal, str):
        raise ValueError(f'proposal must be "independence", "random_walk" or a matrix, got {proposal!r}')
    else:
        matrix = np.asarray(proposal, dtype=float)
    return Problem(weights, matrix, _law_on(theta, tau), theta)


def _law_on(theta: Array, tau: Any) -> Law:
    if isinstance(tau, Law):
        return tau
    if callable(tau):
        return bernoulli(np.asarray(tau(theta), dtype=float))
    if isinstance(tau, tuple):
        at, table = (np.asarray(part, dtype=float) for part in tau)
        if at.ndim != 1 or at.shape != table.shape or not (np.diff(at) > 0).all():
            raise ValueError(f"a table of tau needs increasing theta and as many values, got {at.shape}, {table.shape}")
        if theta[0] < at[0] or theta[-1] > at[-1]:
            raise ValueError(
                f"the grid [{theta[0]}, {theta[-1]}] leaves the table of tau [{at[0]}, {at[-1]}]: extend it"
            )
        return bernoulli(np.interp(theta, at, table))
    return bernoulli(tau)
