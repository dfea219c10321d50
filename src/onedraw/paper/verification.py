"""Check every statement of docs/theory.md on random finite problems, exactly.

Each trial draws a small grid problem (dense, sparse, near-degenerate, periodic, lazy, independence and Gaussian
proposals; uniform and other kernels), builds its chains with finite_chains.py, and compares both sides of each
statement. An inequality between asymptotic variances is checked for all functions f at once: both sides are quadratic
forms in f, and the worst ratio is a generalised eigenvalue. Some problems are built to make a bound tight (rare hits,
a perfect proposal, a sticky point), so that a bound too small by a few per cent is noticed.

    table = verify(trials=2000, seed=0);  print(table);  table.ok
    rerun(table.rows[0].failures[0])      # any failure can be run again by itself

The bounds are those of results/certificate.py; a test plants an error by replacing one of them here, or a kernel in
finite_chains.py. That the samplers do what the matrices say is checked by running them: frequencies.py.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import whole_number
from onedraw.engines.arrays import Array
from onedraw.paper import finite_chains as exact
from onedraw.paper import two_parts
from onedraw.paper.frequencies import RUNS, models
from onedraw.results.certificate import (
    gain_bound,
    gain_bound_discount,
    gain_bounds_nonnegative,
    handicap_bound,
    one_draw_bound,
    order_bound,
    running_time_bound,
    star_bound,
)
from onedraw.results.efficiency import step_cost

TOLERANCE = 1e-6
"""Rounding allowance: statements hold to about 1e-10 on these problems, planted errors are of order 1e-2."""
KEPT_FAILURES = 3
START_SIZES = (2, 2, 3)
"""Grid points in each start of a search."""


# --- what else a test may replace ---------------------------------------------------------------------------


def lemma_bound(values: Array, level: float) -> float:
    """Σ|t_i − c| ≤ |Σt_i − c| + (M − 1)c for t_i, c ≥ 0."""
    return float(abs(values.sum() - level) + (len(values) - 1) * level)


def goes_on(u: Array, reach: Array) -> Array:
    """Early rejection: continue while u is within reach of the best outcome still possible."""
    return np.asarray(u <= reach)


def smaller_eps_weight(at_smaller: Array, at_eps: Array) -> Array:
    """Weights that turn a run at ε into one at ε' < ε: the ratio of the two averages over the state's distances."""
    return np.asarray(at_smaller.mean(axis=-1) / at_eps.mean(axis=-1))


KERNELS: dict[str, Callable[[Array], Array]] = {
    "uniform": lambda scaled: (scaled < 1).astype(float),
    "gaussian": lambda scaled: np.exp(-0.5 * scaled**2),
    "epanechnikov": lambda scaled: np.maximum(1 - scaled**2, 0),
    "triangular": lambda scaled: np.maximum(1 - scaled, 0),
}
"""K(d/ε) with supremum 1, written out here and not asked of the package."""


# --- instances ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Instance:
    """One random problem and everything a statement needs besides; plain numbers and lists, so it can be stored."""

    proposal_kind: str
    law_kind: str
    prior: list[float]
    proposal: list[list[float]]
    values: list[list[float]]
    probabilities: list[list[float]]
    pseudo_samples: int
    more_pseudo_samples: int
    alpha: float
    discount: float
    early_pseudo_samples: int
    pick: int
    lemma_values: list[float]
    kernel: str
    eps: float
    smaller_eps: float
    distances: list[float]
    distance_probabilities: list[list[float]]
    distance_pseudo_samples: int
    f: list[float]


PROPOSALS = ("dense", "sparse", "near_degenerate", "periodic", "lazy", "independence", "gaussian", "perfect", "sticky")
LAWS = ("uniform", "rare", "certain", "general", "lattice")
NONNEGATIVE = ("independence", "gaussian", "perfect")


def _weights(rng: np.random.Generator, *shape: int, floor: float = 1e-3) -> Array:
    """Random probability rows, anything from nearly equal to nearly all on one point."""
    rows = rng.dirichlet(np.full(shape[-1], rng.choice([0.2, 1.0, 5.0])), size=shape[:-1]) + floor
    return np.asarray(rows / rows.sum(axis=-1, keepdims=True))


def _support(rng: np.random.Generator, size: int, kind: str) -> Array:
    """Which moves a sparse or periodic proposal makes: connected both ways, plus some that cannot be undone."""
    allowed = np.zeros((size, size), dtype=bool)
    steps = np.arange(size)
    if kind == "periodic":
        ring = size % 2 == 0 and rng.random() < 0.5
        i, j = (steps, (steps + 1) % size) if ring else (steps[:-1], steps[1:])
    else:
        i, j = steps[1:], np.array([rng.integers(k) for k in range(1, size)])
        allowed |= rng.random((size, size)) < 0.15
    allowed[i, j] = allowed[j, i] = True
    return allowed


def _proposal(rng: np.random.Generator, size: int, kind: str, target: Array) -> Array:
    if kind == "perfect":
        return np.tile(target, (size, 1))
    if kind == "independence":
        return np.tile(_weights(rng, size), (size, 1))
    if kind == "gaussian":
        at, width = rng.uniform(0, 2, size=size), rng.uniform(0.2, 1, size=size)
        matrix = np.exp(-0.5 * ((at[:, None] - at) / rng.uniform(0.4, 2)) ** 2) * width
    elif kind in ("sparse", "periodic"):
        matrix = _weights(rng, size, size, floor=0.05) * _support(rng, size, kind)
    elif kind == "lazy":
        return np.asarray(0.5 * np.eye(size) + 0.5 * _weights(rng, size, size))
    elif kind == "near_degenerate":
        matrix = rng.dirichlet(np.full(size, 0.1), size=size) + 1e-4
    else:
        matrix = _weights(rng, size, size)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def _law(rng: np.random.Generator, size: int, kind: str) -> tuple[Array, Array]:
    if kind in ("uniform", "rare"):
        tau = rng.beta(0.6, 0.6, size=size) if kind == "uniform" else 10 ** rng.uniform(-4.5, -3, size=size)
        tau = np.where((rng.random(size) < 0.1) & (kind == "uniform"), 1.0, np.clip(tau, 1e-5, 1))
        return np.tile([0.0, 1.0], (size, 1)), np.stack([1 - tau, tau], axis=1)
    if kind == "certain":
        values = np.ones((size, 1)) if rng.random() < 0.5 else rng.uniform(0.05, 1, size=(size, 1))
        return values, np.ones((size, 1))
    if kind == "lattice":
        return np.tile(np.arange(5) / 4, (size, 1)), _weights(rng, size, 5)
    columns = int(rng.integers(2, 4))
    values = rng.uniform(size=(size, columns)) * (rng.random((size, columns)) < 0.8)
    values[:, -1] = rng.uniform(0.1, 1, size=size)
    return values, _weights(rng, size, columns)


def _sticky(rng: np.random.Generator) -> tuple[Array, Array, Array, Array, int]:
    """Two points where L4 is as tight as it gets: hits are certain at one and rare at the other (docs/theory.md).

    Once at the rare point with M = 1 the chain leaves with probability 1/M, with M pseudo-samples at once.
    """
    pseudo_samples = int(rng.choice([2, 3, 4, 6, 16, 32]))
    tau = 10 ** rng.uniform(-6, -4)
    prior = np.array([1.0, pseudo_samples / (1 - 2 * pseudo_samples * tau)])
    top = 1.0 if rng.random() < 0.5 else rng.uniform(0.2, 0.9)
    values = np.array([[0.0, top], [0.0, top]])
    probabilities = np.array([[0.0, 1.0], [1 - tau, tau]])
    return prior / prior.sum(), np.array([[0.0, 1.0], [1.0, 0.0]]), values, probabilities, pseudo_samples


def draw_instance(seed: int, trial: int) -> Instance:
    """Trial number `trial`: the same for every number of trials."""
    rng = np.random.default_rng([seed, trial])
    proposal_kind = str(rng.choice(PROPOSALS))
    law_kind = str(rng.choice(LAWS, p=[0.4, 0.15, 0.1, 0.25, 0.1]))
    small = law_kind in ("general", "lattice")
    size = int(rng.integers(2, 6 if small else 9))
    pseudo_samples = int(rng.integers(2, 5 if small else 7))
    if proposal_kind == "perfect":
        law_kind = "certain"
    prior = _weights(rng, size)
    if rng.random() < 0.05 and size > 3:
        prior = np.append(prior[:-1], 0.0) / prior[:-1].sum()
    values, probabilities = _law(rng, size, law_kind)
    target = prior * (values * probabilities).sum(axis=1)
    proposal = _proposal(rng, size, proposal_kind, target / target.sum())
    if proposal_kind == "sticky":
        prior, proposal, values, probabilities, pseudo_samples = _sticky(rng)
        law_kind, size = "sticky", 2
    eps = float(rng.uniform(0.5, 2))
    distances = np.sort(rng.uniform(0, 2.5, size=4))
    distances[0] = rng.uniform(0, 0.2)
    lemma = rng.exponential(size=pseudo_samples) * (rng.random(pseudo_samples) < 0.5)
    return Instance(
        proposal_kind=proposal_kind,
        law_kind=law_kind,
        prior=prior.tolist(),
        proposal=proposal.tolist(),
        values=values.tolist(),
        probabilities=probabilities.tolist(),
        pseudo_samples=pseudo_samples,
        more_pseudo_samples=pseudo_samples + int(rng.integers(1, 3)),
        alpha=float(rng.choice([1 - 1 / pseudo_samples, rng.uniform(0, 0.95)])),
        discount=float(rng.choice([1.0, 10 ** rng.uniform(0, 3)])),
        early_pseudo_samples=int(rng.integers(1, 4)),
        pick=int(rng.integers(1 << 30)),
        lemma_values=[*lemma.tolist(), float(rng.exponential())],
        kernel=str(rng.choice(list(KERNELS))),
        eps=eps,
        smaller_eps=eps * float(rng.uniform(0.41, 1)),
        distances=distances.tolist(),
        distance_probabilities=_weights(rng, size, 4).tolist(),
        distance_pseudo_samples=int(rng.integers(1, 3)),
        f=rng.normal(size=size).tolist(),
    )


class Work:
    """The chains of one instance and the quadratic forms of their variances, each built once."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        prior, values, probabilities = (
            np.array(part) for part in (instance.prior, instance.values, instance.probabilities)
        )
        self.problem = exact.Problem(prior, np.array(instance.proposal), exact.Law(values, probabilities))
        self.m, self.n = instance.pseudo_samples, instance.more_pseudo_samples
        self.cost = step_cost(self.m, instance.discount)
        # Worked out from the raw numbers, not asked of finite_chains.py: the chains are checked against it.
        target = prior * (values * probabilities).sum(axis=1)
        self.target = target / target.sum()
        self.v_target = np.diag(self.target) - np.outer(self.target, self.target)
        self.law = cache(lambda m: exact.average(self.problem.law, m) if m > 1 else self.problem.law)
        self.chain = cache(lambda m: exact.pseudo_marginal(self.problem, m))
        # v(m) is v(f, Q_m) as a form in f.
        self.v = cache(lambda m: exact.variance_form(self.chain(m)))
        self.v_marginal = cache(lambda: exact.variance_form(exact.marginal(self.problem)))
        self.nonnegative = cache(lambda: exact.is_nonnegative(self.chain(self.m)))
        self.early = cache(lambda: _early_step(self))

    def with_law(self, law: exact.Law) -> exact.Chain:
        """The chain of the same problem with another estimator."""
        return exact.pseudo_marginal(replace(self.problem, law=law), 1)

    def worst(self, left: Array, right: Array, floor: float = 0.0) -> float:
        """The largest fᵀ left f / fᵀ right f over all f."""
        return _worst(left, right, self, floor)[0]

    @cached_property
    def gains(self) -> list[tuple[float, float, float]]:
        """κ, v(f,Q_1) and v(f,Q_M) of a random f and of the f that comes closest to breaking (★), if f varies."""
        _, closest = _worst(self.v(1), self.m * self.v(self.m) + (self.m - 1) * self.v_target, self)
        found = []
        for f in (np.array(self.instance.f), closest):
            one, many, v = (float(f @ form @ f) for form in (self.v(1), self.v(self.m), self.v_target))
            if v > 0 and many > 1e-9 * v:
                found.append((one / v, one, many))
        return found


