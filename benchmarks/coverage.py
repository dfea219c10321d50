"""Whether 90 % intervals of `od.infer` cover the parameters that made the data: over data sets drawn from the prior.

python -m benchmarks coverage, or python -m benchmarks.coverage --sets 200 --budget 10000.
"""

import argparse
import math
import sys

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import report


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


MODELS = {
    "normal (2 parameters)": (od.Prior(mu=stats.norm(0, 3), sigma=stats.uniform(0.1, 4)), normal_sample),
    "waiting times (3 parameters)": (
        od.Prior(rate=stats.gamma(2.0), speed=stats.uniform(0.5, 4), spread=stats.uniform(0.05, 0.5)),
        queue,
    ),
}


def covered(name: str, number: int, budget: int, prob: float) -> tuple[int, int]:
    """Central intervals that hold the known parameter, of all parameters and data sets; and how many there were."""
    prior, simulate = MODELS[name]
    inside = total = 0
    for k in range(number):
        rng = np.random.default_rng([k, len(name)])
        truth = prior.sample(rng, 1)
        observed = simulate(rng, **prior.columns(truth))[0]
        post = od.infer(od.Model(prior, simulate, observed), budget=budget, seed=k, draws=4000)
        for column, values in enumerate(post.draws.values()):
            low, high = np.quantile(values, [(1 - prob) / 2, (1 + prob) / 2])
            inside += int(low <= truth[0, column] <= high)
            total += 1
        if (k + 1) % 20 == 0:
            print(f"  {name}: {k + 1} data sets, {100 * inside / total:.1f} % of {total} intervals hold", flush=True)
    return inside, total


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage")
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--only", choices=[name.split()[0] for name in MODELS], help="one of the models")
    given = parser.parse_args([] if arguments is None else arguments)
    rows = []
    for name in MODELS:
        if given.only not in (None, name.split()[0]):
            continue
        inside, total = covered(name, given.sets, given.budget, 0.9)
        share = inside / total
        error = math.sqrt(share * (1 - share) / given.sets)
        rows.append((name, f"{100 * share:.1f} ± {100 * error:.1f} %", "85 to 95 %", bool(0.85 <= share <= 0.95)))
    return report(f"Coverage of 90 % intervals, {given.sets} data sets, {given.budget:,} simulations each", rows)


if __name__ == "__main__":
    raise SystemExit(0 if main(sys.argv[1:]) else 1)
