"""Workers: how near to ideal they come, whether a cheap simulator gains, and the paper's two layouts side by side."""

import math
import time
from contextlib import contextmanager

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import best_times, report
from onedraw.paper import finite_chains as exact

WORKERS = 2
SECONDS = 0.010
SIMULATIONS = 2000
EPS = 0.5


def sleeping(rng, theta):
    time.sleep(SECONDS)
    return rng.normal(theta, 1.0)


def uneven(rng, theta):
    """Times that differ by a factor of hundreds: log-normal with sigma = 1.5 and the same mean."""
    time.sleep(SECONDS * math.exp(1.5 * rng.standard_normal() - 1.5**2 / 2))
    return rng.normal(theta, 1.0)


@od.batched
def cheap(rng, theta):
    return theta + rng.standard_normal(theta.size)


def model(simulate):
    return od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)


@contextmanager
def dask_client():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        yield client


def rate(simulate, **where):
    """Simulations a second of rejection, and what ideal workers would do with the times that were really slept."""
    od.rejection(model(simulate), od.uniform(EPS), budget=64, seed=9, **where)
    began = time.perf_counter()
    post = od.rejection(model(simulate), od.uniform(EPS), budget=SIMULATIONS, seed=1, **where)
    return post.cost.simulations / (time.perf_counter() - began)


def slept():
    """The mean time that one simulation of this machine really sleeps: `sleep` always takes a little longer."""
    began = time.perf_counter()
    for _ in range(100):
        time.sleep(SECONDS)
    return (time.perf_counter() - began) / 100


def uneven_mean():
    """The mean of the very times that the run with seed 1 sleeps."""
    times = []

    def note(rng, theta):
        times.append(SECONDS * math.exp(1.5 * rng.standard_normal() - 1.5**2 / 2))
        return rng.normal(theta, 1.0)

    od.rejection(model(note), od.uniform(EPS), budget=SIMULATIONS, seed=1)
    return float(np.mean(times)) + slept() - SECONDS


def chain_rate():
    """Steps of chains without early rejection: one simulation each."""
    one = model(sleeping)
    start = od.rejection(one, od.uniform(EPS), draws=8, seed=1, workers=WORKERS)
    settings = {"proposal": od.independence(), "early": False, "start": start, "chains": 8, "seed": 1}
    began = time.perf_counter()
    post = od.pseudo_marginal(one, od.uniform(EPS), draws=SIMULATIONS // 8, workers=WORKERS, **settings)
    return post.cost.simulations / (time.perf_counter() - began)


def layouts():
    """ESS a second of (a) one chain with its draws side by side, and (b) chains side by side with one draw each."""
    grid = np.linspace(-4, 6, 101)
    problem = exact.discretise(
        stats.norm(0, 1).pdf,
        lambda theta: stats.norm.cdf(2 + EPS - theta) - stats.norm.cdf(2 - EPS - theta),
        grid,
        proposal="independence",
    )
    settings = {"proposal": od.independence(), "early": False, "workers": WORKERS, "seed": 1}
    rows = []
    for name, chains, draws, more in (
        ("(a) draws", 1, 4000, {"layout": "draws", "pseudo_samples": WORKERS}),
        ("(b) chains", WORKERS, 4000, {"pseudo_samples": 1}),
    ):
        began = time.perf_counter()
        post = od.pseudo_marginal(
            model(sleeping), od.uniform(EPS), draws=draws, start={"theta": np.ones(chains)}, **settings, **more
        )
        seconds = time.perf_counter() - began
        chain = exact.pseudo_marginal(problem, more["pseudo_samples"])
        kappa = exact.integrated_autocorrelation(grid, chain)
        measured = post.efficiency()["theta"].kappa
        predicted = chains / (kappa * slept())
        found = chains * draws / (measured.value * seconds)
        error = found * measured.se / measured.value
        rows.append(
            (name, predicted, found, error, draws * slept() / seconds, abs(measured.value - kappa) / measured.se)
        )
    return rows


def main():
    ideal, uneven_ideal = WORKERS / slept(), WORKERS / uneven_mean()
    loky, chains = rate(sleeping, workers=WORKERS), chain_rate()
    jagged = rate(uneven, workers=WORKERS)
    with dask_client() as client:
        dask = rate(sleeping, executor=client)
    rows = [
        ("loky, 10 ms, of ideal", f"{loky / ideal:.3f}", ">= 0.95", loky / ideal >= 0.95),
        ("loky, 10 ms, 8 chains, of ideal", f"{chains / ideal:.3f}", ">= 0.95", chains / ideal >= 0.95),
        ("Dask, 10 ms, of ideal", f"{dask / ideal:.3f}", ">= 0.90", dask / ideal >= 0.90),
        ("loky, log-normal times, of ideal", f"{jagged / uneven_ideal:.3f}", ">= 0.85", jagged / uneven_ideal >= 0.85),
    ]
    settings = {"draws": 60, "chains": 65_536, "pseudo_samples": 64, "proposal": od.independence(), "seed": 1}
    one = model(cheap)
    start = od.rejection(one, od.uniform(EPS), draws=65_536, seed=1)
    jobs = {
        str(number): lambda number=number: od.pseudo_marginal(
            one, od.uniform(EPS), start=start, workers=number, **settings
        )
        for number in (1, WORKERS)
    }
    best = best_times(jobs, rounds=2)
    gain = best["1"] / best[str(WORKERS)]
    rows.append(("batched, M = 64, gain of 2 workers", f"{gain:.2f}", ">= 1.6", gain >= 1.6))
    for name, predicted, found, error, speed, away in layouts():
        rows.append((f"{name}: ESS/s", f"{found:.2f} ± {error:.2f}", f"exact {predicted:.2f}", None))
        rows.append((f"{name}: errors between kappa and exact", f"{away:.1f}", "< 3.5", away < 3.5))
        # Each step of (a) waits for its draws to be sent and to come back.
        rows.append((f"{name}: steps/s, of ideal", f"{speed:.2f}", "", None))
    return report(f"Workers ({WORKERS}; ideal {ideal:.0f} simulations/s)", rows)


if __name__ == "__main__":
    main()
