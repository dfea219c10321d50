"""What saving a run costs, in time and in bytes, for the toy at the default settings."""

import tempfile
from pathlib import Path

from scipy import stats

import onedraw as od
from benchmarks.timing import best_times, report

EPS = 0.1
PROPOSALS = 120_000_000
STEPS = 20_000


@od.batched
def simulate(rng, theta):
    return theta + rng.standard_normal(theta.size)


def main() -> bool:
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    kernel = od.uniform(EPS)
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1000))

        def fresh() -> Path:
            return Path(folder) / f"{next(numbers)}.db"

        def rejection(store=None):
            return od.rejection(model, kernel, budget=PROPOSALS, seed=1, store=store)

        def chains(store=None):
            return od.pseudo_marginal(model, kernel, draws=STEPS // 10, thin=10, seed=1, store=store)

        rows = []
        for name, job in (("rejection", rejection), ("pseudo-marginal", chains)):
            seconds = best_times({"memory": job, "store": lambda job=job: job(fresh())}, rounds=3)
            cost = seconds["store"] / seconds["memory"] - 1
            path = fresh()
            post = job(path)
            arrays = post.draws["theta"].nbytes + post.distances.nbytes
            size = path.stat().st_size / arrays
            rows += [
                (f"{name}, {seconds['memory']:.1f} s: time with a file", f"{cost:+.1%}", "below 3 %", cost < 0.03),
                (f"{name}, {arrays / 1e6:.1f} MB: file / arrays", f"{size:.3f} x", "at most 1.1 x", size <= 1.1),
            ]
        begin = best_times({"memory": lambda: od.rejection(model, kernel, draws=1, seed=1),
                            "store": lambda: od.rejection(model, kernel, draws=1, seed=1, store=fresh())})  # fmt: skip
        rows.append(("a file made, filled and closed", f"{1e3 * (begin['store'] - begin['memory']):.0f} ms", "", None))
    return report("Runs in files, toy, eps = 0.1", rows)
