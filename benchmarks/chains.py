"""Pseudo-marginal chains against raw NumPy draws and a compiled loop; overhead of a slow plain simulator; memory."""

import time
import tracemalloc

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import best_times, report

EPS = 0.25
CHAINS, DEFAULT_CHAINS = 16_384, 1_024
PSEUDO_SAMPLES_A_RUN = 6_000_000


@od.batched
def simulate(rng, theta):
    return theta + rng.standard_normal(theta.size)


def toy():
    return od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)


def compiled_loop(pseudo_samples):
    """The same chain as a scalar loop in Numba: what a compiled engine could reach."""
    import numba

    @numba.njit
    def chain(rng, steps):
        theta, hits, moves = 1.0, 1, 0
        for _ in range(steps):
            proposed = rng.standard_normal()
            found = 0
            for _ in range(pseudo_samples):
                if abs(proposed + rng.standard_normal() - 2.0) < EPS:
                    found += 1
            if rng.random() * hits <= found and found > 0:
                theta, hits = proposed, found
                moves += 1
        return theta, moves

    return chain


def speed(pseudo_samples, chains=CHAINS):
    """Pseudo-samples a second of the chain, of raw standard_normal, and of the compiled loop, in one run."""
    model, steps = toy(), max(4, PSEUDO_SAMPLES_A_RUN // (chains * pseudo_samples))
    settings = {"chains": chains, "pseudo_samples": pseudo_samples, "proposal": od.independence(), "seed": 1}
    start = od.rejection(model, od.uniform(EPS), draws=chains, seed=1)
    raw = np.empty(16_384)
    generator = np.random.default_rng(1)
    loop = compiled_loop(pseudo_samples)
    draws = chains * steps * pseudo_samples

    def raw_draws():
        for _ in range(draws // raw.size):
            generator.standard_normal(out=raw)

    seconds = best_times(
        {
            "chain": lambda: od.pseudo_marginal(model, od.uniform(EPS), draws=steps, start=start, **settings),
            "start": lambda: od.pseudo_marginal(model, od.uniform(EPS), draws=1, start=start, **settings),
            "raw": raw_draws,
            "compiled": lambda: loop(generator, draws // pseudo_samples),
        },
        rounds=9,
        clock=time.process_time,
    )
    chain = (seconds["chain"] - seconds["start"]) * steps / (steps - 1)
    return draws / chain, draws / seconds["raw"], draws / seconds["compiled"]


def overhead_of_a_slow_simulator():
    """Share of the time that is not the simulator's own, for a plain simulator that takes a millisecond.

    Also that of a loop written by hand in Python: what is called once in a millisecond finds cold caches, on a busy
    machine above all.
    """
    spent, clock = 0.0, time.process_time

    def slow(rng, theta):
        nonlocal spent
        began = clock()
        value = theta + rng.standard_normal()
        while clock() - began < 1e-3:
            pass
        spent += clock() - began
        return value

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), slow, observed=2.0)
    generator = np.random.default_rng(1)

    def by_hand():
        theta, kept = 2.0, []
        for _ in range(1200):
            proposed = generator.standard_normal()
            if abs(slow(generator, theta=proposed) - 2.0) < 1.0:
                theta = proposed
            kept.append(theta)
        return np.array(kept)

    def run():
        return od.pseudo_marginal(model, od.uniform(1.0), draws=300, chains=4, proposal=od.independence(), seed=1)

    best = dict.fromkeys((run, by_hand), float("inf"))
    for job in (*best, *best, *best, *best):
        began, spent = clock(), 0.0
        job()
        best[job] = min(best[job], (clock() - began) / spent - 1.0)
    return best[run], best[by_hand]


def overhead_of_a_step(chains):
    """Seconds per simulation of a chain with a plain simulator that costs next to nothing, without the calls."""

    def quick(rng, theta):
        return theta + rng.standard_normal()

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), quick, observed=2.0)
    generator, count = np.random.default_rng(1), 20_000

    def run(draws):
        start = {"theta": np.full(chains, 1.5)}
        proposal = od.random_walk(0.5)
        return od.pseudo_marginal(
            model, od.uniform(1.0), draws=draws, chains=chains, start=start, proposal=proposal, seed=1
        )

    few, many = 200, 200 + 8000 // chains
    seconds = best_times(
        {
            "few": lambda: run(few),
            "many": lambda: run(many),
            "calls": lambda: [quick(generator, theta=0.5) for _ in range(count)],
        },
        rounds=7,
        clock=time.process_time,
    )
    simulations = run(many).cost.simulations - run(few).cost.simulations
    return (seconds["many"] - seconds["few"]) / simulations - seconds["calls"] / count


def memory_of_five_million_iterations():
    tracemalloc.start()
    od.pseudo_marginal(toy(), od.uniform(EPS), draws=5_000_000 // 4096, chains=4096, proposal=od.independence(), seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def main() -> bool:
    rows: list[tuple[str, str, str, bool | None]] = []
    for pseudo_samples, least in ((64, 0.5), (1, 0.2)):
        chain, raw, compiled = speed(pseudo_samples)
        what = f"pseudo-samples/s / raw standard_normal, M = {pseudo_samples}"
        rows.append((what, f"{chain / raw:.2f}", f"at least {least}", chain / raw >= least))
        rows.append((f"  a compiled loop / raw, M = {pseudo_samples}", f"{compiled / raw:.2f}", "the limit", None))
    chain, raw, _ = speed(1, DEFAULT_CHAINS)
    what = f"pseudo-samples/s / raw standard_normal, M = 1, {DEFAULT_CHAINS:,} chains"
    rows.append((what, f"{chain / raw:.2f}", "at least 0.2", chain / raw >= 0.2))
    overhead, least = overhead_of_a_slow_simulator()
    rows.append(("overhead on a plain simulator of 1 ms", f"{100 * overhead:.1f} %", "below 2 %", overhead < 0.02))
    rows.append(("  of a loop by hand in Python", f"{100 * least:.1f} %", "", None))
    for chains in (1, 4):
        step = 1e6 * overhead_of_a_step(chains)
        what = f"a step of a plain chain beyond the call, {chains} of them"
        rows.append((what, f"{step:.1f} µs", "at most 15 µs", step <= 15))
    memory = memory_of_five_million_iterations()
    rows.append(("memory of 5,000,000 iterations", f"{memory:.0f} MB", "below 200 MB", memory < 200))
    return report(f"Pseudo-marginal chains (Algorithm 2), toy, {CHAINS:,} chains", rows)
