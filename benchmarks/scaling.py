"""How it grows: share of ideal with 2 real workers, and with up to 1,024 simulated ones (`benchmarks.cluster`)."""

import math
import time

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.cluster import Cluster, spend, virtual
from benchmarks.timing import report

SECONDS = 0.100
SIZES = (16, 64, 256, 1024)
GOALS = {2: 0.95, 16: 0.95, 64: 0.9, 256: 0.85, 1024: 0.8}
EACH = {"rejection": 480, "chains": 480, "smc": 1920, "infer": 480}
"""Simulations per worker."""
PARTICLES = 256
"""Of smc per worker: it moves 16 in a block, and waits for all of them between two tolerances."""
KINDS = ("rejection", "chains", "smc", "infer")


def even(rng):
    return SECONDS


def log_normal(rng):
    """Times that differ by a factor of hundreds, with the same mean."""
    return SECONDS * math.exp(1.5 * rng.standard_normal() - 1.5**2 / 2)


def rare(rng):
    """One in a hundred takes a hundred times as long."""
    return SECONDS * (100 if rng.random() < 0.01 else 1)


def model_taking(times, spend):
    def simulate(rng, theta):
        spend(times(rng))
        return rng.normal(theta, 1.0)

    return od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)


def run(kind, model, number, simulations, **where):
    budget = simulations * number
    if kind == "rejection":
        return od.rejection(model, od.uniform(0.5), budget=budget, seed=1, **where)
    if kind == "smc":
        return od.smc(model, budget=budget, particles=min(PARTICLES, simulations // 4) * number, seed=1, **where)
    if kind == "infer":
        return od.infer(model, budget=budget, draws=1000, seed=1, coverage=0, **where)
    return od.pseudo_marginal(
        model, od.uniform(0.5), draws=simulations // 2, seed=1, early=False, proposal=od.independence(),
        start={"theta": np.ones(2 * number)}, **where,
    )  # fmt: skip


def simulated(kind, workers, times=even, simulations=None, **settings):
    """Share of ideal, pieces a second and the scheduler's load of a run on a simulated cluster."""
    cluster = Cluster(workers, **settings)
    model = model_taking(times, spend)
    with virtual(cluster):
        run(kind, model, workers, simulations or EACH[kind], executor=cluster)
    return cluster.worked / (cluster.now * workers), cluster.pieces / cluster.now, cluster.busy / cluster.now


def real(kind, workers=2, simulations=100):
    """Share of ideal of real workers that sleep, of `workers=`."""
    model = model_taking(even, time.sleep)
    od.rejection(model, od.uniform(9.0), draws=2, seed=1, workers=workers)
    began = time.perf_counter()
    post = run(kind, model, workers, simulations, workers=workers)
    return post.cost.simulations * SECONDS / ((time.perf_counter() - began) * workers)


def main():
    rows = []
    for kind in KINDS:
        share = real(kind)
        rows.append((f"{kind}, 2 workers (real)", f"{share:.2f}", f">= {GOALS[2]}", share >= GOALS[2]))
    for workers in SIZES:
        for kind in KINDS:
            share, pieces, load = simulated(kind, workers)
            told = f"{share:.2f}   {pieces:.0f} pieces/s, load {load:.2f}"
            rows.append((f"{kind}, {workers:,} workers", told, f">= {GOALS[workers]}", share >= GOALS[workers]))
    for name, times in (("log-normal, sigma 1.5", log_normal), ("1 in 100 takes 100 x", rare)):
        for kind in KINDS:
            share, pieces, load = simulated(kind, 64, times)
            told = f"{share:.2f}   {pieces:.0f} pieces/s, load {load:.2f}"
            rows.append((f"{kind}, 64 workers, {name}", told, ">= 0.85", share >= 0.85))
    return report(f"A simulator of {1e3 * SECONDS:.0f} ms: share of ideal", rows)


if __name__ == "__main__":
    main()