def _worst(left: Array, right: Array, work: Work, floor: float = 0.0) -> tuple[float, Array]:
    """The largest fᵀ left f / fᵀ right f over all f, and that f. Both forms ignore constants.

    `floor` adds that much of v(f) to both sides, for right sides that may vanish (a periodic chain can have
    v(f, P) = 0); it moves a ratio toward 1 but never across it.
    """
    mass = np.flatnonzero(work.target > 0)
    # Constants are removed by pinning f to 0 at the heaviest point.
    kept = mass[mass != work.target.argmax()]
    best = np.zeros(len(work.target))
    if not len(kept):
        return 0.0, best
    block = np.ix_(kept, kept)
    lower = np.linalg.cholesky((right + floor * work.v_target)[block])
    half = np.linalg.solve(lower, (left + floor * work.v_target)[block])
    whole = np.linalg.solve(lower, half.T)
    ratios, vectors = np.linalg.eigh((whole + whole.T) / 2)
    best[kept] = np.linalg.solve(lower.T, vectors[:, -1])
    return float(ratios[-1]), best


def _same(got: Any, expected: Any) -> float:
    """An equality as a ratio: 1 + the largest difference relative to the largest number."""
    got, expected = np.asarray(got, dtype=float), np.asarray(expected, dtype=float)
    return float(1 + np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))


