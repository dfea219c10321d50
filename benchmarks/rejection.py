"""Rejection against a hand-written NumPy loop; the overhead of a plain simulator; memory."""

import time
import tracemalloc
import warnings

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import best_times, report

EPS = 0.25
DRAWS = 20_000


@od.batched
def simulate(rng, theta):
    return theta + rng.standard_normal(theta.size)


def hand_written(rng, draws, batch=100_000):
    """The same job in NumPy, in place, which is as fast as NumPy goes."""
    theta, y = np.empty(batch), np.empty(batch)
    kept, got = [], 0
    while got < draws:
        rng.standard_normal(out=theta)
        rng.standard_normal(out=y)
        y += theta
        y -= 2.0
        np.abs(y, out=y)
        kept.append(theta[y < EPS])
        got += kept[-1].size
    return np.concatenate(kept)[:draws]


def peak_memory(model, budget):
    tracemalloc.start()
    od.rejection(model, od.uniform(1e-6), budget=budget, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> bool:
    prior = od.Prior(theta=stats.norm(0, 1))
    model = od.Model(prior, simulate, observed=2.0)
    trivial = od.Model(prior, lambda rng, theta: theta, observed=2.0)
    calls = 20_000
    rng = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trivial simulator draws nothing, on purpose
        seconds = best_times(
            {
                "numpy": lambda: hand_written(rng, DRAWS),
                "batched": lambda: od.rejection(model, od.uniform(EPS), draws=DRAWS, seed=1),
            },
            rounds=25,
            clock=time.process_time,
        )
        seconds |= best_times(
            {
                "plain": lambda: od.rejection(trivial, od.uniform(EPS), budget=calls, seed=1),
                "calls": lambda: [trivial.simulate(None, theta=0.0) for _ in range(calls)],
            },
            rounds=15,
            clock=time.process_time,
        )
    ratio = seconds["numpy"] / seconds["batched"]
    overhead = (seconds["plain"] - seconds["calls"]) / calls * 1e6
    growth = peak_memory(model, 8_000_000) / peak_memory(model, 800_000)
    return report(
        "Rejection (Algorithm 1), toy, eps = 0.25",
        [
            ("draws/s, batched / hand-written NumPy", f"{ratio:.2f}", "at least 0.7", ratio >= 0.7),
            ("overhead of a plain simulator a call", f"{overhead:.1f} µs", "at most 4 µs", overhead <= 4),
            ("peak memory, 10 x the proposals", f"{growth:.2f} x", "at most 1.1 x", growth <= 1.1),
        ],
    )
