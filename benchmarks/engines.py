"""Which engine when: chains of compiled, batched and plain simulators against a chain written by hand in Numba."""

import math
import time

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import best_times, report

EPS = 0.25
CHAINS = 16_384
WANTED = {64: 0.8, 1: 0.7}
"""Pseudo-samples a second of the compiled chain over those of the hand-written one, by M."""


def simulate(rng, theta):
    return theta + rng.standard_normal()


@od.batched
def simulate_batch(rng, theta):
    return theta + rng.standard_normal(theta.size)


def hand_written():
    """The whole chain as a scalar loop in Numba, chain after chain, T carried: what a compiled engine could reach."""
    import numba

    @numba.njit
    def chains(rng, theta, hits, steps, pseudo_samples, kept):
        for chain in range(theta.size):
            for step in range(steps):
                proposed = rng.standard_normal()
                found = 0
                for _ in range(pseudo_samples):
                    if abs(proposed + rng.standard_normal() - 2.0) < EPS:
                        found += 1
                if rng.random() * hits[chain] < found:
                    theta[chain], hits[chain] = proposed, found
                kept[step, chain] = theta[chain]

    @numba.njit
    def with_distances(rng, theta, distance, steps, kept, kept_distances):
        """The same for M = 1, and it keeps the distances."""
        for chain in range(theta.size):
            for step in range(steps):
                proposed = rng.standard_normal()
                apart = abs(proposed + rng.standard_normal() - 2.0)
                if rng.random() < (apart < EPS):
                    theta[chain], distance[chain] = proposed, apart
                kept[step, chain] = theta[chain]
                kept_distances[step, chain] = distance[chain]

    return chains, with_distances


def speed(pseudo_samples):
    """Pseudo-samples a second of each engine, in one run."""
    prior = od.Prior(theta=stats.norm(0, 1))
    kernel = od.uniform(EPS)
    compiled = od.Model(prior, od.compiled(simulate), observed=2.0)
    batched = od.Model(prior, simulate_batch, observed=2.0)
    steps = max(30, 600 // pseudo_samples)
    starts = {id(model): od.rejection(model, kernel, draws=CHAINS, seed=1) for model in (compiled, batched)}
    (loop, with_distances), generator = hand_written(), np.random.Generator(np.random.SFC64(1))

    def by_hand(steps):
        loop(generator, np.ones(CHAINS), np.ones(CHAINS), steps, pseudo_samples, np.empty((steps, CHAINS)))

    def distances_by_hand(steps):
        with_distances(generator, np.ones(CHAINS), np.ones(CHAINS), steps, *np.empty((2, steps, CHAINS)))

    def run(model, steps, keep=None):
        od.pseudo_marginal(
            model, kernel, draws=steps, chains=CHAINS, pseudo_samples=pseudo_samples, proposal=od.independence(),
            start=starts[id(model)], keep=keep, seed=1,
        )  # fmt: skip

    work = {
        "by hand": by_hand,
        "compiled": lambda steps: run(compiled, steps),
        "batched": lambda steps: run(batched, steps),
    }
    if pseudo_samples == 1:
        work["distances by hand"] = distances_by_hand
        work["draws only"] = lambda steps: run(compiled, steps, "draws")
    jobs = {}
    for name, job in work.items():
        # The difference leaves out what a run costs before its first step.
        jobs[f"{name}, one"] = lambda job=job: job(1)
        jobs[f"{name}, all"] = lambda job=job: job(1 + steps)
    # Draws and distances of the longest run, and as much again.
    megabytes = 4 * 8 * CHAINS * steps // 2**20
    seconds = best_times(jobs, rounds=15, clock=time.process_time, megabytes=megabytes)
    draws = CHAINS * steps * pseudo_samples
    return {name: draws / (seconds[f"{name}, all"] - seconds[f"{name}, one"]) for name in work}


def predator_prey(rng, birth, hunt, death):
    """Gillespie's algorithm for Lotka and Volterra's system: both counts at ten times."""
    counts = np.empty((10, 2))
    prey, predators, now = 50, 100, 0.0
    events, record = 0, 0
    while record < 10:
        rates = birth * prey, hunt * prey * predators, death * predators
        total = rates[0] + rates[1] + rates[2]
        wait = rng.standard_exponential() / total if total > 0.0 else math.inf
        while record < 10 and now + wait > 0.2 * (record + 1):
            counts[record, 0], counts[record, 1] = prey, predators
            record += 1
        now += wait
        which = rng.random() * total
        if which < rates[0]:
            prey += 1
        elif which < rates[0] + rates[1]:
            prey -= 1
            predators += 1
        else:
            predators -= 1
        events += 1
        if events > 20_000:
            return np.full((10, 2), np.nan)
    return counts


def gain_of_compiling():
    """Simulations a second of rejection with the compiled function over those with the same one in Python."""
    prior = od.Prior(
        birth=stats.uniform(0.5, 1.0), hunt=stats.uniform(0.0025, 0.005), death=stats.uniform(0.3, 0.6)
    )  # fmt: skip
    observed = predator_prey(np.random.default_rng(1), 1.0, 0.005, 0.6)
    plain = od.Model(prior, predator_prey, observed)
    compiled = od.Model(prior, od.compiled(predator_prey), observed)
    few, many = 150, 15_000
    seconds = best_times(
        {
            "plain": lambda: od.rejection(plain, od.uniform(100.0), budget=few, seed=1),
            "compiled": lambda: od.rejection(compiled, od.uniform(100.0), budget=many, seed=1),
        },
        rounds=3,
    )
    return few / seconds["plain"], many / seconds["compiled"]


def main() -> bool:
    rows: list[tuple[str, str, str, bool | None]] = []
    for pseudo_samples, least in WANTED.items():
        found = speed(pseudo_samples)
        ratio = found["compiled"] / found["by hand"]
        what = f"compiled / hand-written Numba chain, M = {pseudo_samples}"
        rows.append((what, f"{ratio:.2f}", f"at least {least}", ratio >= least))
        if pseudo_samples == 1:
            # The loop by hand keeps no distances, and by default a chain with M = 1 does.
            both = found["compiled"] / found["distances by hand"]
            neither = found["draws only"] / found["by hand"]
            rows.append(("  if both keep distances", f"{both:.2f}", "", None))
            rows.append(("  if neither does (keep='draws')", f"{neither:.2f}", "", None))
        rows.append((f"  batched in NumPy / hand-written, M = {pseudo_samples}",
                     f"{found['batched'] / found['by hand']:.2f}", "", None))  # fmt: skip
        best = "compiled" if found["compiled"] > 1.1 * found["batched"] else "batched"
        best = "either" if 0.9 < found["compiled"] / found["batched"] <= 1.1 else best
        rows.append((f"  best for a simulator that NumPy can batch, M = {pseudo_samples}", best, "", None))
    plain, compiled = gain_of_compiling()
    gain = compiled / plain
    rows.append(("Gillespie, compiled / the same function in Python", f"{gain:.0f} x", "at least 50 x", gain >= 50))
    rows.append(("  simulations/s, in Python and compiled", f"{plain:.0f}, {compiled:.0f}", "", None))
    rows.append(("  best for a simulator that loops", "compiled", "", None))
    return report(f"Engines: the toy with {CHAINS:,} chains, and predators and prey", rows)
