"""Whether posteriors of `od.infer` are calibrated: ranks and 90 % intervals over data sets drawn from the prior.

python -m benchmarks coverage, or python -m benchmarks.coverage --sets 200 --budget 10000 --model normal --jobs 4.

A parameter that made the data is a draw from their posterior. So its rank among draws of an exact posterior is uniform,
and central 90 % intervals contain it in 90 % of the data sets. For each model and budget the ranks of each parameter
are counted in ten bins and tested for uniformity by chi square; the p-value is the least of the parameters, times
their number.
"""

import argparse
import math
import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.processes import Line, collected
from benchmarks.timing import report

SETS = {100: 100, 1_000: 200, 10_000: 200}
"""Budgets, and the data sets of each."""
DRAWS = 4_000
BINS = 10
LEAST_P = 0.01


@od.batched
def normal_sample(rng, mu, sigma):
    """Mean and log standard deviation of 20 normals."""
    data = rng.normal(mu[:, None], sigma[:, None], size=(len(mu), 20))
    return np.column_stack([data.mean(axis=1), np.log(data.std(axis=1))])


@od.batched
def queue(rng, rate, speed, spread):
    """Quantiles of 40 waiting times, gamma distributed, seen with noise."""
    times = rng.gamma(speed[:, None], 1.0 / rate[:, None], size=(len(rate), 40))
    noisy = np.log(times + 1e-9) + spread[:, None] * rng.standard_normal(times.shape)
    return np.quantile(noisy, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1).T


@od.batched
def counts(rng, rate, shape):
    """Sum of 30 counts that vary more than Poisson's, zeros among them, and the largest."""
    level = rng.gamma(shape[:, None], (rate / shape)[:, None], size=(len(rate), 30))
    number = rng.poisson(level)
    return np.column_stack([number.sum(axis=1), (number == 0).sum(axis=1), number.max(axis=1)]).astype(float)


@od.batched
def heavy_tails(rng, centre, scale):
    """Mean, mean absolute value, median and range between quartiles of 15 Cauchy variables."""
    data = centre[:, None] + scale[:, None] * rng.standard_cauchy((len(centre), 15))
    low, median, high = np.quantile(data, [0.25, 0.5, 0.75], axis=1)
    return np.column_stack([data.mean(axis=1), np.abs(data).mean(axis=1), median, high - low])


@od.batched
def bimodal(rng, t0, t1):
    """A square that hides the sign of t0, and a summary that tells a little of it."""
    return np.column_stack([t0**2 + 0.5 * t1, t1 - 0.3 * t0]) + 0.5 * rng.standard_normal((len(t0), 2))


@od.batched
def noise(rng, t0, t1):
    """Two summaries that tell of the parameters, and ten that do not."""
    told = np.column_stack([t0 + t1, t0 * t1]) + 0.3 * rng.standard_normal((len(t0), 2))
    return np.column_stack([told, rng.standard_normal((len(t0), 10))])


@od.batched
def series(rng, phi, sigma):
    """Log standard deviation and two autocorrelations of 60 values of an autoregression seen with noise."""
    state, seen = np.zeros(len(phi)), []
    for _ in range(60):
        state = phi * state + sigma * rng.standard_normal(len(phi))
        seen.append(state + 0.5 * rng.standard_normal(len(phi)))
    data = np.column_stack(seen)
    data = data - data.mean(axis=1, keepdims=True)
    power = (data**2).mean(axis=1)
    lags = [(data[:, lag:] * data[:, :-lag]).mean(axis=1) / power for lag in (1, 2)]
    return np.column_stack([0.5 * np.log(power), *lags])


MODELS = {
    "normal": (od.Prior(mu=stats.norm(0, 3), sigma=stats.uniform(0.1, 4)), normal_sample),
    "waiting times": (
        od.Prior(rate=stats.gamma(2.0), speed=stats.uniform(0.5, 4), spread=stats.uniform(0.05, 0.5)),
        queue,
    ),
    "counts": (od.Prior(rate=stats.gamma(2.0, scale=2.0), shape=stats.lognorm(1.0)), counts),
    "heavy tails": (od.Prior(centre=stats.norm(0, 5), scale=stats.lognorm(0.7)), heavy_tails),
    "bimodal": (od.Prior(t0=stats.uniform(-3, 6), t1=stats.norm(0, 1)), bimodal),
    "ten noise summaries": (od.Prior(t0=stats.norm(0, 1), t1=stats.uniform(0, 2)), noise),
    "time series": (od.Prior(phi=stats.uniform(-0.95, 1.9), sigma=stats.lognorm(0.5)), series),
}


class DataSet(NamedTuple):
    """One data set of a model, and the budget that is spent on it."""

    model: str
    budget: int
    number: int


def placed(one: DataSet) -> Line:
    """Where the known parameters lie among the draws, 0 to 1."""
    prior, simulate = MODELS[one.model]
    rng = np.random.default_rng([one.number, len(one.model)])
    truth = prior.sample(rng, 1)
    observed = simulate(rng, **prior.columns(truth))[0]
    post = od.infer(od.Model(prior, simulate, observed), budget=one.budget, seed=one.number, draws=DRAWS)
    draws = np.stack([values.ravel() for values in post.draws.values()])
    return one._asdict() | {"places": (draws < truth.T).mean(axis=1).tolist()}


def covered(position: np.ndarray, prob: float) -> float:
    """Share of central intervals that hold the known parameter."""
    return float(np.mean(np.abs(position - 0.5) <= prob / 2))


def uniformity(position: np.ndarray) -> tuple[np.ndarray, float]:
    """Counts of each parameter in ten bins, and the p-value of their uniformity."""
    number = np.array([np.histogram(column, BINS, (0.0, 1.0))[0] for column in position.T])
    least = float(stats.chisquare(number, axis=1).pvalue.min())
    return number, min(1.0, least * len(number))


def _number(line: Line) -> int:
    return int(line["number"])


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, help="data sets (default: 200, and 100 with 100 simulations)")
    parser.add_argument("--budget", nargs="+", type=int, default=list(SETS))
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with data sets of its own")
    parser.add_argument("--out", type=Path, help="write a line of JSON for each data set to this file")
    given = parser.parse_args([] if arguments is None else arguments)
    sets = {budget: given.sets or SETS.get(budget, 200) for budget in given.budget}
    tasks = [DataSet(name, budget, k) for budget in given.budget for name in given.model for k in range(sets[budget])]
    lines = collected(placed, tasks, given.jobs, given.out)
    rows: list[tuple[str, str, str, bool | None]] = []
    for budget, name in product(given.budget, given.model):
        here = sorted((line for line in lines if (line["model"], line["budget"]) == (name, budget)), key=_number)
        position = np.array([line["places"] for line in here])
        share, (number, p) = covered(position, 0.9), uniformity(position)
        error = math.sqrt(0.9 * 0.1 / len(position))
        for parameter, row in zip(MODELS[name][0].names, number, strict=True):
            print(f"  {name}, {budget:,}: ranks of {parameter:8} {' '.join(f'{one:3}' for one in row)}", flush=True)
        what = f"{name}, {budget:,} simulations, {len(position)} data sets"
        rows.append((f"{what}: 90 % intervals", f"{100 * share:.1f} ± {100 * error:.1f} %", "86 to 94 %",
                     0.86 <= share <= 0.94))  # fmt: skip
        rows.append((f"{what}: p of uniform ranks", f"{p:.2g}", f"at least {LEAST_P}", p >= LEAST_P))
    return report("Calibration over data sets drawn from the prior", rows)


if __name__ == "__main__":
    raise SystemExit(0 if main(sys.argv[1:]) else 1)