# --- checks: each gives ratios that must not exceed 1, or none if the statement does not apply --------------


def rejection_ignores_m(work: Work) -> Iterator[float]:
    """L1: acceptance of Algorithm 1, and its running times, from the law of the average."""
    one, many = (
        float(work.problem.prior @ (np.minimum(law.values, 1) * law.probabilities).sum(axis=1))
        for law in (work.law(1), work.law(work.m))
    )
    yield _same(many, one)
    m, v = work.m, float(np.trace(work.v_target))
    yield _same([m * v / many, v / many], [m * v / one, m * (v / (m * one))])


def kernels_keep_their_law(work: Work) -> Iterator[float]:
    """Rows sum to 1, detailed balance, and θ has the target as its law, for every kernel."""
    many = work.chain(work.m)
    chains = [work.chain(1), many, exact.lazy(many), exact.marginal(work.problem), exact.wilkinson(work.problem)]
    if _uniform(work):
        chains.append(exact.one_hit(work.problem))
        if work.problem.law.mean[work.target > 0].min() > 0.02:
            chains.append(exact.r_hit(work.problem, 2 + work.instance.pick % 2))
    for chain in chains:
        flow = chain.stationary[:, None] * chain.transition
        moved = flow - np.diag(np.diag(flow))
        yield 1 + float(np.abs(flow - flow.T).max() / max(moved.max(), 1e-300))
        yield _same(chain.transition.sum(axis=1), np.ones(len(flow)))
        yield _same(chain.stationary @ chain.transition, chain.stationary)
        yield _same(np.bincount(chain.point, chain.stationary, minlength=chain.size), work.target)


def more_draws_less_variance(work: Work) -> Iterator[float]:
    """L2, with Q_∞ as the end of the line."""
    for worse, better in itertools.pairwise([work.v(1), work.v(work.m), work.v(work.n), work.v_marginal()]):
        yield work.worst(better, order_bound(worse), floor=1e-3)


def _convex_order(smaller: exact.Law, larger: exact.Law) -> Iterator[float]:
    """T ≤cx T' : equal means, and E|T − c| ≤ E|T' − c| at every kink; between kinks both are straight lines."""
    yield _same(smaller.mean, larger.mean)
    levels = np.hstack([smaller.values, larger.values])
    left, right = (
        (np.abs(law.values[:, None, :] - levels[:, :, None]) * law.probabilities[:, None, :]).sum(axis=2)
        for law in (smaller, larger)
    )
    inside = (levels > 0) & (levels < levels.max(axis=1, keepdims=True)) & (right > 0)
    if inside.any():
        yield float((left[inside] / order_bound(right[inside])).max())


def handicap_variance(work: Work) -> Iterator[float]:
    """L3, second half, for T_1 = T_{2,α} and for T_1 the average of two copies of it."""
    handicapped = exact.handicap(work.law(work.m), work.instance.alpha)
    bound = handicap_bound(work.instance.alpha, work.v(work.m))
    yield work.worst(exact.variance_form(work.with_law(handicapped)), bound)
    if handicapped.values.size < 80:
        yield work.worst(exact.variance_form(work.with_law(exact.average(handicapped, 2))), bound)


def handicap_is_holding(work: Work) -> Iterator[float]:
    """The step inside L3: the handicapped chain moves θ like αI + (1 − α)H."""
    alpha, m = work.instance.alpha, work.m
    form = exact.variance_form(work.with_law(exact.handicap(work.law(m), alpha)))
    yield _same(form, work.v(m) / (1 - alpha) + alpha / (1 - alpha) * work.v_target)
    yield _same(form, exact.variance_form(exact.lazy(work.chain(m), alpha)))


