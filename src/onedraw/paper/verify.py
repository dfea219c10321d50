"""Check every statement of docs/theory.md on random finite problems, exactly.

Each trial draws a small grid problem (dense, sparse, near-degenerate, periodic, lazy, independence and
Gaussian proposals; uniform and other kernels), builds its chains with exact.py, and compares both sides of
each statement. An inequality between asymptotic variances is checked for all functions f at once: both sides
are quadratic forms in f, and the worst ratio is a generalised eigenvalue. Some problems are built to make a
bound tight (rare hits, a perfect proposal, a sticky point), so that a bound too small by a few per cent is
noticed.

    table = verify(trials=2000, seed=0);  print(table);  table.ok
    rerun(table.rows[0].failures[0])      # any failure can be run again by itself

The bounds are those of bounds.py; a test plants an error by replacing one of them here, or a kernel in
exact.py.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onedraw.paper import exact
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

__all__ = ["Instance", "Row", "Search", "Verification", "rerun", "verify"]

Array = NDArray[np.float64]

# Rounding allowance: statements hold to about 1e-10 on these problems, planted errors are of order 1e-2.
TOLERANCE = 1e-6
KEPT_FAILURES = 3
START_SIZES = (2, 2, 3)  # grid points in each start of a search


# --- what else a test may replace ---------------------------------------------------------------------------


def lemma_bound(values: Array, level: float) -> float:
    """Σ|t_i − c| ≤ |Σt_i − c| + (M − 1)c for t_i, c ≥ 0."""
    return float(abs(values.sum() - level) + (len(values) - 1) * level)


def goes_on(u: Array, reach: Array) -> Array:
    """Early rejection: go on while u is within reach of the best outcome still possible."""
    return np.asarray(u <= reach)


def kernel_values(kernel: str, scaled: Array) -> Array:
    """K(d/ε) with supremum 1."""
    if kernel == "uniform":
        return np.asarray((scaled < 1).astype(float))
    if kernel == "gaussian":
        return np.asarray(np.exp(-0.5 * scaled**2))
    if kernel == "epanechnikov":
        return np.asarray(np.maximum(1 - scaled**2, 0))
    return np.asarray(np.maximum(1 - scaled, 0))


def smaller_eps_weight(at_smaller: Array, at_eps: Array) -> Array:
    """Weights that turn a run at ε into one at ε' < ε: the ratio of the two averages over the state's distances."""
    return np.asarray(at_smaller.mean(axis=-1) / at_eps.mean(axis=-1))


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


def _support(rng: np.random.Generator, size: int, kind: str) -> NDArray[np.bool_]:
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
        kernel=str(rng.choice(["uniform", "gaussian", "epanechnikov", "triangular"])),
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
        law = exact.Law(np.array(instance.values), np.array(instance.probabilities))
        self.problem = exact.Problem(np.array(instance.prior), np.array(instance.proposal), law)
        self.pseudo_samples = instance.pseudo_samples
        # Worked out here from the raw numbers, not asked of exact.py: it is what the chains are checked against.
        target = np.array(instance.prior) * (np.array(instance.values) * np.array(instance.probabilities)).sum(axis=1)
        self.target = target / target.sum()
        self.is_uniform = law.is_uniform

    @cached_property
    def one(self) -> exact.Chain:
        return exact.pseudo_marginal(self.problem, 1)

    @cached_property
    def many(self) -> exact.Chain:
        return exact.pseudo_marginal(self.problem, self.pseudo_samples)

    @cached_property
    def more(self) -> exact.Chain:
        return exact.pseudo_marginal(self.problem, self.instance.more_pseudo_samples)

    @cached_property
    def v(self) -> Array:
        return np.diag(self.target) - np.outer(self.target, self.target)

    @cached_property
    def v_one(self) -> Array:
        return exact.variance_form(self.one)

    @cached_property
    def v_many(self) -> Array:
        return exact.variance_form(self.many)

    @cached_property
    def v_more(self) -> Array:
        return exact.variance_form(self.more)

    @cached_property
    def v_marginal(self) -> Array:
        return exact.variance_form(exact.marginal(self.problem))

    @cached_property
    def nonnegative(self) -> bool:
        return exact.is_nonnegative(self.many)

    @cached_property
    def functions(self) -> list[Array]:
        """Some f: a random one, and the one that comes closest to breaking (★)."""
        _, worst = _worst(self.v_one, self.pseudo_samples * self.v_many + (self.pseudo_samples - 1) * self.v, self)
        return [np.array(self.instance.f), worst]

    @cached_property
    def early(self) -> tuple[exact.Chain, int, Array, float, float]:
        return _early_run(self)

    def with_law(self, law: exact.Law) -> exact.Chain:
        return exact.pseudo_marginal(replace(self.problem, law=law), 1)

    @cached_property
    def averaged(self) -> exact.Law:
        return exact.average(self.problem.law, self.pseudo_samples)


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
    lower = np.linalg.cholesky((right + floor * work.v)[block])
    half = np.linalg.solve(lower, (left + floor * work.v)[block])
    whole = np.linalg.solve(lower, half.T)
    ratios, vectors = np.linalg.eigh((whole + whole.T) / 2)
    best[kept] = np.linalg.solve(lower.T, vectors[:, -1])
    return float(ratios[-1]), best


def _same(got: Any, expected: Any) -> float:
    """An equality as a ratio: 1 + the largest difference relative to the largest number."""
    got, expected = np.asarray(got, dtype=float), np.asarray(expected, dtype=float)
    return float(1 + np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))


# --- the statements: each yields ratios that must not pass 1, or nothing where it does not apply ------------


def rejection_ignores_m(work: Work) -> Iterator[float]:
    """L1: acceptance of Algorithm 1, and its running times, from the law of the average."""
    many = work.averaged
    accept_one, accept_many = (
        float(work.problem.prior @ (np.minimum(law.values, 1) * law.probabilities).sum(axis=1))
        for law in (work.problem.law, many)
    )
    yield _same(accept_many, accept_one)
    m, v = work.pseudo_samples, float(np.trace(work.v))
    yield _same([m * v / accept_many, v / accept_many], [m * v / accept_one, m * (v / (m * accept_one))])


def kernels_keep_their_law(work: Work) -> Iterator[float]:
    """Rows sum to 1, detailed balance, and θ has the target as its law, for every kernel."""
    chains = [work.one, work.many, exact.lazy(work.many), exact.marginal(work.problem), exact.wilkinson(work.problem)]
    if work.is_uniform:
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
    line = [work.v_one, work.v_many, work.v_more, work.v_marginal]
    for worse, better in itertools.pairwise(line):
        yield _worst(better, order_bound(worse), work, floor=1e-3)[0]


def _mean_distances(law: exact.Law, levels: Array) -> Array:
    """(n, c) E|T − c| for levels (n, c)."""
    gaps = np.abs(law.values[:, None, :] - levels[:, :, None])
    return np.asarray((gaps * law.probabilities[:, None, :]).sum(axis=2))


def _convex_order(smaller: exact.Law, larger: exact.Law) -> Iterator[float]:
    """T ≤cx T' : equal means, and E|T − c| ≤ E|T' − c| at every kink; between kinks both are straight lines."""
    yield _same(smaller.mean, larger.mean)
    levels = np.hstack([smaller.values, larger.values])
    left, right = _mean_distances(smaller, levels), _mean_distances(larger, levels)
    inside = (levels > 0) & (levels < levels.max(axis=1, keepdims=True)) & (right > 0)
    if inside.any():
        yield float((left[inside] / order_bound(right[inside])).max())


def handicap_is_larger(work: Work) -> Iterator[float]:
    """L3, first half: T ≤cx T_α."""
    law = work.averaged
    yield from _convex_order(law, exact.handicap(law, work.instance.alpha))


def handicap_variance(work: Work) -> Iterator[float]:
    """L3, second half, for T_1 = T_{2,α} and for T_1 the average of two copies of it."""
    if not work.nonnegative:
        return
    alpha = work.instance.alpha
    handicapped = exact.handicap(work.averaged, alpha)
    bound = handicap_bound(alpha, work.v_many)
    yield _worst(exact.variance_form(work.with_law(handicapped)), bound, work)[0]
    if handicapped.values.size < 80:
        yield _worst(exact.variance_form(work.with_law(exact.average(handicapped, 2))), bound, work)[0]


def handicap_is_holding(work: Work) -> Iterator[float]:
    """The step inside L3: the handicapped chain moves θ like αI + (1 − α)H."""
    alpha = work.instance.alpha
    form = exact.variance_form(work.with_law(exact.handicap(work.averaged, alpha)))
    yield _same(form, work.v_many / (1 - alpha) + alpha / (1 - alpha) * work.v)
    yield _same(form, exact.variance_form(exact.lazy(work.many, alpha)))


def holding_variance(work: Work) -> Iterator[float]:
    """v(lazy) = 2v + v(f)."""
    yield _same(exact.variance_form(exact.lazy(work.many)), 2 * work.v_many + work.v)


def one_draw_uniform(work: Work) -> Iterator[float]:
    """L4 as in the paper: uniform kernel, Q_M ≥ 0."""
    if work.is_uniform and work.nonnegative:
        yield _worst(work.v_one, one_draw_bound(work.pseudo_samples, work.v_many), work)[0]


def one_draw_any_kernel(work: Work) -> Iterator[float]:
    """L4 for every other kernel."""
    if not work.is_uniform and work.nonnegative:
        yield _worst(work.v_one, one_draw_bound(work.pseudo_samples, work.v_many), work)[0]


def one_draw_held(work: Work) -> Iterator[float]:
    """L4 for both chains with holding 1/2: positivity then costs nothing to have."""
    held_one, held_many = (exact.variance_form(exact.lazy(chain)) for chain in (work.one, work.many))
    yield _worst(held_one, one_draw_bound(work.pseudo_samples, held_many), work)[0]


def running_time_serial(work: Work) -> Iterator[float]:
    """L5, one processor."""
    if work.nonnegative:
        yield _worst(work.v_one, running_time_bound(work.pseudo_samples * work.v_many), work)[0]


def running_time_parallel(work: Work) -> Iterator[float]:
    """L5, M processors: M chains of Q_1 against one chain of Q_M with its draws side by side."""
    if work.nonnegative:
        yield _worst(work.v_one / work.pseudo_samples, running_time_bound(work.v_many), work)[0]


def wilkinson_is_worse(work: Work) -> Iterator[float]:
    """L6."""
    form = exact.variance_form(exact.wilkinson(work.problem))
    yield _worst(work.v_marginal, order_bound(form), work, floor=1e-3)[0]


def deterministic_lemma(work: Work) -> Iterator[float]:
    """The inequality under the any-kernel result, at every level where a term bends."""
    *values, level = work.instance.lemma_values
    numbers = np.array(values)
    for c in {level, *values, float(numbers.sum())} - {0.0}:
        yield float(np.abs(numbers - c).sum()) / max(lemma_bound(numbers, c), 1e-300)


def one_draw_convex_order(work: Work) -> Iterator[float]:
    """T_1 ≤cx T_M handicapped by 1 − 1/M, any kernel."""
    m = work.pseudo_samples
    yield from _convex_order(work.problem.law, exact.handicap(work.averaged, 1 - 1 / m))


def averages_convex_order(work: Work) -> Iterator[float]:
    """T_N ≤cx T_M ≤cx T_1 for M ≤ N: what L2 rests on."""
    many, more = work.averaged, exact.average(work.problem.law, work.instance.more_pseudo_samples)
    yield from _convex_order(many, work.problem.law)
    yield from _convex_order(more, many)


def star(work: Work) -> Iterator[float]:
    """(★), no positivity."""
    yield _worst(work.v_one, star_bound(work.pseudo_samples, work.v_many, work.v), work)[0]


def nonnegative_proposals(work: Work) -> Iterator[float]:
    """Q_M ≥ 0 for q_ij = s_ij d_j/c_i with s positive semidefinite (independence, Gaussian); held chains always."""
    if work.instance.proposal_kind in NONNEGATIVE:
        yield 1 + max(0.0, -float(exact.spectrum(work.many)[0]))
    yield 1 + max(0.0, -float(exact.spectrum(exact.lazy(work.many))[0]))


def start_is_stationary(work: Work) -> Iterator[float]:
    """Accept with one draw, keep it, add M − 1 fresh ones: (θ, T_M) has the stationary law of Q_M."""
    m, law = work.pseudo_samples, work.problem.law
    rest = exact.average(law, m - 1)
    full = work.averaged
    got = np.zeros(len(work.many.point))
    for state, (i, b) in enumerate(zip(work.many.point, work.many.outcome, strict=True)):
        sums = law.values[i][:, None] + (m - 1) * rest.values[i]
        mass = (law.values[i] * law.probabilities[i])[:, None] * rest.probabilities[i]
        got[state] = work.problem.prior[i] * mass[np.abs(sums / m - full.values[i, b]) < 1e-9].sum()
    yield _same(got / got.sum(), work.many.stationary)


def _early_run(work: Work) -> tuple[exact.Chain, int, Array, float, float]:
    """Run one step with early rejection over every outcome and every u, from one state.

    Between its breakpoints in u the algorithm does one thing, so one u from each piece, weighted by the
    piece's length, is an exact integral.
    """
    problem, m = work.problem, work.instance.early_pseudo_samples
    law = problem.law if m == 1 else exact.average(problem.law, m)
    chain = exact.pseudo_marginal(problem, m)
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
    return chain, state, arrivals, draws, started


def early_rejection_same_chain(work: Work) -> Iterator[float]:
    """Early rejection leaves the law of the next state as it is."""
    chain, state, arrivals, _, _ = work.early
    others = np.arange(len(arrivals)) != state
    yield 1 + float(abs(arrivals.sum() - chain.acceptance[state]))
    if others.any():
        yield 1 + float(np.abs(arrivals - chain.transition[state])[others].max())


def early_rejection_cost(work: Work) -> Iterator[float]:
    """What it costs: Σ_{m<M} P(still within reach after m draws); for M = 1 and K in {0, 1}, prior acceptance."""
    chain, state, _, draws, started = work.early
    m = work.instance.early_pseudo_samples
    cost = exact.expected_simulations(work.problem, m)
    yield _same([draws, m * started], [cost.between_by_state[state], cost.before_by_state[state]])
    yield max(cost.between / cost.before, cost.before / cost.plain)
    if work.is_uniform and m == 1:
        prior, q = work.problem.prior, work.problem.proposal
        flow = prior[:, None] * q
        move = np.minimum(flow, flow.T)[chain.point].sum(axis=1) / prior[chain.point]
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
    return float(chain.transition[np.flatnonzero(chain.point == i)[0], np.flatnonzero(chain.point == j)[0]])


def one_hit_acceptance(work: Work) -> Iterator[float]:
    """The race, added up round by round, against τ'/(τ + τ' − ττ')."""
    pair = _pair(work)
    if pair is None or not work.is_uniform:
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
    pair = _pair(work)
    if pair is None or not work.is_uniform:
        return
    i, j = pair
    tau = work.problem.law.mean
    if tau[[i, j]].min() < 0.15 or tau[work.target > 0].min() < 0.02:
        return
    hits = 2 + work.instance.pick % 2
    longest = 200

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
    at_eps = kernel_values(instance.kernel, distances / instance.eps)
    at_smaller = kernel_values(instance.kernel, distances / instance.smaller_eps)
    law = exact.Law(
        np.tile(at_eps[paths].mean(axis=1), (len(chance), 1)),
        chance[:, paths].prod(axis=2),
    )
    chain = work.with_law(law)
    # From the matrix, not from the closed form: what the chain does is what is weighted.
    visited = exact.solve_stationary(chain.transition)
    weights = visited * smaller_eps_weight(at_smaller[paths][chain.outcome], at_eps[paths][chain.outcome])
    got = np.bincount(chain.point, weights, minlength=chain.size)
    expected = work.problem.prior * (chance * at_smaller).sum(axis=1)
    yield _same(got / got.sum(), expected / expected.sum())


