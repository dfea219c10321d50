"""pyABC's ABC-SMC within a budget: arguments model, budget, seed.

The distance is its adaptive one, which scales the summaries; tolerances are medians, its default. A generation is begun
while the budget lasts and then completed, so that more may be simulated.
"""

import json
import logging
import os
import sys
import tempfile
import time

import numpy as np
import pyabc

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from benchmarks.simulators import OBSERVED, PRIORS, SIMULATORS

logging.getLogger("ABC").setLevel(logging.ERROR)


def main(name, budget, seed, particles):
    np.random.seed(seed)  # noqa: NPY002 (pyABC draws from NumPy's global generator)
    rng, simulate = np.random.default_rng(seed), SIMULATORS[name]

    def one(parameters):
        (row,) = simulate(rng, **{key: np.array([value]) for key, value in parameters.items()})
        return {f"s{k}": value for k, value in enumerate(row)}

    prior = pyabc.Distribution(**{key: pyabc.RV(kind, *rest) for key, (kind, *rest) in PRIORS[name].items()})
    inference = pyabc.ABCSMC(
        one, prior, pyabc.AdaptivePNormDistance(p=2), population_size=particles, sampler=pyabc.SingleCoreSampler()
    )
    observed = {f"s{k}": value for k, value in enumerate(OBSERVED[name])}
    with tempfile.TemporaryDirectory() as folder:
        inference.new("sqlite:///" + os.path.join(folder, "run.db"), observed)
        began = time.process_time()
        history = inference.run(max_total_nr_simulations=budget)
        seconds = time.process_time() - began
        frame, weights = history.get_distribution()
        simulations = int(history.total_nr_simulations)
    theta = frame[list(PRIORS[name])].to_numpy()
    mean = weights @ theta / weights.sum()
    sd = np.sqrt(weights @ (theta - mean) ** 2 / weights.sum())
    answer = {"mean": mean.tolist(), "sd": sd.tolist(), "simulations": simulations, "seconds": seconds}
    print(json.dumps({**answer, "version": pyabc.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), particles=100 if int(sys.argv[2]) <= 1_000 else 500)