def one_draw_held(work: Work) -> Iterator[float]:
    """L4 for both chains with holding 1/2: positivity then costs nothing to have."""
    one, many = (exact.variance_form(exact.lazy(work.chain(m))) for m in (1, work.m))
    yield work.worst(one, one_draw_bound(work.m, many))


def deterministic_lemma(work: Work) -> Iterator[float]:
    """The inequality under the any-kernel result, at every level where a term bends."""
    *values, level = work.instance.lemma_values
    numbers = np.array(values)
    for c in {level, *values, float(numbers.sum())} - {0.0}:
        yield float(np.abs(numbers - c).sum()) / max(lemma_bound(numbers, c), 1e-300)


def nonnegative_proposals(work: Work) -> Iterator[float]:
    """Q_M ≥ 0 for q_ij = s_ij d_j/c_i with s positive semidefinite (independence, Gaussian); held chains always."""
    chain = work.chain(work.m)
    chains = [chain, exact.lazy(chain)] if work.instance.proposal_kind in NONNEGATIVE else [exact.lazy(chain)]
    for one in chains:
        yield 1 + max(0.0, -float(exact.spectrum(one)[0]))


def start_is_stationary(work: Work) -> Iterator[float]:
    """Accept with one draw, keep it, add M − 1 fresh ones: (θ, T_M) has the stationary law of Q_M."""
    m, law, chain = work.m, work.law(1), work.chain(work.m)
    rest, full = work.law(m - 1), work.law(m)
    got = np.zeros(len(chain.point))
    for state, (i, b) in enumerate(zip(chain.point, chain.outcome, strict=True)):
        sums = law.values[i][:, None] + (m - 1) * rest.values[i]
        mass = (law.values[i] * law.probabilities[i])[:, None] * rest.probabilities[i]
        got[state] = work.problem.prior[i] * mass[np.abs(sums / m - full.values[i, b]) < 1e-9].sum()
    yield _same(got / got.sum(), chain.stationary)


class EarlyStep(NamedTuple):
    """One step with early rejection from one state: where it arrives, the draws it takes, whether it draws at all."""

    chain: exact.Chain
    state: int
    arrivals: Array
    draws: float
    started: float


def _early_step(work: Work) -> EarlyStep:
    """Run one step with early rejection over every outcome and every u, from one state.

    Between its breakpoints in u the algorithm does one thing, so one u from each piece, weighted by the
    piece's length, is an exact integral.
    """
    problem, m = work.problem, work.instance.early_pseudo_samples
    law, chain = work.law(m), work.chain(m)
    state = work.instance.pick % len(chain.point)
    i, a = chain.point[state], chain.outcome[state]
    arrivals, draws, started = np.zeros(len(chain.point)), 0.0, 0.0
    for j in np.flatnonzero(problem.proposal[i] > 0):
        z = problem.prior[j] * problem.proposal[j, i]
        z /= problem.prior[i] * law.values[i, a] * problem.proposal[i, j]
        columns = np.flatnonzero(problem.law.probabilities[j] > 0)
        paths = np.array(list(itertools.product(columns, repeat=m)))
        chance = problem.law.probabilities[j][paths].prod(axis=1)
        sums = np.hstack([np.zeros((len(paths), 1)), problem.law.values[j][paths].cumsum(axis=1)])
        reach = z * (sums + (m - np.arange(m + 1))) / m
        edges = np.unique(np.concatenate([[0.0, 1.0], np.clip(reach, 0, 1).ravel()]))
        u, length = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        alive = goes_on(u[:, None, None], reach)
        # The first check that fails ends the step; the last one is the acceptance test itself.
        done = np.where(alive.all(axis=2), m + 1, np.argmin(alive, axis=2))
        weight = problem.proposal[i, j] * length[:, None] * chance
        draws += float((weight * np.minimum(done, m)).sum())
        started += float(weight[done > 0].sum())
        landed = np.where((done == m + 1) & (sums[:, -1] > 0), weight, 0.0).sum(axis=0)
        for target in np.flatnonzero(chain.point == j):
            value = law.values[j, chain.outcome[target]]
            arrivals[target] += landed[np.abs(sums[:, -1] / m - value) < 1e-9].sum()
    return EarlyStep(chain, state, arrivals, draws, started)


def early_rejection_same_chain(work: Work) -> Iterator[float]:
    """Early rejection leaves the law of the next state as it is."""
    chain, state, arrivals, _, _ = work.early()
    others = np.arange(len(arrivals)) != state
    yield 1 + float(abs(arrivals.sum() - chain.acceptance[state]))
    if others.any():
        yield 1 + float(np.abs(arrivals - chain.transition[state])[others].max())


def early_rejection_cost(work: Work) -> Iterator[float]:
    """What it costs: Σ_{m<M} P(still within reach after m draws); for M = 1 and K in {0, 1}, prior acceptance."""
    chain, state, _, draws, started = work.early()
    m = work.instance.early_pseudo_samples
    cost = exact.expected_simulations(work.problem, m)
    yield _same([draws, m * started], [cost.between_by_state[state], cost.before_by_state[state]])
    yield max(cost.between / cost.before, cost.before / cost.plain)
    if _uniform(work) and m == 1:
        flow = work.problem.prior[:, None] * work.problem.proposal
        move = np.minimum(flow, flow.T)[chain.point].sum(axis=1) / work.problem.prior[chain.point]
        yield _same(cost.between, chain.stationary @ move)


def _pair(work: Work) -> tuple[int, int] | None:
    """Two grid points that the proposal connects both ways."""
    both = (work.problem.proposal > 0) & (work.problem.proposal.T > 0) & (work.target > 0)
    both &= (work.target > 0)[:, None]
    np.fill_diagonal(both, False)
    pairs = np.argwhere(both)
    if not len(pairs):
        return None
    i, j = pairs[work.instance.pick % len(pairs)]
    return int(i), int(j)