def _gains(work: Work) -> Iterator[tuple[float, float, float, float]]:
    """κ, v(f,Q_1), v(f,Q_M) and v(f) for some functions f that vary on the target."""
    for f in work.functions:
        one, many, v = (float(f @ form @ f) for form in (work.v_one, work.v_many, work.v))
        if v > 0 and many > 1e-9 * v:
            yield one / v, one, many, v


def certificate(work: Work) -> Iterator[float]:
    """gain(M) ≤ (M/c_M)·κ/(κ − M + 1), for M < κ + 1, at nominal c_M and with early rejection."""
    m = work.pseudo_samples
    cost = 1 + (m - 1) / work.instance.discount
    if work.instance.pick % 4 == 0 and m <= 6:
        cost = exact.expected_simulations(work.problem, m).between / exact.expected_simulations(work.problem, 1).between
    for kappa, one, many, _ in _gains(work):
        if m < kappa + 1 - 1e-6:
            yield one / (cost * many) / gain_bound(kappa, m, cost)


def certificate_nonnegative(work: Work) -> Iterator[float]:
    """gain(M) ≤ κ/c_M and ≤ (2M − 1)/c_M where Q_M ≥ 0."""
    if not work.nonnegative:
        return
    m = work.pseudo_samples
    cost = 1 + (m - 1) / work.instance.discount
    for kappa, one, many, _ in _gains(work):
        yield one / (cost * many) / min(gain_bounds_nonnegative(kappa, m, cost))


