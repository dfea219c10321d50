"""Exact chains against answers worked out another way: by hand, by enumeration, by simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from threadpoolctl import threadpool_limits

from onedraw.paper import finite_chains as exact

SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])


@pytest.fixture(autouse=True)
def _one_thread():
    with threadpool_limits(1):
        yield


def random_problem(seed, size=4, law="uniform"):
    rng = np.random.default_rng(seed)
    prior, proposal = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size=size)
    if law == "uniform":
        return exact.Problem(prior, proposal, exact.bernoulli(rng.uniform(0.1, 0.9, size)))
    values = rng.uniform(size=(size, 3))
    return exact.Problem(prior, proposal, exact.Law(values, rng.dirichlet(np.ones(3), size=size)))


def two_state_variance(leave_0, leave_1):
    """v(f) and v(f, P) of f = (0, 1) for the two-state chain with these probabilities of leaving."""
    weight = leave_0 / (leave_0 + leave_1)
    v = weight * (1 - weight)
    return v, v * (2 - leave_0 - leave_1) / (leave_0 + leave_1)


# --- laws


def test_average_of_hits_is_binomial():
    law = exact.average(exact.bernoulli([0.0, 0.3, 1.0]), 5)
    expected = [[math.comb(5, j) * t**j * (1 - t) ** (5 - j) for j in range(6)] for t in (0.0, 0.3, 1.0)]
    np.testing.assert_allclose(law.probabilities, expected, rtol=1e-12)
    np.testing.assert_array_equal(law.values[1], np.arange(6) / 5)


def test_average_of_any_law_by_enumeration():
    problem = random_problem(1, law="general")
    law = exact.average(problem.law, 3)
    for row in range(4):
        for power in (1, 2, 5):
            brute = sum(
                np.mean(problem.law.values[row, list(path)]) ** power
                * problem.law.probabilities[row, list(path)].prod()
                for path in itertools.product(range(3), repeat=3)
            )
            assert (law.values[row] ** power * law.probabilities[row]).sum() == pytest.approx(brute, rel=1e-12)
    assert (law.probabilities > 0).sum(axis=1).tolist() == [10] * 4  # multisets of 3 out of 3


def test_average_merges_equal_values_on_a_lattice():
    law = exact.Law(np.tile([0.0, 0.1, 0.3], (2, 1)), np.full((2, 3), 1 / 3))
    assert exact.average(law, 30).values.shape[1] <= 91


def test_average_refuses_to_blow_up():
    law = exact.Law(np.sqrt([[2.0, 3.0, 5.0, 7.0, 11.0]]) / 4, np.full((1, 5), 0.2))
    with pytest.raises(ValueError, match=r"more than 1000 values: put the law on a lattice"):
        exact.average(law, 32, max_values=1000)
    on_lattice = exact.lattice(law, 50)
    np.testing.assert_allclose(on_lattice.mean, law.mean, rtol=1e-13)
    assert exact.average(on_lattice, 32, max_values=2000).values.shape[1] <= 1601


def test_handicap_by_hand():
    law = exact.handicap(exact.bernoulli([0.4]), 0.75)
    assert dict(zip(law.values[0], law.probabilities[0], strict=True)) == pytest.approx({0.0: 0.15, 4.0: 0.1})
    np.testing.assert_allclose(law.mean, [0.4])


# --- chains by hand


def test_one_draw_by_hand():
    # Swapping proposal, equal prior: 0 → 1 needs a hit at 1 (0.4), and back a hit at 0 (0.2).
    chain = exact.pseudo_marginal(exact.Problem([1, 1], SWAP, exact.bernoulli([0.2, 0.4])), 1)
    np.testing.assert_allclose(chain.transition, [[0.6, 0.4], [0.2, 0.8]])
    np.testing.assert_allclose(chain.stationary, [1 / 3, 2 / 3])
    v, expected = two_state_variance(0.4, 0.2)
    assert exact.variance([0, 1], chain) == pytest.approx(v)
    assert exact.asymptotic_variance([0, 1], chain) == pytest.approx(expected)
    assert exact.acceptance_rate(chain) == pytest.approx(0.4 / 3 + 0.2 * 2 / 3)
    np.testing.assert_allclose(exact.spectrum(chain), [0.4, 1.0])
    assert exact.spectral_gap(chain) == pytest.approx(0.6)


def test_two_draws_by_hand():
    # States (0, T=½), (0, T=1), (1, ½), (1, 1) with one point sure of hits: (1, ½) does not exist.
    chain = exact.pseudo_marginal(exact.Problem([1, 1], SWAP, exact.bernoulli([0.5, 1.0])), 2)
    assert chain.point.tolist() == [0, 0, 1]
    np.testing.assert_allclose(chain.transition, [[0, 0, 1], [0, 0, 1], [0.5 * 0.5, 0.25, 0.5]])
    np.testing.assert_allclose(chain.stationary, np.array([0.5 * 0.5, 0.25, 1.0]) / 1.5)


def test_marginal_wilkinson_and_one_hit_by_hand():
    problem = exact.Problem([1, 1], SWAP, exact.bernoulli([0.2, 0.4]))
    np.testing.assert_allclose(exact.marginal(problem).transition, [[0, 1], [0.5, 0.5]])
    np.testing.assert_allclose(exact.wilkinson(problem).transition, [[0.6, 0.4], [0.2, 0.8]])
    either = 0.2 + 0.4 - 0.08
    race = exact.one_hit(problem)
    np.testing.assert_allclose(race.transition[[0, 1], [1, 0]], [0.4 / either, 0.2 / either])
    np.testing.assert_allclose(race.simulations, 2 / either)


def test_missing_prior_mass_and_one_way_moves_are_never_accepted():
    proposal = [[0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [0.2, 0.4, 0.4]]
    problem = exact.Problem([1, 1, 0], proposal, exact.bernoulli([0.5, 0.5, 0.5]))
    for chain in (exact.pseudo_marginal(problem, 2), exact.wilkinson(problem), exact.one_hit(problem)):
        assert set(chain.point) == {0, 1}
    one_way = exact.Problem([1, 1, 1], proposal, exact.bernoulli([0.5, 0.5, 0.5]))
    chain = exact.pseudo_marginal(one_way, 1)
    assert chain.transition[2, 1] == 0  # 1 never proposes 2
    assert exact.wilkinson(one_way).transition[2, 1] == 0


def test_periodic_chain_has_variance_zero():
    chain = exact.marginal(exact.Problem([1, 1], SWAP, exact.bernoulli([1, 1])))
    assert exact.asymptotic_variance([0, 1], chain) == pytest.approx(0, abs=1e-15)
    assert not exact.is_nonnegative(chain)
    assert exact.spectral_gap(chain, absolute=True) == pytest.approx(0)
    assert exact.is_nonnegative(exact.lazy(chain))


def test_handicap_bound_needs_positivity():
    # v(f, H) = 0 for the swapping chain, so no factor times it bounds the handicapped chain's α/(1 − α)·v(f).
    problem, alpha = exact.Problem([1, 1], SWAP, exact.bernoulli([1, 1])), 0.6
    worse = exact.pseudo_marginal(exact.Problem([1, 1], SWAP, exact.handicap(problem.law, alpha)))
    v = exact.variance([0, 1], worse)
    assert exact.asymptotic_variance([0, 1], worse) == pytest.approx(alpha / (1 - alpha) * v)


@pytest.mark.parametrize("law", ["uniform", "general"])
def test_every_kernel_keeps_its_law(law):
    problem = random_problem(2, law=law)
    chains = [exact.pseudo_marginal(problem, m) for m in (1, 2, 3)]
    chains += [exact.marginal(problem), exact.wilkinson(problem), exact.lazy(chains[1], 0.3)]
    if law == "uniform":
        chains += [exact.r_hit(problem, r) for r in (1, 2, 4)]
    for chain in chains:
        np.testing.assert_allclose(exact.solve_stationary(chain.transition), chain.stationary, atol=1e-14)
        flow = chain.stationary[:, None] * chain.transition
        np.testing.assert_allclose(flow, flow.T, atol=1e-16)
        np.testing.assert_allclose(np.bincount(chain.point, chain.stationary), problem.target, atol=1e-15)


# --- one step of each algorithm, over all its outcomes


@pytest.mark.parametrize("law", ["uniform", "general"])
def test_pseudo_marginal_step_by_enumeration(law):
    problem, m = random_problem(3, size=3, law=law), 2
    chain, average = exact.pseudo_marginal(problem, m), exact.average(problem.law, m)
    value = average.values[chain.point, chain.outcome]
    for state in range(len(chain.point)):
        i, got = chain.point[state], np.zeros(len(chain.point))
        for j in range(3):
            for path in itertools.product(range(problem.law.values.shape[1]), repeat=m):
                k = problem.law.values[j, list(path)].mean()
                chance = problem.proposal[i, j] * problem.law.probabilities[j, list(path)].prod()
                ratio = problem.prior[j] * k * problem.proposal[j, i]
                ratio /= problem.prior[i] * value[state] * problem.proposal[i, j]
                there = np.flatnonzero((chain.point == j) & (np.abs(value - k) < 1e-12))
                if len(there):
                    got[there[0]] += chance * min(1, ratio)
        assert got.sum() == pytest.approx(chain.acceptance[state], rel=1e-12)
        got[state] += 1 - got.sum()
        np.testing.assert_allclose(chain.transition[state], got, atol=1e-14)


def test_r_hit_acceptance_by_enumeration():
    problem = exact.Problem([0.3, 0.7], [[0.4, 0.6], [0.8, 0.2]], exact.bernoulli([0.3, 0.6]))
    tau, hits, longest = [0.3, 0.6], 3, 150

    def waiting(point, count):
        """P(count-th hit at draw N): the last draw hits, count − 1 of the others do."""
        t = tau[point]
        return [0.0] * count + [
            math.comb(n - 1, count - 1) * t**count * (1 - t) ** (n - count) for n in range(count, longest)
        ]

    chain = exact.r_hit(problem, hits)
    for i, j in ((0, 1), (1, 0), (0, 0)):
        ratio = problem.prior[j] * problem.proposal[j, i] / (problem.prior[i] * problem.proposal[i, j])
        here, there = waiting(i, hits - 1), waiting(j, hits)
        accept = sum(
            here[n] * there[other] * min(1, ratio * n / (other - 1))
            for n in range(hits - 1, longest)
            for other in range(hits, longest)
        )
        if i != j:
            assert chain.transition[i, j] == pytest.approx(problem.proposal[i, j] * accept, rel=1e-9)
    assert chain.tail <= 1e-12


def test_r_hit_cut_short_says_so_and_stays_reversible():
    problem = random_problem(4)
    full, cut = exact.r_hit(problem, 2), exact.r_hit(problem, 2, tail=0.02)
    flow = cut.stationary[:, None] * cut.transition
    np.testing.assert_allclose(flow, flow.T, atol=1e-16)
    lost = full.acceptance - cut.acceptance
    assert (lost >= -1e-14).all() and lost.max() <= cut.tail <= 0.02
    assert lost.max() > 1e-6  # the cut is felt, so the bound is not idle


def test_r_hit_cost():
    problem = random_problem(5)
    tau = problem.law.mean
    for r in (2, 3):
        expected = r * problem.proposal @ (1 / tau) + (r - 1) / tau
        np.testing.assert_allclose(exact.r_hit(problem, r).simulations, expected)


# --- asymptotic variance


def finite_variance(chain, f, steps):
    """n·Var(mean of f over n stationary steps), from powers of the matrix."""
    g = np.asarray(f, dtype=float)[chain.point]
    g = g - chain.stationary @ g
    moved, total = g, chain.stationary @ g**2
    for k in range(1, steps):
        moved = chain.transition @ moved
        total += 2 * (1 - k / steps) * (chain.stationary @ (g * moved))
    return total


def test_variance_of_every_path():
    # Var of the mean over 8 steps, by listing all 3^8 paths of the chain: an independent meaning for v(f, P).
    problem = random_problem(6, size=3)
    chain = exact.pseudo_marginal(problem, 1)
    f, steps = np.array([0.0, 1.0, 5.0]), 8
    paths = np.array(list(itertools.product(range(3), repeat=steps)))
    chance = chain.stationary[paths[:, 0]] * chain.transition[paths[:, :-1], paths[:, 1:]].prod(axis=1)
    means = f[paths].mean(axis=1)
    listed = steps * (chance @ means**2 - (chance @ means) ** 2)
    assert finite_variance(chain, f, steps) == pytest.approx(listed, rel=1e-12)
    # As the run grows the same quantity tends to v(f, P), at rate 1/n.
    long = [finite_variance(chain, f, n) for n in (4000, 8000)]
    assert 2 * long[1] - long[0] == pytest.approx(exact.asymptotic_variance(f, chain), rel=1e-9)


def simulate(problem, pseudo_samples, chains, steps, rng, redraw=False):
    """Algorithm 2 in plain NumPy from a stationary start; returns θ indices (steps, chains) and acceptances."""
    chain = exact.pseudo_marginal(problem, pseudo_samples)
    start = rng.choice(len(chain.point), p=chain.stationary, size=chains)
    law = exact.average(problem.law, pseudo_samples)
    theta, k = chain.point[start], law.values[chain.point[start], chain.outcome[start]]
    cumulative, tau = problem.proposal.cumsum(axis=1), problem.law.mean
    path, accepted = np.empty((steps, chains), dtype=int), np.zeros(chains)
    for t in range(steps):
        if redraw:
            k = np.maximum(rng.binomial(pseudo_samples, tau[theta]) / pseudo_samples, 1e-300)
        new = (rng.random(chains)[:, None] > cumulative[theta]).sum(axis=1)
        estimate = rng.binomial(pseudo_samples, tau[new]) / pseudo_samples
        ratio = problem.prior[new] * estimate * problem.proposal[new, theta]
        ratio /= problem.prior[theta] * k * problem.proposal[theta, new]
        accept = (rng.random(chains) <= ratio) & (estimate > 0)
        theta, k = np.where(accept, new, theta), np.where(accept, estimate, k)
        path[t], accepted = theta, accepted + accept
    return path, accepted / steps


def test_simulation_agrees():
    problem, f = random_problem(7), np.array([0.0, 1.0, -1.0, 3.0])
    chains, steps = 6000, 200
    # A variance from 6000 means has relative error √(2/6000) = 1.8 %; 4.5 of them: wrong alarm once in 100,000.
    tolerance = 4.5 * math.sqrt(2 / chains)
    for m in (1, 3):
        chain = exact.pseudo_marginal(problem, m)
        expected = finite_variance(chain, f, steps)
        path, accepted = simulate(problem, m, chains, steps, np.random.default_rng(m))
        assert steps * f[path].mean(axis=0).var() == pytest.approx(expected, rel=tolerance)
        error = accepted.std() / math.sqrt(chains)
        assert abs(accepted.mean() - exact.acceptance_rate(chain)) < 4.5 * error
        wrong, _ = simulate(problem, m, chains, steps, np.random.default_rng(m), redraw=True)
        assert abs(steps * f[wrong].mean(axis=0).var() / expected - 1) > 2 * tolerance


def test_independence_with_equal_hits_has_a_closed_form():
    # q = target and τ the same everywhere: each acceptance is a fresh draw, so κ = 2·E[1/a(T)] − 1.
    prior, tau, m = np.array([0.2, 0.5, 0.3]), 0.35, 6
    problem = exact.Problem(prior, np.tile(prior, (3, 1)), exact.bernoulli([tau] * 3))
    hits = np.arange(1, m + 1)
    p = stats.binom.pmf(hits, m, tau)
    leave = np.minimum(1, hits / hits[:, None]) @ p
    kappa = 2 * ((hits * p / (m * tau)) @ (1 / leave)) - 1
    chain = exact.pseudo_marginal(problem, m)
    assert exact.integrated_autocorrelation([3.0, -1.0, 2.0], chain) == pytest.approx(kappa, rel=1e-12)


def toy(points, eps=0.25, **kwargs):
    grid = np.linspace(-5, 5, points)

    def tau(theta):
        return stats.norm.cdf(2 + eps - theta) - stats.norm.cdf(2 - eps - theta)

    return exact.discretise(stats.norm.pdf, tau, grid, **kwargs)


def test_prior_as_proposal_by_hit_counts():
    """60 points × M = 64: the ratio depends on hit counts alone, which gives a 64-state system for the same answer."""
    problem, m = toy(60, proposal="independence"), 64
    chain = exact.pseudo_marginal(problem, m)
    hits = np.arange(1, m + 1)
    mass = stats.binom.pmf(hits, m, problem.law.mean[:, None]) * problem.prior[:, None]  # (θ, j)
    p = mass.sum(axis=0)
    accept = np.minimum(1, hits / hits[:, None])  # from j (row) to j'
    leave = accept @ p
    rate = (hits * p / (hits @ p)) @ leave
    assert exact.acceptance_rate(chain) == pytest.approx(rate, rel=1e-10)
    # h(θ, j) = (f(θ) + g(j))/a(j) with g = A(f̄ + g)/a over j'; g is fixed up to a multiple of a, so pin one.
    f = problem.theta - problem.target @ problem.theta
    mean_f = f @ mass / p
    moves = accept * p / leave
    g = np.linalg.lstsq(np.eye(m) - moves, moves @ mean_f, rcond=None)[0]
    weight = mass * hits / (hits @ p)
    h = (f[:, None] + g) / leave
    expected = (weight * f[:, None] * (2 * h - f[:, None])).sum()
    assert exact.asymptotic_variance(problem.theta, chain) == pytest.approx(expected, rel=1e-8)


def test_acceptance_of_the_study():
    # Section 7: 0.052157 at ε = 0.25, M = 1; the grid's own error is far below the last digit given.
    problem = toy(801, proposal="independence")
    assert exact.acceptance_rate(exact.pseudo_marginal(problem, 1)) == pytest.approx(0.052157, abs=6e-7)


def test_variance_form_answers_for_every_function():
    problem = random_problem(8, law="general")
    chain = exact.pseudo_marginal(problem, 2)
    f = np.random.default_rng(0).normal(size=(4, 5))
    form = exact.variance_form(chain)
    several = exact.asymptotic_variance(f, chain)
    np.testing.assert_allclose(several, np.einsum("im,ij,jm->m", f, form, f), rtol=1e-11)
    assert several[0] == pytest.approx(exact.asymptotic_variance(f[:, 0], chain), rel=1e-13)


def test_rare_moves_keep_their_digits():
    # Hits of probability 1e-12: subtracting from 1 would leave four digits.
    chain = exact.pseudo_marginal(exact.Problem([1, 1], SWAP, exact.bernoulli([1e-12, 3e-12])), 1)
    _, expected = two_state_variance(3e-12, 1e-12)
    assert exact.asymptotic_variance([0, 1], chain) == pytest.approx(expected, rel=1e-12)


def test_holding():
    problem, f = random_problem(9), np.array([1.0, 0.0, 2.0, -1.0])
    chain = exact.pseudo_marginal(problem, 2)
    held = exact.lazy(chain)
    v = exact.asymptotic_variance(f, chain)
    assert exact.asymptotic_variance(f, held) == pytest.approx(2 * v + exact.variance(f, chain), rel=1e-12)
    assert exact.acceptance_rate(held) == exact.acceptance_rate(chain)
    np.testing.assert_allclose(held.simulations, 1.0)
    np.testing.assert_allclose(exact.spectrum(held), 0.5 + 0.5 * exact.spectrum(chain), atol=1e-14)


@pytest.mark.parametrize("seed", range(6))
def test_is_nonnegative_agrees_with_the_spectrum(seed):
    chain = exact.pseudo_marginal(random_problem(seed, size=3), 2)
    assert exact.is_nonnegative(chain) == (exact.spectrum(chain)[0] > -1e-10)


def test_a_chain_that_is_not_reversible():
    # A three-cycle with some holding: v(f, P) has a meaning, a real spectrum it has not.
    transition = 0.4 * np.eye(3) + 0.6 * np.roll(np.eye(3), 1, axis=1)
    index = np.arange(3)
    chain = exact.Chain(transition, np.full(3, 1 / 3), index, 0 * index, np.ones(3), np.ones(3), 3)
    f = np.array([1.0, 0.0, 5.0])
    long = [finite_variance(chain, f, n) for n in (2000, 4000)]
    assert exact.asymptotic_variance(f, chain) == pytest.approx(2 * long[1] - long[0], rel=1e-9)
    with pytest.raises(ValueError, match="not reversible"):
        exact.spectrum(chain)


def test_factor_two_is_sharp():
    """Two points, hits sure at one and rare at the other: v(f,Q_1)/v(f,Q_M) → 2M − 1 with Q_M ≥ 0 (docs/theory.md)."""
    for m in (2, 5, 50):
        tau = 1e-7
        problem = exact.Problem([1, m / (1 - 2 * m * tau)], SWAP, exact.bernoulli([1, tau]))
        one, many = exact.pseudo_marginal(problem, 1), exact.pseudo_marginal(problem, m)
        assert exact.is_nonnegative(many, 1e-14)
        ratio = exact.asymptotic_variance([0, 1], one) / exact.asymptotic_variance([0, 1], many)
        assert 0.9999 * (2 * m - 1) < ratio < 2 * m - 1
        held = [exact.asymptotic_variance([0, 1], exact.lazy(chain)) for chain in (one, many)]
        assert held[0] / held[1] == pytest.approx((4 * m - 1) / 3, rel=1e-4)


# --- cost


@pytest.mark.parametrize("law", ["uniform", "general"])
@pytest.mark.parametrize("m", [1, 3])
def test_early_rejection_cost_by_enumeration(law, m):
    problem = random_problem(10, size=3, law=law)
    chain, average = exact.pseudo_marginal(problem, m), problem.law if m == 1 else exact.average(problem.law, m)
    cost = exact.expected_simulations(problem, m)
    for state in range(len(chain.point)):
        i = chain.point[state]
        estimate = problem.prior[i] * average.values[i, chain.outcome[state]]
        draws = before = 0.0
        for j in range(3):
            z = problem.prior[j] * problem.proposal[j, i] / (estimate * problem.proposal[i, j])
            before += problem.proposal[i, j] * m * min(1, z)
            for path in itertools.product(range(problem.law.values.shape[1]), repeat=m):
                k = problem.law.values[j, list(path)]
                chance = problem.proposal[i, j] * problem.law.probabilities[j, list(path)].prod()
                # Draw d + 1 happens iff u has not passed any of the checks 0..d.
                checks = [z * (k[:d].sum() + m - d) / m for d in range(m)]
                draws += chance * sum(min(1, *checks[: d + 1]) for d in range(m))
        assert cost.between_by_state[state] == pytest.approx(draws, rel=1e-12)
        assert cost.before_by_state[state] == pytest.approx(before, rel=1e-12)
    assert cost.between == pytest.approx(chain.stationary @ cost.between_by_state)
    assert cost.between <= cost.before <= cost.plain == m


def test_early_rejection_cost_of_one_draw_is_prior_acceptance():
    problem = toy(41, proposal="random_walk", scale=0.7)
    flow = problem.prior[:, None] * problem.proposal
    expected = problem.target @ (np.minimum(flow, flow.T).sum(axis=1) / problem.prior)
    assert exact.expected_simulations(problem, 1).between == pytest.approx(expected, rel=1e-12)
    assert exact.expected_simulations(toy(41, proposal="independence"), 1).before == pytest.approx(1)


def test_early_rejection_needs_a_true_bound():
    problem = random_problem(11)
    handicapped = exact.Problem(problem.prior, problem.proposal, exact.handicap(problem.law, 0.5))
    with pytest.raises(ValueError, match=r"largest value 2\.0, got 1\.0"):
        exact.expected_simulations(handicapped)
    assert exact.expected_simulations(handicapped, bound=2.0).before > 0


# --- problems


def test_discretised_random_walk():
    grid = np.array([0.0, 1.0, 3.0])
    problem = exact.discretise([1, 2, 1], [0.1, 0.2, 0.3], grid, scale=2.0)
    kernel = np.exp(-0.5 * ((grid[:, None] - grid) / 2) ** 2) * [1.0, 1.5, 2.0]
    np.testing.assert_allclose(problem.proposal, kernel / kernel.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(problem.prior, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(
        exact.discretise(np.ones_like, [0.1] * 3, grid, scale=1.0).prior, np.array([2, 3, 4]) / 9
    )
    # q_ij = s_ij d_j/c_i with s positive definite keeps Q_M ≥ 0, corrected at the ends or not.
    assert exact.is_nonnegative(exact.pseudo_marginal(toy(30, scale=0.8), 3))


def test_discretised_tables_laws_and_matrices():
    grid = np.linspace(0, 1, 5)
    table = exact.discretise(np.ones(5), ([-1.0, 1.0], [0.0, 1.0]), grid, proposal="independence")
    np.testing.assert_allclose(table.law.mean, (1 + grid) / 2)
    law = exact.Law(np.tile([0.2, 0.9], (5, 1)), np.full((5, 2), 0.5))
    problem = exact.discretise(np.ones(5), law, grid, proposal=np.full((5, 5), 0.2))
    assert problem.law is law
    with pytest.raises(ValueError, match=r"leaves the table of tau \[0\.5, 1\.0\]"):
        exact.discretise(np.ones(5), ([0.5, 1.0], [0.0, 1.0]), grid, proposal="independence")


GOOD = exact.bernoulli([0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact.bernoulli([0.5, 1.5]), r"tau must be at most 1, got 1\.5"),
        (lambda: exact.bernoulli([-0.1]), r"tau must not be negative, got -0\.1"),
        (lambda: exact.bernoulli([np.nan]), "tau must be finite, got nan"),
        (lambda: exact.bernoulli(0.5), r"tau must have 1 axes, got shape \(\)"),
        (lambda: exact.Law([[0, 1]], [[0.5, 0.4]]), r"row 0 sums to 0\.9, not 1: divide"),
        (lambda: exact.Law([[0, 1]], [[1.0]]), "must have one shape"),
        (lambda: exact.average(GOOD, 0), "pseudo_samples must be a whole number of at least 1, got 0"),
        (lambda: exact.handicap(GOOD, 1.0), r"alpha must be in \[0, 1\), got 1\.0"),
        (lambda: exact.lattice(GOOD, 0), "points must be a whole number of at least 1"),
        (lambda: exact.Problem([1, 1], [[1]], GOOD), "give all three on the same grid"),
        (lambda: exact.Problem([1, 1], SWAP * 0.5, GOOD), r"proposal row 0 sums to 0\.5"),
        (lambda: exact.Problem([1, 1], SWAP, GOOD, theta=[1.0]), r"theta must have shape \(2,\)"),
        (lambda: exact.Problem([1, 0], SWAP, exact.bernoulli([0, 1])), "no target: enlarge eps"),
        (lambda: exact.wilkinson(exact.Problem([1, 1], SWAP, exact.handicap(GOOD, 0.5))), r"at most 1, got 2\.0"),
        (
            lambda: exact.one_hit(exact.Problem([1, 1], SWAP, exact.Law([[0.5, 1]] * 2, [[0.5, 0.5]] * 2))),
            "need the uniform kernel",
        ),
        (lambda: exact.r_hit(exact.Problem([1, 1], SWAP, GOOD), 0), "hits must be a whole number"),
        (lambda: exact.r_hit(exact.Problem([1, 1], SWAP, exact.bernoulli([1e-9, 1])), 2), "raise tail"),
        (lambda: exact.lazy(exact.marginal(exact.Problem([1, 1], SWAP, GOOD)), 1.0), "hold must be in"),
        (lambda: exact.variance([1.0], exact.marginal(exact.Problem([1, 1], SWAP, GOOD))), r"shape \(2,\)"),
        (
            lambda: exact.asymptotic_variance([0, 1], exact.marginal(exact.Problem([1, 1], np.eye(2), GOOD))),
            r"cannot go from every grid point to every other \(look at points \[0, 1\]\)",
        ),
        (
            lambda: exact.asymptotic_variance(
                np.arange(4),
                exact.marginal(exact.discretise(np.ones(4), [0.5] * 4, [0, 1, 10, 11], scale=0.5)),
            ),
            "moves too rare for double precision",
        ),
        (lambda: exact.discretise([1, 1], [0.5, 0.5], [1.0, 0.0]), "grid must be an increasing vector"),
        (lambda: exact.discretise([1, 1], [0.5, 0.5], [0.0, 1.0]), "scale must be positive"),
        (lambda: exact.discretise([1, 1], [0.5, 0.5], [0.0, 1.0], proposal="walk"), "got 'walk'"),
        (lambda: exact.discretise([0, 0], [0.5, 0.5], [0.0, 1.0]), "prior is 0 on the whole grid"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_too_many_states_are_refused(monkeypatch):
    monkeypatch.setattr(exact, "MAX_STATES", 100)
    with pytest.raises(ValueError, match=r"the chain has \d+ states, more than 100 .* use fewer grid points"):
        exact.pseudo_marginal(toy(30, proposal="independence"), 8)


def test_researchers_names_are_imported_when_used():
    from onedraw import paper
    from onedraw.results.efficiency import running_time

    assert set(paper.__all__) <= set(dir(paper))
    for name in paper.__all__:
        assert getattr(paper, name) is not None
    assert paper.Problem is exact.Problem and paper.running_time is running_time
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = paper.nothing