def _moves(chain: exact.Chain, i: int, j: int) -> float:
    """P(i → j) of a chain on θ alone."""
    return float(chain.transition[list(chain.point).index(i), list(chain.point).index(j)])


def one_hit_acceptance(work: Work) -> Iterator[float]:
    """The race, added up round by round, against τ'/(τ + τ' − ττ')."""
    if (pair := _pair(work)) is None:
        return
    i, j = pair
    tau, other = work.problem.law.mean[[i, j]]
    if tau + other < 2e-3:
        return
    rounds = np.arange(1 + int(35 / -np.log1p(-min(tau + other - tau * other, 1 - 1e-15))))
    race = float((((1 - tau) * (1 - other)) ** rounds * other).sum())
    flow = work.problem.prior[:, None] * work.problem.proposal
    survive = min(flow[i, j], flow[j, i]) / work.problem.prior[i]
    yield _same(_moves(exact.one_hit(work.problem), i, j), survive * race)


def r_hit_balance(work: Work) -> Iterator[float]:
    """r-hit: detailed balance for each pair (N, N') against (N' − 1, N + 1), and the acceptance by a double sum."""
    tau = work.problem.law.mean
    pair = _pair(work)
    if pair is None or tau[list(pair)].min() < 0.15 or tau[work.target > 0].min() < 0.02:
        return
    (i, j), hits, longest = pair, 2 + work.instance.pick % 2, 200

    def waiting(point: int, count: int) -> Array:
        """P(the count-th hit is at draw N), as a sum of waiting times, not by the binomial formula."""
        once = np.concatenate([[0.0], tau[point] * (1 - tau[point]) ** np.arange(longest)])
        total = np.ones(1)
        for _ in range(count):
            total = np.convolve(total, once)[: longest + 1]
        return np.pad(total, (0, longest + 1 - len(total)))

    flow = work.problem.prior[:, None] * work.problem.proposal

    def accepted(here: int, there: int) -> Array:
        """P(N, N') min{1, R·N/(N' − 1)} with axes N and N' − 1."""
        n = np.arange(longest)
        ratio = flow[there, here] / flow[here, there] * n[:, None] / np.maximum(n, 1)
        mass = np.outer(waiting(here, hits - 1)[:longest], waiting(there, hits)[1:])
        return np.asarray(mass * np.minimum(1, ratio))

    forward = work.target[i] * work.problem.proposal[i, j] * accepted(i, j)
    back = work.target[j] * work.problem.proposal[j, i] * accepted(j, i)
    yield _same(forward, back.T)
    yield _same(_moves(exact.r_hit(work.problem, hits), i, j), forward.sum() / work.target[i])


def smaller_eps(work: Work) -> Iterator[float]:
    """Weights K_ε'(d)/K_ε(d) turn the law of the chain at ε into the target at ε' (averages for M > 1)."""
    instance = work.instance
    distances, chance = np.array(instance.distances), np.array(instance.distance_probabilities)
    paths = np.array(list(itertools.product(range(len(distances)), repeat=instance.distance_pseudo_samples)))
    at_eps, at_smaller = (KERNELS[instance.kernel](distances / eps) for eps in (instance.eps, instance.smaller_eps))
    values = np.tile(at_eps[paths].mean(axis=1), (len(chance), 1))
    chain = work.with_law(exact.Law(values, chance[:, paths].prod(axis=2)))
    # From the matrix, not from the closed form: what the chain does is what is weighted.
    visited = exact.solve_stationary(chain.transition)
    weights = visited * smaller_eps_weight(at_smaller[paths][chain.outcome], at_eps[paths][chain.outcome])
    got = np.bincount(chain.point, weights, minlength=chain.size)
    expected = work.problem.prior * (chance * at_smaller).sum(axis=1)
    yield _same(got / got.sum(), expected / expected.sum())


def certificate(work: Work) -> Iterator[float]:
    """gain(M) ≤ (M/c_M)·κ/(κ − M + 1), for M < κ + 1, at nominal c_M and with early rejection."""
    m, cost = work.m, work.cost
    if work.instance.pick % 4 == 0 and m <= 6:
        cost = exact.expected_simulations(work.problem, m).between / exact.expected_simulations(work.problem, 1).between
    for kappa, one, many in work.gains:
        if m < kappa + 1 - 1e-6:
            yield one / (cost * many) / gain_bound(kappa, m, cost)


def certificate_discount(work: Work) -> Iterator[float]:
    """gain(M) ≤ 2δ at the nominal cost, if Q_M ≥ 0 or M ≤ 1 + κ/2."""
    for kappa, one, many in work.gains:
        if work.nonnegative() or work.m <= 1 + kappa / 2:
            yield one / (work.cost * many) / gain_bound_discount(work.instance.discount)


class Statement(NamedTuple):
    """A statement of the theory, a bound or an equality; its check and when it applies."""

    name: str
    text: str
    kind: str
    check: Callable[[Work], Iterable[float]]
    applies: Callable[[Work], bool] = lambda work: True


def _positive(work: Work) -> bool:
    return work.nonnegative()


def _uniform(work: Work) -> bool:
    return work.problem.law.is_uniform


def _one_draw(work: Work) -> Iterator[float]:
    yield work.worst(work.v(1), one_draw_bound(work.m, work.v(work.m)))