def certificate_discount(work: Work) -> Iterator[float]:
    """gain(M) ≤ 2δ at the nominal cost, where Q_M ≥ 0 or M ≤ 1 + κ/2."""
    m, discount = work.pseudo_samples, work.instance.discount
    for kappa, one, many, _ in _gains(work):
        if work.nonnegative or m <= 1 + kappa / 2:
            yield one / ((1 + (m - 1) / discount) * many) / gain_bound_discount(discount)


def between_two_measured(work: Work) -> Iterator[float]:
    """c_M v(f,Q_M) ≥ c_M' v(f,Q_M'') for M' < M < M''."""
    cost = 1 + (work.pseudo_samples - 1) / work.instance.discount
    yield _worst(work.v_more, order_bound(cost * work.v_many), work, floor=1e-3)[0]


Check = Callable[[Work], Iterator[float]]
# name, statement, kind ("bound" or "equality"), check
STATEMENTS: tuple[tuple[str, str, str, Check], ...] = (
    ("L1", "Algorithm 1: acceptance and M-fold cost do not depend on M", "equality", rejection_ignores_m),
    ("kernels", "every kernel is reversible and keeps the target", "equality", kernels_keep_their_law),
    ("L2", "v(f,Q_M) ≥ v(f,Q_N) ≥ v(f,Q_∞) for M ≤ N", "bound", more_draws_less_variance),
    ("L2-order", "T_N ≤cx T_M for M ≤ N, at all kinks", "bound", averages_convex_order),
    ("L3-order", "T ≤cx T_α, at all kinks", "bound", handicap_is_larger),
    ("L3", "v(f,H_1) ≤ (1+α)/(1−α)·v(f,H_2), H_2 ≥ 0", "bound", handicap_variance),
    ("L3-step", "v(f,H_α) = (v(f,H) + α·v(f))/(1−α)", "equality", handicap_is_holding),
    ("L4", "v(f,Q_1) ≤ (2M−1)·v(f,Q_M), uniform kernel, Q_M ≥ 0", "bound", one_draw_uniform),
    ("L4-any", "the same for every other kernel", "bound", one_draw_any_kernel),
    ("L4-held", "the same for both chains held, any proposal", "bound", one_draw_held),
    ("L5-serial", "running time of Q_1 ≤ 2 × that of Q_M, serial", "bound", running_time_serial),
    ("L5-parallel", "running time of Q_1 ≤ 2 × that of Q_M, M processors", "bound", running_time_parallel),
    ("L6", "v(f, Algorithm 3) ≥ v(f,Q_∞)", "bound", wilkinson_is_worse),
    ("lemma", "Σ|t_i−c| ≤ |Σt_i−c| + (M−1)c", "bound", deterministic_lemma),
    ("any-kernel", "T_1 ≤cx T_M handicapped by 1−1/M, at all kinks", "bound", one_draw_convex_order),
    ("star", "v(f,Q_1) ≤ M·v(f,Q_M) + (M−1)·v(f), any proposal", "bound", star),
    ("holding", "v(f,½I+½Q) = 2v(f,Q) + v(f)", "equality", holding_variance),
    ("positivity", "Q_M ≥ 0: independence, Gaussian; held always", "equality", nonnegative_proposals),
    ("start", "accept at M = 1 and add M−1 draws: stationary for Q_M", "equality", start_is_stationary),
    ("early-law", "early rejection: same law of the next state", "equality", early_rejection_same_chain),
    ("early-cost", "early rejection: expected simulations", "equality", early_rejection_cost),
    ("one-hit", "one-hit race accepts with τ'/(τ+τ'−ττ')", "equality", one_hit_acceptance),
    ("r-hit", "r-hit: balance pair by pair, acceptance", "equality", r_hit_balance),
    ("at-eps", "weights K_ε'(d)/K_ε(d) give the target at ε'", "equality", smaller_eps),
    ("gain", "gain(M) ≤ (M/c_M)·κ/(κ−M+1) for M < κ+1", "bound", certificate),
    ("gain-positive", "gain(M) ≤ min(κ, 2M−1)/c_M, Q_M ≥ 0", "bound", certificate_nonnegative),
    ("gain-2δ", "gain(M) ≤ 2δ at nominal cost", "bound", certificate_discount),
    ("between", "c_M·v(f,Q_M) ≥ v(f,Q_N) for 1 < M < N", "bound", between_two_measured),
)


