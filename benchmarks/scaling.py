"""How it grows: share of ideal with 2 real workers, and with up to 1,024 simulated ones (`benchmarks.cluster`).

All of it takes about ten minutes of one processor, and three more in which the real workers sleep.
"""

import heapq
import math
import subprocess
import sys
import time

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.cluster import Cluster, spend, virtual
from benchmarks.timing import report

SECONDS = 0.100
SIZES = (16, 64, 256, 1024)
GOALS = {2: 0.95, 16: 0.95, 64: 0.9, 256: 0.85, 1024: 0.8}
EACH = {"rejection": 480, "chains": 480, "smc": 960, "importance": 960, "infer": 480}
"""Simulations per worker."""
PARTICLES = 256
"""The most of smc per worker: it moves 16 in a block, and half of the blocks while the others are on their way."""
KINDS = ("rejection", "chains", "smc", "importance", "infer")


def even(rng):
    return SECONDS


def log_normal(rng):
    """Times that differ by a factor of hundreds, with the same mean."""
    return SECONDS * math.exp(1.5 * rng.standard_normal() - 1.5**2 / 2)


def rare(rng):
    """One in a hundred takes a hundred times as long."""
    return SECONDS * (100 if rng.random() < 0.01 else 1)


UNEVEN = {"log-normal, sigma 1.5": log_normal, "1 in 100 takes 100 x": rare}
LEAST_UNEVEN = 0.85
TRIES = 4
"""Runs of which the mean is told if times differ: the longest simulation of a run decides much."""
LONGER = 4
"""Uneven times are tried in runs of this many times as many simulations, too."""
MOST_PIECES = 50
"""Per second, of runs that are long enough: a worker should get ten pieces or more."""


def model_taking(times, spend):
    def simulate(rng, theta):
        spend(times(rng))
        return rng.normal(theta, 1.0)

    return od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)


def run(kind, model, number, simulations, seed=1, **where):
    budget = simulations * number
    if kind == "rejection":
        return od.rejection(model, od.uniform(0.5), budget=budget, seed=seed, **where)
    if kind == "smc":
        return od.smc(model, budget=budget, particles=min(PARTICLES, simulations // 4) * number, seed=seed, **where)
    if kind == "importance":
        return od.importance(model, budget=budget, seed=seed, **where)
    if kind == "infer":
        return od.infer(model, budget=budget, draws=1000, seed=seed, coverage=0, **where)
    where.setdefault("start", {"theta": np.ones(2 * number)})
    return od.pseudo_marginal(
        model, od.uniform(0.5), draws=simulations // 2, seed=seed, early=False, proposal=od.independence(),
        chains=2 * number, **where,
    )  # fmt: skip


def simulated(kind, workers, times=even, simulations=None, seed=1, **settings):
    """Share of ideal, pieces a second and the scheduler's load of a run on a simulated cluster."""
    cluster = Cluster(workers, **settings)
    model = model_taking(times, spend)
    with virtual(cluster):
        run(kind, model, workers, simulations or EACH[kind], seed, executor=cluster)
    return cluster.worked / (cluster.now * workers), cluster.pieces / cluster.now, cluster.busy / cluster.now


def real(kind, workers=2):
    """Share of ideal of real workers that sleep, of `workers=`, in a run half as long as the simulated ones."""
    model = model_taking(even, time.sleep)
    # All workers are started, and have loaded what they need.
    od.rejection(model, od.uniform(9.0), budget=32 * workers, seed=1, workers=workers)
    began = time.perf_counter()
    post = run(kind, model, workers, EACH[kind] // 2, workers=workers)
    return post.cost.simulations * SECONDS / ((time.perf_counter() - began) * workers)


def bare(workers=2, naps=150):
    """Share of ideal of processes that only sleep: what this machine has left for real workers."""
    code = f"import time\nfor _ in range({naps}): time.sleep({SECONDS})"
    began = time.perf_counter()
    for one in [subprocess.Popen([sys.executable, "-c", code]) for _ in range(workers)]:
        one.wait()
    return naps * SECONDS / (time.perf_counter() - began)


def started(workers, times, simulations, seed):
    """Share of ideal of chains that start from draws of an earlier run."""
    cluster, model = Cluster(workers), model_taking(times, spend)
    with virtual(cluster):
        start = od.rejection(model, od.uniform(0.5), draws=2 * workers, seed=2)
        cluster.away = 0.0
        run("chains", model, workers, simulations, seed, executor=cluster, start=start)
    return cluster.worked / (cluster.now * workers)


def queued(workers, times, simulations, tries=8):
    """Share of ideal of single simulations in a queue, without rounds and with nothing sent: its mean, and the least.

    Workers that do not know how long a simulation takes cannot do better: at the end they wait for those begun last.
    """
    rng, shares = np.random.default_rng(1), []
    for _ in range(tries):
        ends, whole = [0.0] * workers, 0.0
        for _ in range(simulations * workers):
            seconds = times(rng)
            whole += seconds
            heapq.heapreplace(ends, ends[0] + seconds)
        shares.append(whole / (max(ends) * workers))
    return float(np.mean(shares)), min(shares)


def measured():
    """Rows as they are measured."""
    yield "processes that only sleep, 2 (real)", f"{bare():.2f}", "", None
    for kind in KINDS:
        share = real(kind)
        yield f"{kind}, 2 workers (real)", f"{share:.2f}", f">= {GOALS[2]}", share >= GOALS[2]
    for workers in (2, *SIZES):
        for kind in KINDS:
            # What the run's own process computes counts where it is a large part of a small cluster's time.
            share, pieces, load = simulated(kind, workers, own_time=workers == 2)
            told = f"{share:.2f}   {pieces:.0f} pieces/s, load {load:.2f}"
            yield f"{kind}, {workers:,} workers", told, f">= {GOALS[workers]}", share >= GOALS[workers]
    for times_longer in (1, LONGER):
        for name, times in UNEVEN.items():
            length, goal = f"{times_longer} x, {name}", LEAST_UNEVEN
            # Longer runs differ less.
            seeds = range(1, 1 + TRIES // times_longer)
            for kind in KINDS:
                found = [simulated(kind, 64, times, times_longer * EACH[kind], seed) for seed in seeds]
                share, pieces, load = np.mean(found, axis=0)
                told = f"{share:.2f}   {pieces:.0f} pieces/s, load {load:.2f}"
                yield f"{kind}, 64 workers, {length}", told, f">= {goal}", share >= goal
            share = float(np.mean([started(64, times, times_longer * EACH["chains"], seed) for seed in seeds]))
            yield f"chains from given draws, 64 workers, {length}", f"{share:.2f}", f">= {goal}", share >= goal
            mean, least = queued(64, times, times_longer * EACH["rejection"])
            yield f"at best, 64 workers, {length}", f"{mean:.2f}   from {least:.2f}", "", None
    for kind in ("rejection", "chains"):
        share, pieces, load = simulated(kind, 256, even, LONGER * EACH[kind])
        told = f"{share:.2f}   {pieces:.0f} pieces/s, load {load:.2f}"
        yield f"{kind}, 256 workers, four times as long", told, f"<= {MOST_PIECES} pieces/s", pieces <= MOST_PIECES


def main():
    rows = []
    for row in measured():
        rows.append(row)
        print("  ".join(row[:3]), file=sys.stderr, flush=True)
    return report(f"A simulator of {1e3 * SECONDS:.0f} ms: share of ideal", rows)


if __name__ == "__main__":
    main()