# fmt: off
STATEMENTS = tuple(itertools.starmap(Statement, (
    ("L1", "Algorithm 1: acceptance and M-fold cost do not depend on M", "equality", rejection_ignores_m),
    ("kernels", "every kernel is reversible and keeps the target", "equality", kernels_keep_their_law),
    ("L2", "v(f,Q_M) ≥ v(f,Q_N) ≥ v(f,Q_∞) for M ≤ N", "bound", more_draws_less_variance),
    ("L2-order", "T_N ≤cx T_M for M ≤ N, at all kinks", "bound",
     lambda w: [*_convex_order(w.law(w.m), w.law(1)), *_convex_order(w.law(w.n), w.law(w.m))]),
    ("L3-order", "T ≤cx T_α, at all kinks", "bound",
     lambda w: _convex_order(w.law(w.m), exact.handicap(w.law(w.m), w.instance.alpha))),
    ("L3", "v(f,H_1) ≤ (1+α)/(1−α)·v(f,H_2), H_2 ≥ 0", "bound", handicap_variance, _positive),
    ("L3-step", "v(f,H_α) = (v(f,H) + α·v(f))/(1−α)", "equality", handicap_is_holding),
    ("L4", "v(f,Q_1) ≤ (2M−1)·v(f,Q_M), uniform kernel, Q_M ≥ 0", "bound", _one_draw,
     lambda w: _uniform(w) and w.nonnegative()),
    ("L4-any", "the same for every other kernel", "bound", _one_draw,
     lambda w: not _uniform(w) and w.nonnegative()),
    ("L4-held", "the same for both chains held, any proposal", "bound", one_draw_held),
    ("L5-serial", "running time of Q_1 ≤ 2 × that of Q_M, serial", "bound",
     lambda w: [w.worst(w.v(1), running_time_bound(w.m * w.v(w.m)))], _positive),
    # M chains of Q_1 against one chain of Q_M with its draws side by side.
    ("L5-parallel", "running time of Q_1 ≤ 2 × that of Q_M, M processors", "bound",
     lambda w: [w.worst(w.v(1) / w.m, running_time_bound(w.v(w.m)))], _positive),
    ("L6", "v(f, Algorithm 3) ≥ v(f,Q_∞)", "bound",
     lambda w: [w.worst(w.v_marginal(), order_bound(exact.variance_form(exact.wilkinson(w.problem))), 1e-3)]),
    ("lemma", "Σ|t_i−c| ≤ |Σt_i−c| + (M−1)c", "bound", deterministic_lemma),
    ("any-kernel", "T_1 ≤cx T_M handicapped by 1−1/M, at all kinks", "bound",
     lambda w: _convex_order(w.law(1), exact.handicap(w.law(w.m), 1 - 1 / w.m))),
    ("star", "v(f,Q_1) ≤ M·v(f,Q_M) + (M−1)·v(f), any proposal", "bound",
     lambda w: [w.worst(w.v(1), star_bound(w.m, w.v(w.m), w.v_target))]),
    ("holding", "v(f,½I+½Q) = 2v(f,Q) + v(f)", "equality",
     lambda w: [_same(exact.variance_form(exact.lazy(w.chain(w.m))), 2 * w.v(w.m) + w.v_target)]),
    ("positivity", "Q_M ≥ 0: independence, Gaussian; held always", "equality", nonnegative_proposals),
    ("start", "accept at M = 1 and add M−1 draws: stationary for Q_M", "equality", start_is_stationary),
    ("early-law", "early rejection: same law of the next state", "equality", early_rejection_same_chain),
    ("early-cost", "early rejection: expected simulations", "equality", early_rejection_cost),
    ("one-hit", "one-hit race accepts with τ'/(τ+τ'−ττ')", "equality", one_hit_acceptance, _uniform),
    ("r-hit", "r-hit: balance pair by pair, acceptance", "equality", r_hit_balance, _uniform),
    ("at-eps", "weights K_ε'(d)/K_ε(d) give the target at ε'", "equality", smaller_eps),
    ("gain", "gain(M) ≤ (M/c_M)·κ/(κ−M+1) for M < κ+1", "bound", certificate),
    ("gain-positive", "gain(M) ≤ min(κ, 2M−1)/c_M, Q_M ≥ 0", "bound",
     lambda w: [g / (w.cost * many) / min(gain_bounds_nonnegative(k, w.m, w.cost)) for k, g, many in w.gains],
     _positive),
    ("gain-2δ", "gain(M) ≤ 2δ at nominal cost", "bound", certificate_discount),
    ("between", "c_M·v(f,Q_M) ≥ v(f,Q_N) for 1 < M < N", "bound",
     lambda w: [w.worst(w.v(w.n), order_bound(w.cost * w.v(w.m)), 1e-3)]),
    ("parts-mean", "stopped and corrected estimates have the mean of K", "equality", two_parts.unbiased),
    ("stop-order", "v(f,Q_1) ≤ v(f,stopped)", "bound", two_parts.stopping_costs_variance),
    ("stop-bound", "v(f,stopped) ≤ (v(f,Q_1) + (1−α)v(f))/α, least α", "bound", two_parts.stopping_is_bounded),
    ("stop-one-draw", "v(f,stopped) ≤ M·v(f,stopped_M) + (M−1)·v(f)", "bound", two_parts.stopping_one_draw),
    ("best-α", "cost × E T² is least at the closed form", "bound", two_parts.best_is_best),
    ("always", "α = 1, the floor: best just if changes are large, small", "equality", two_parts.always_or_not),
    ("weighted-one-draw", "weighted draws: cost × E T_M² ≥ cost × E T²", "bound", two_parts.weighted_one_draw),
    ("fewer", "s(v(f,Q_s)+v(f)) ≤ M(v(f,Q_M)+v(f)) for s ≤ M", "bound", two_parts.fewer_draws),
    ("exchangeable", "(★) for exchangeable draws", "bound", two_parts.exchangeable),
)))
# fmt: on


# --- results ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatementResult:
    """One statement: on how many instances it was checked, and how close the worst came to breaking it.

    worst is the largest ratio to the bound (at most 1 if the statement holds); for an equality it is 1 + the largest
    relative difference. witness is the instance that gave it; failures are the first instances on which it exceeded 1.
    """

    name: str
    statement: str
    kind: str
    instances: int
    worst: float
    witness: dict[str, Any] | None
    failures: tuple[dict[str, Any], ...]
    failed: int

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def tightness(self) -> str:
        """How tight, in words."""
        if not self.instances:
            return "not checked"
        if not self.ok:
            return f"FAILS on {self.failed}"
        if self.kind == "equality":
            return f"equality to {max(self.worst - 1, 1e-16):.0e}"
        gap = 1 - self.worst
        return "attained" if gap < 1e-6 else f"{100 * gap:.2g} % to spare"