# --- results ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One statement: on how many instances it was checked, and how close the worst came to breaking it.

    worst is the largest ratio to the bound (at most 1 where the statement holds); for an equality it is 1 +
    the largest relative difference. witness is the instance that gave it; failures are instances where it
    passed 1.
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
class Search:
    """The largest value hill climbing found of one quantity, its bound, and where."""

    quantity: str
    value: float
    bound: float | None
    pseudo_samples: int
    evaluations: int
    instance: dict[str, Any]


@dataclass(frozen=True)
class Verification:
    """What verify found; print it for a table."""

    trials: int
    seed: int | None
    rows: tuple[Row, ...]
    searches: tuple[Search, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def to_json(self) -> str:
        """Everything, instances included, as JSON text."""
        rows = [{**asdict(row), "ok": row.ok, "tightness": row.tightness} for row in self.rows]
        searches = [asdict(search) for search in self.searches]
        everything = {"ok": self.ok, "trials": self.trials, "seed": self.seed, "rows": rows, "searches": searches}
        return json.dumps(everything, ensure_ascii=False)

    def __str__(self) -> str:
        wide = max(len(row.statement) for row in self.rows)
        slim = max(len(row.name) for row in self.rows)
        lines = [f"{'':{slim}}  {'statement':{wide}}  instances  worst ratio  how tight"]
        for row in self.rows:
            ratio = f"{row.worst:.6f}" if row.worst < 1e4 else f"{row.worst:.3g}"
            lines.append(f"{row.name:{slim}}  {row.statement:{wide}}  {row.instances:9d}  {ratio:>11}  {row.tightness}")
        if self.searches:
            lines += ["", "Searched for the largest (hill climbing; every f at once)"]
        for search in self.searches:
            bound = "none proved" if search.bound is None else f"{search.bound:.4f}"
            lines.append(f"  {search.quantity:44}  M = {search.pseudo_samples:2d}: {search.value:.4f}  (bound {bound})")
        failed = [row.name for row in self.rows if not row.ok]
        lines += ["", f"FAILED: {', '.join(failed)}" if failed else f"All {len(self.rows)} statements hold."]
        return "\n".join(lines)


def _run(instances: Iterator[Instance], chosen: tuple[str, ...]) -> tuple[Row, ...]:
    statements = [entry for entry in STATEMENTS if entry[0] in chosen]
    counts = dict.fromkeys((name for name, *_ in statements), 0)
    worst: dict[str, tuple[float, Instance | None]] = dict.fromkeys(counts, (0.0, None))
    failures: dict[str, list[dict[str, Any]]] = {name: [] for name in counts}
    failed = dict.fromkeys(counts, 0)
    for instance in instances:
        work = Work(instance)
        for name, _, _, check in statements:
            reason = ""
            try:
                ratios = list(check(work))
            except (ValueError, ArithmeticError, LookupError) as error:
                # A chain that cannot even be analysed breaks the statement; say why and go on.
                ratios, reason = [float("inf")], str(error)
            if not ratios:
                continue
            ratio = max(ratios) if not np.isnan(ratios).any() else float("inf")
            counts[name] += 1
            if ratio > worst[name][0]:
                worst[name] = (ratio, instance)
            if ratio > 1 + TOLERANCE:
                failed[name] += 1
                if len(failures[name]) < KEPT_FAILURES:
                    kept = {"statement": name, "ratio": min(ratio, 1e300), "reason": reason}
                    failures[name].append({**kept, "instance": asdict(instance)})
    rows = []
    for name, statement, kind, _ in statements:
        ratio, where = worst[name]
        witness = None if where is None else asdict(where)
        kept_failures = tuple(failures[name])
        ratio = min(ratio, 1e300)
        rows.append(Row(name, statement, kind, counts[name], ratio, witness, kept_failures, failed[name]))
    return tuple(rows)


# --- search -------------------------------------------------------------------------------------------------


def _softmax(x: Array) -> Array:
    rows = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(rows / rows.sum(axis=-1, keepdims=True))


def _point_in_space(x: Array, size: int) -> exact.Problem:
    """A problem from unconstrained numbers: prior, hit probabilities and the proposal's rows."""
    prior, tau = _softmax(x[:size]), 1 / (1 + np.exp(-x[size : 2 * size]))
    return exact.Problem(prior, _softmax(x[2 * size :].reshape(size, size)), exact.bernoulli(tau))


def _largest_ratio(problem: exact.Problem, pseudo_samples: int, positive: bool) -> float:
    """The largest v(f,Q_1)/v(f,Q_M) over f; −1 where Q_M is asked to be non-negative and is not."""
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


def _search(seed: int, steps: int) -> tuple[Search, ...]:
    found = []
    for number, (pseudo_samples, positive) in enumerate(itertools.product((2, 4, 16), (True, False))):
        rng = np.random.default_rng([seed, 1 << 20, number])
        value, problem = _climb(rng, pseudo_samples, positive, steps)
        stored = {
            **asdict(draw_instance(seed, 0)),
            "proposal_kind": "dense",
            "law_kind": "uniform",
            "prior": problem.prior.tolist(),
            "proposal": problem.proposal.tolist(),
            "values": problem.law.values.tolist(),
            "probabilities": problem.law.probabilities.tolist(),
            "pseudo_samples": pseudo_samples,
            "more_pseudo_samples": pseudo_samples + 1,
            "distance_probabilities": np.full((len(problem.prior), 4), 0.25).tolist(),
            "f": np.arange(len(problem.prior), dtype=float).tolist(),
        }
        which = "Q_M ≥ 0" if positive else "any proposal"
        factor = 2 * pseudo_samples - 1
        for quantity, scale in (("v(f,Q_1)/((2M−1)·v(f,Q_M))", factor), ("C_1/C_M", pseudo_samples)):
            bound = factor / scale if positive else None
            found.append(Search(f"{quantity}, {which}", value / scale, bound, pseudo_samples, steps, stored))
    return tuple(sorted(found, key=lambda search: search.quantity, reverse=True))


# --- public -------------------------------------------------------------------------------------------------


def verify(
    trials: int = 2000,
    seed: int = 0,
    *,
    statements: Iterable[str] | None = None,
    search_steps: int | None = None,
) -> Verification:
    """Check every statement on `trials` random problems and search for the largest ratios.

    statements: names of rows to check (the first column of the table), all by default.
    search_steps: chains tried per search, 1500 unless there are fewer trials; 0 leaves the search out.
    """
    from threadpoolctl import threadpool_limits

    for name, value, least in (("trials", trials, 1), ("seed", seed, 0)):
        if int(value) != value or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    names = tuple(name for name, *_ in STATEMENTS)
    chosen = names if statements is None else tuple(statements)
    if unknown := [name for name in chosen if name not in names] or (["(none)"] if not chosen else []):
        raise ValueError(f"statements has {unknown[0]!r}: choose from {', '.join(names)}")
    steps = min(1500, trials) if search_steps is None else search_steps
    # Thousands of tiny factorisations: a second BLAS thread only costs time.
    with threadpool_limits(1):
        rows = _run((draw_instance(seed, trial) for trial in range(trials)), chosen)
        searches = _search(seed, steps) if steps else ()
    return Verification(trials, seed, rows, searches)


def rerun(instance: str | dict[str, Any]) -> Verification:
    """Check every statement on one stored instance: a failure or witness of a Row, or an instance, as JSON or dict."""
    stored = json.loads(instance) if isinstance(instance, str) else instance
    stored = stored.get("instance", stored)
    try:
        loaded = Instance(**stored)
    except TypeError as error:
        raise ValueError(f"this is not a stored instance ({error}): give a failure or witness from verify") from None
    return Verification(1, None, _run(iter([loaded]), tuple(name for name, *_ in STATEMENTS)), ())
