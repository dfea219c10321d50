"""What saving a run costs, in time and in bytes, for the toy at the default settings.

The time is that spent in saving within a run, as a share of the rest of it: the difference of two runs would drown
in what else the machine does.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scipy import stats

import onedraw as od
from benchmarks.timing import report
from onedraw.run.saving import Saver
from onedraw.run.store import Store

EPS = 0.1
ROUNDS = 3


@od.batched
def simulate(rng, theta):
    return theta + rng.standard_normal(theta.size)


@contextmanager
def clocked(*methods: tuple[type, str]) -> Iterator[list[float]]:
    """The seconds spent in these methods while the context lasts, those of calls within calls once."""
    spent, deep = [0.0], [0]
    whole = {(kind, name): getattr(kind, name) for kind, name in methods}

    def timed(method):
        def call(*args, **kwargs):
            began, deep[0] = time.perf_counter(), deep[0] + 1
            try:
                return method(*args, **kwargs)
            finally:
                deep[0] -= 1
                spent[0] += 0.0 if deep[0] else time.perf_counter() - began

        return call

    for (kind, name), method in whole.items():
        setattr(kind, name, timed(method))
    try:
        yield spent
    finally:
        for (kind, name), method in whole.items():
            setattr(kind, name, method)


def shares(job, folder: Path) -> tuple[float, float, float, float]:
    """Least share of the time, its run's seconds, file size over arrays, and megabytes of arrays."""
    least = (1e9, 0.0)
    for number in range(ROUNDS):
        path = folder / f"{number}.db"
        methods = [(Store, "__init__"), (Store, "set_meta"), (Saver, "put"), (Saver, "finish"), (Saver, "close")]
        began = time.perf_counter()
        with clocked(*methods) as spent:
            post = job(path)
        seconds = time.perf_counter() - began
        least = min(least, (spent[0] / (seconds - spent[0]), seconds))
        arrays = post.draws["theta"].nbytes + post.distances.nbytes
        size = path.stat().st_size / arrays
        path.unlink()
    return *least, size, arrays / 1e6


def main() -> bool:
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    kernel = od.uniform(EPS)
    jobs = {
        "rejection": lambda store: od.rejection(model, kernel, budget=120_000_000, seed=1, store=store),
        "pseudo-marginal": lambda store: od.pseudo_marginal(model, kernel, draws=2000, thin=10, seed=1, store=store),
    }
    rows: list[tuple[str, str, str, bool | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, job in jobs.items():
            share, seconds, size, megabytes = shares(job, Path(folder))
            rows += [
                (f"{name}, {seconds:.1f} s: saving", f"{share:.2%} of the time", "below 3 %", share < 0.03),
                (f"{name}, {megabytes:.0f} MB: file / arrays", f"{size:.3f} x", "at most 1.1 x", size <= 1.1),
            ]
    return report("Runs in files, toy, eps = 0.1", rows)