@dataclass(frozen=True)
class SearchResult:
    """The largest value hill climbing found of one quantity, its bound, and where."""

    quantity: str
    value: float
    bound: float | None
    pseudo_samples: int
    evaluations: int
    instance: dict[str, Any]


@dataclass(frozen=True)
class RunResult:
    """What one of the samplers did, against the exact chain: statistics over their limits, at most 1 if it is right."""

    name: str
    statement: str
    statistics: int
    worst: float
    reason: str = ""
    """The error that the run raised, if it did."""

    @property
    def ok(self) -> bool:
        return self.worst <= 1


@dataclass(frozen=True)
class Verification:
    """What verify found; print it for a table."""

    trials: int
    seed: int | None
    rows: tuple[StatementResult, ...]
    searches: tuple[SearchResult, ...]
    runs: tuple[RunResult, ...] = ()
    """The package's own samplers against exact chains."""

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows) and all(run.ok for run in self.runs)

    def to_json(self) -> str:
        """Everything, instances included, as JSON text."""
        rows = [{**asdict(row), "ok": row.ok, "tightness": row.tightness} for row in self.rows]
        runs = [{**asdict(run), "ok": run.ok} for run in self.runs]
        return json.dumps({"ok": self.ok, **asdict(self), "rows": rows, "runs": runs}, ensure_ascii=False)

    def __str__(self) -> str:
        rows: list[StatementResult | RunResult] = [*self.rows, *self.runs]
        parts = []
        wide = max(len(row.statement) for row in rows)
        slim = max(len(row.name) for row in rows)
        if self.rows:
            lines = [f"{'':{slim}}  {'statement':{wide}}  instances  worst ratio  how tight"]
            for row in self.rows:
                told = f"{row.instances:9d}  {_ratio(row.worst):>11}  {row.tightness}"
                lines.append(f"{row.name:{slim}}  {row.statement:{wide}}  {told}")
            parts.append(lines)
        if self.searches:
            lines = ["Searched for the largest (hill climbing; every f at once)"]
            for search in self.searches:
                bound = "none proved" if search.bound is None else f"{search.bound:.4f}"
                told = f"M = {search.pseudo_samples:2d}: {search.value:.4f}  (bound {bound})"
                lines.append(f"  {search.quantity:44}  {told}")
            parts.append(lines)
        if self.runs:
            lines = [f"{'':{slim}}  {'run and counted':{wide}}  statistics  worst, in its limit"]
            for run in self.runs:
                told = f"{run.statistics:10d}  {_ratio(run.worst)}{'' if run.ok else '  FAILS'} {run.reason}".rstrip()
                lines.append(f"{run.name:{slim}}  {run.statement:{wide}}  {told}")
            parts.append(lines)
        failed = [row.name for row in rows if not row.ok]
        held = [f"All {len(self.rows)} statements hold."] if self.rows else []
        held += [f"All {len(self.runs)} functions that were run do what they should."] if self.runs else []
        parts.append([f"FAILED: {', '.join(failed)}"] if failed else held)
        return "\n\n".join("\n".join(lines) for lines in parts)


def _ratio(value: float) -> str:
    return f"{value:.6f}" if value < 1e4 else f"{value:.3g}"


def _run(chosen: Iterable[str], engines: tuple[str, ...], seed: int) -> tuple[RunResult, ...]:
    """The chosen functions of the package on the chosen engines."""
    found = []
    for run in RUNS:
        if run.name in chosen:
            ratios: list[float] = []
            reason = ""
            try:
                ratios += run.ratios(seed, engines)
            except Exception as error:
                # A sampler that cannot be run is as wrong as one that counts wrongly.
                ratios, reason = [*ratios, float("inf")], f"{type(error).__name__}: {error}"
            worst = 1e300 if np.isnan(ratios).any() else float(min(max(ratios), 1e300))
            found.append(RunResult(run.name, run.text, len(ratios), worst, reason))
    return tuple(found)


def _check(instances: Iterable[Instance], chosen: Iterable[str]) -> tuple[StatementResult, ...]:
    """The chosen statements on all instances."""
    statements = [one for one in STATEMENTS if one.name in chosen]
    found: dict[str, list[tuple[float, Instance, str]]] = {one.name: [] for one in statements}
    for instance in instances:
        work = Work(instance)
        for name, _, _, check, applies in statements:
            reason = ""
            try:
                ratios = list(check(work)) if applies(work) else []
            except (ValueError, ArithmeticError, LookupError) as error:
                # A chain that cannot even be analysed breaks the statement; say why and continue.
                ratios, reason = [float("inf")], str(error)
            if ratios:
                ratio = 1e300 if np.isnan(ratios).any() else min(max(ratios), 1e300)
                found[name].append((ratio, instance, reason))
    return tuple(_result(one, found[one.name]) for one in statements)


def _result(statement: Statement, found: list[tuple[float, Instance, str]]) -> StatementResult:
    failed = [one for one in found if one[0] > 1 + TOLERANCE]
    kept = [
        {"statement": statement.name, "ratio": ratio, "reason": reason, "instance": asdict(instance)}
        for ratio, instance, reason in failed[:KEPT_FAILURES]
    ]
    worst, witness = 0.0, None
    if found:
        worst, instance, _ = max(found, key=lambda one: one[0])
        witness = asdict(instance)
    name, text, kind, _, _ = statement
    return StatementResult(name, text, kind, len(found), worst, witness, tuple(kept), len(failed))


# --- search -------------------------------------------------------------------------------------------------


