"""Samplers that find their own tolerance against rejection, the chain, and other packages' sequential samplers.

An effective draw is one independent draw's worth of accuracy of the posterior mean. For weighted draws of any package
it comes from the same formula; for `smc` the errors of particles with a common ancestor are added up first.
"""

import math

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.peers import found
from benchmarks.timing import report
from onedraw.results.monte_carlo_error import Draws, monte_carlo

SEEDS = (1, 2)
PEERS = {"pyabc": 500, "elfi": 10_000}
"""Samples asked of each package: pyABC calls its simulator once a pseudo-sample, and is slow."""


@od.batched
def simulate(rng, theta):
    return theta + rng.standard_normal(theta.size)


def toy(y_obs):
    return od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=y_obs)


@od.batched
def simulate_five(rng, a, b, c, d, e):
    return np.stack([a, b, c, d, e], axis=1) + rng.standard_normal((a.size, 5))


def five():
    """Five means with a wide prior: the posterior is a 100,000th of it."""
    prior = od.Prior(**{name: stats.norm(0, 10) for name in "abcde"})
    return od.Model(prior, simulate_five, observed=np.array([4.0, -3.0, 2.0, 5.0, 0.0]))


def price(runs):
    """Simulations and seconds for each effective draw of the first parameter, over several runs."""
    ess = sum(float(post.summary()[post.names[0]].ess) for post in runs)
    return sum(post.cost.simulations for post in runs) / ess, sum(post.cost.seconds for post in runs) / ess


def chain(model, eps, budget, seed):
    return od.pseudo_marginal(model, od.uniform(eps), chains=256, budget=budget, seed=seed, start="rejection")


def on_the_toy():
    """What an effective draw costs at eps = 0.01 with y_obs = 4, far out in the prior, all stages included."""
    model, eps = toy(4.0), 0.01
    probability = float(np.diff(stats.norm.cdf([4.0 - eps, 4.0 + eps], 0, math.sqrt(2)))[0])
    kernel = od.uniform(eps)
    runs = {
        "chain (pseudo_marginal)": [chain(model, eps, 6_000_000, seed) for seed in SEEDS],
        "smc": [od.smc(model, kernel=kernel, particles=1000, least_acceptance=1e-5, seed=seed) for seed in SEEDS],
        "importance": [od.importance(model, kernel=kernel, budget=1_000_000, seed=seed) for seed in SEEDS],
    }
    assert all(post.settings["eps"] == eps for some in runs.values() for post in some)
    rows = [("rejection (exact)", f"{1 / probability:,.0f}", "", None)]
    for name, some in runs.items():
        simulations, seconds = price(some)
        rows.append((name, f"{simulations:,.0f}", f"{1e3 * seconds:.2f} ms", None))
    cheaper = price(runs["importance"])[0] * probability < 1
    rows.append(("importance needs fewer than rejection", "yes" if cheaper else "no", "yes", cheaper))
    return report("Simulations for an effective draw, toy, y_obs = 4, eps = 0.01; seconds for one", rows)


def in_five_dimensions():
    model, eps = five(), 1.0
    # The squared distance over 101 is a non-central chi-squared variable before anything is known.
    away = float(np.sum(np.asarray(model.observed) ** 2)) / 101
    probability = float(stats.ncx2.cdf(eps**2 / 101, 5, away))
    kernel = od.uniform(eps)
    runs = {
        "smc": [od.smc(model, kernel=kernel, particles=1000, least_acceptance=1e-5, seed=seed) for seed in SEEDS],
        "importance": [od.importance(model, kernel=kernel, budget=200_000, seed=seed) for seed in SEEDS],
    }
    rows = [("rejection (exact)", f"{1 / probability:,.0f}", "", None)]
    for name, some in runs.items():
        assert all(post.settings["eps"] == eps for post in some), [post.settings["eps"] for post in some]
        simulations, seconds = price(some)
        wanted = simulations * probability < 0.01
        rows.append((name, f"{simulations:,.0f}", "1/100 at most", wanted))
        rows.append((f"  {name}, seconds", f"{1e3 * seconds:.2f} ms", "", None))
    return report("Simulations for an effective draw, five means, eps = 1", rows)


def against_peers(y_obs, eps):
    model, rows = toy(y_obs), []
    kernel = od.uniform(eps)
    ours = {
        "onedraw smc": price([od.smc(model, kernel=kernel, particles=10_000, seed=seed) for seed in SEEDS]),
        "onedraw importance": price([od.importance(model, kernel=kernel, budget=200_000, seed=seed) for seed in SEEDS]),
    }
    for name, (simulations, seconds) in ours.items():
        rows.append((name, f"{simulations:,.1f}", f"{1e6 * seconds:,.0f} µs", None))
    for package, samples in PEERS.items():
        theirs = found(package, eps, y_obs, samples, seed=1)
        if isinstance(theirs, str):
            rows.append((f"{package}: skipped", "", theirs, None))
            continue
        theta, weights = np.array([theirs["theta"]]), np.array([theirs["weights"]])
        weights /= weights.sum()
        ess = monte_carlo(theta, Draws(weights, independent=True)).ess
        simulations, seconds = theirs["simulations"] / ess, theirs["seconds"] / ess
        rows.append((f"{package} SMC, {samples:,} samples", f"{simulations:,.1f}", f"{1e6 * seconds:,.0f} µs", None))
        for name, (mine, time) in ours.items():
            # A chain with one pseudo-sample stands still for twice as long as independent draws would take, so where
            # the prior is hardly wider than the posterior (y_obs = 2) `smc` may need more.
            rows.append((f"  {name}: fewer by", f"{simulations / mine:.2f}", "more than 1", simulations > mine))
            rows.append((f"  {name}: faster by", f"{seconds / time:,.0f}", "at least 100", seconds >= 100 * time))
    return report(f"Simulations and time for an effective draw, toy, y_obs = {y_obs:g}, eps = {eps:g}", rows)


def main() -> bool:
    reached = [on_the_toy(), in_five_dimensions(), against_peers(2.0, 0.25), against_peers(4.0, 0.25)]
    return all(reached)
