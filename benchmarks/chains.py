"""Pseudo-marginal chains against raw NumPy draws and a compiled loop; overhead of a slow plain simulator; memory."""

import time
import tracemalloc

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import best_times, report

EPS = 0.25
CHAINS = 16_384
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


def speed(pseudo_samples):
    """Pseudo-samples a second of the chain, of raw standard_normal, and of the compiled loop, in one run."""
    model, steps = toy(), max(4, PSEUDO_SAMPLES_A_RUN // (CHAINS * pseudo_samples))
    settings = {"chains": CHAINS, "pseudo_samples": pseudo_samples, "proposal": od.independence(), "seed": 1}
    start = od.rejection(model, od.uniform(EPS), draws=CHAINS, seed=1)
    raw = np.empty(16_384)
    generator = np.random.default_rng(1)
    loop = compiled_loop(pseudo_samples)
    draws = CHAINS * steps * pseudo_samples

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
        rounds=5,
    )
    chain = (seconds["chain"] - seconds["start"]) * steps / (steps - 1)
    return draws / chain, draws / seconds["raw"], draws / seconds["compiled"]


def overhead_of_a_slow_simulator():
    """Share of the time that is not the simulator's own, for a plain simulator that takes a millisecond."""
    spent = 0.0

    def slow(rng, theta):
        nonlocal spent
        began = time.perf_counter()
        value = theta + rng.standard_normal()
        while time.perf_counter() - began < 1e-3:
            pass
        spent += time.perf_counter() - began
        return value

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), slow, observed=2.0)
    best = float("inf")
    for _ in range(3):
        spent = 0.0
        post = od.pseudo_marginal(model, od.uniform(1.0), draws=300, chains=4, proposal=od.independence(), seed=1)
        best = min(best, post.cost.seconds / spent - 1.0)
    return best


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
    overhead = overhead_of_a_slow_simulator()
    rows.append(("overhead on a plain simulator of 1 ms", f"{100 * overhead:.1f} %", "below 5 %", overhead < 0.05))
    memory = memory_of_five_million_iterations()
    rows.append(("memory of 5,000,000 iterations", f"{memory:.0f} MB", "below 200 MB", memory < 200))
    return report(f"Pseudo-marginal chains (Algorithm 2), toy, {CHAINS:,} chains", rows)