def _softmax(x: Array) -> Array:
    rows = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(rows / rows.sum(axis=-1, keepdims=True))


def _point_in_space(x: Array, size: int) -> exact.Problem:
    """A problem from unconstrained numbers: prior, hit probabilities and the proposal's rows."""
    prior, tau = _softmax(x[:size]), 1 / (1 + np.exp(-x[size : 2 * size]))
    return exact.Problem(prior, _softmax(x[2 * size :].reshape(size, size)), exact.bernoulli(tau))


def _largest_ratio(problem: exact.Problem, pseudo_samples: int, positive: bool) -> float:
    """The largest v(f,Q_1)/v(f,Q_M) over f; −1 if Q_M is required to be non-negative and is not."""
    many = exact.pseudo_marginal(problem, pseudo_samples)
    others = np.arange(len(problem.prior)) != problem.target.argmax()
    block = np.ix_(others, others)
    try:
        if positive and not exact.is_nonnegative(many):
            return -1.0
        one = exact.variance_form(exact.pseudo_marginal(problem, 1))[block]
        return float(np.linalg.eigvals(np.linalg.solve(exact.variance_form(many)[block], one)).real.max())
    except ValueError:
        # Moves too rare for double precision (LinAlgError is one of these): no place to climb to.
        return -1.0


def _climb(rng: np.random.Generator, pseudo_samples: int, positive: bool, steps: int) -> tuple[float, exact.Problem]:
    """Hill climbing for the largest v(f,Q_1)/v(f,Q_M) over f, prior, τ and proposal, from several starts."""
    found = []
    for size in START_SIZES:
        x = rng.normal(scale=2, size=2 * size + size * size)
        value, stride = _largest_ratio(_point_in_space(x, size), pseudo_samples, positive), 1.0
        for _ in range(steps // len(START_SIZES)):
            step = stride * rng.normal(size=len(x)) * (rng.random(len(x)) < 0.4)
            # ±14 keeps probabilities above 1e-6, where the linear algebra is still good to many digits.
            tried = np.clip(x + step, -14, 14)
            ratio = _largest_ratio(_point_in_space(tried, size), pseudo_samples, positive)
            if ratio > value:
                x, value, stride = tried, ratio, min(1.3 * stride, 3.0)
            else:
                stride = max(0.96 * stride, 0.01)
        found.append((value, _point_in_space(x, size)))
    return max(found, key=lambda pair: pair[0])


def _search(seed: int, steps: int) -> tuple[SearchResult, ...]:
    found = []
    for number, (m, positive) in enumerate(itertools.product((2, 4, 16), (True, False))):
        value, problem = _climb(np.random.default_rng([seed, 1 << 20, number]), m, positive, steps)
        size = len(problem.prior)
        stored = replace(
            draw_instance(seed, 0),
            proposal_kind="dense",
            law_kind="uniform",
            prior=problem.prior.tolist(),
            proposal=problem.proposal.tolist(),
            values=problem.law.values.tolist(),
            probabilities=problem.law.probabilities.tolist(),
            pseudo_samples=m,
            more_pseudo_samples=m + 1,
            distance_probabilities=np.full((size, 4), 0.25).tolist(),
            f=np.arange(size, dtype=float).tolist(),
        )
        which = "Q_M ≥ 0" if positive else "any proposal"
        for quantity, scale in (("v(f,Q_1)/((2M−1)·v(f,Q_M))", 2 * m - 1), ("C_1/C_M", m)):
            bound = (2 * m - 1) / scale if positive else None
            found.append(SearchResult(f"{quantity}, {which}", value / scale, bound, m, steps, asdict(stored)))
    return tuple(sorted(found, key=lambda search: search.quantity, reverse=True))


# --- public -------------------------------------------------------------------------------------------------


def verify(
    trials: int = 2000,
    seed: int = 0,
    *,
    statements: Iterable[str] | None = None,
    search_steps: int | None = None,
    engines: Iterable[str] | None = None,
) -> Verification:
    """Check every statement on `trials` random problems, search for the largest ratios, and run the samplers.

    statements: names of rows to check (the first column of the table), all by default.
    search_steps: chains tried per search, 1500 unless there are fewer trials; 0 leaves the search out.
    engines: simulators that the samplers are run with, "plain", "batched", "staged", "compiled" and "jax"; by default
    those that are installed.
    """
    from threadpoolctl import threadpool_limits

    whole_number("trials", trials, "the number of random problems")
    whole_number("seed", seed, "the seed of the random problems", least=0)
    names = (*(one.name for one in STATEMENTS), *(run.name for run in RUNS))
    chosen = names if statements is None else tuple(statements)
    places = tuple(models() if engines is None else engines)
    if absent := [name for name in places if name not in models()]:
        raise ValueError(f"engines has {absent[0]!r}: choose from {', '.join(models())}")
    if unknown := [name for name in chosen if name not in names] or (["(none)"] if not chosen else []):
        raise ValueError(f"statements has {unknown[0]!r}: choose from {', '.join(names)}")
    steps = min(1500, trials) if search_steps is None else search_steps
    # Thousands of tiny factorisations: a second BLAS thread would only cost time.
    with threadpool_limits(1):
        rows = _check((draw_instance(seed, trial) for trial in range(trials)), chosen)
        searches = _search(seed, steps) if steps else ()
    return Verification(trials, seed, rows, searches, _run(chosen, places, seed))


def rerun(instance: str | dict[str, Any]) -> Verification:
    """Check every statement on one stored instance: a failure or witness of a row, or an instance, as JSON or dict."""
    stored = json.loads(instance) if isinstance(instance, str) else instance
    stored = stored.get("instance", stored)
    try:
        loaded = Instance(**stored)
    except TypeError as error:
        raise ValueError(f"this is not a stored instance ({error}): give a failure or witness from verify") from None
    return Verification(1, None, _check([loaded], [one.name for one in STATEMENTS]), ())
