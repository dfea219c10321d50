"""Forty years of counts: how fast does a population grow, how many can its habitat hold, and how much do years differ?

The counts are simulated, so the answer is known. `od.infer` uses 3,000 simulations. The figure of the README shows
the posteriors beside the true values, and the counts that they predict.

python examples/population.py [figure.png] [--quick]
"""

import sys

import numpy as np
from scipy import stats

import onedraw as od

TRUTH = {"growth": 0.7, "capacity": 80, "noise": 0.25}
YEARS = np.arange(1986, 2026)


def simulate(rng, growth, capacity, noise):
    there, seen = 10.0, []
    for _ in YEARS:
        there *= np.exp(growth * (1 - there / capacity) + noise * rng.normal())
        seen.append(rng.poisson(there))
    return np.array(seen)


def summary(seen):
    log, lag = np.log1p(seen), np.corrcoef(seen[5:-1], seen[6:])[0, 1]
    return {"mean": log.mean(), "sd": log[5:].std(), "change": np.diff(log).std(), "start": log[:4].mean(), "lag": lag}


counts = simulate(np.random.default_rng(3), **TRUTH)
prior = od.Prior(growth=stats.uniform(0, 2), capacity=stats.uniform(20, 180), noise=stats.uniform(0, 1))
model = od.Model(prior, simulate, counts, summary=summary)


def draw(post, path):
    """Posteriors, and the bands that they predict."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 2.9), layout="constrained")
    *axes, band = figure.subplots(1, 4, width_ratios=[1, 1, 1, 2])
    od.plots.marginals(post, truth=TRUTH, ax=axes)
    od.plots.predictive_band(post, time=YEARS, names="animals counted", ax=band, seed=1)
    band.set_xlabel("year")
    od.plots.save(figure, path)


def main(path=None, budget=3_000):
    post = od.infer(model, budget=budget, seed=1)
    print(post.summary())
    if path is not None:
        draw(post, path)
    return post


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [argument for argument in sys.argv[1:] if argument != "--quick"]
    main(paths[0] if paths else None, **({"budget": 300} if quick else {}))
