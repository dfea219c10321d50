"""pyABC's model selection on problems of `benchmarks.choices`, one process.

Arguments: problem ("normal" or "regression"), observed summaries as JSON, budget, seed.
"""

import json
import logging
import os
import sys
import tempfile
import time

import numpy as np
import pyabc

logging.getLogger("ABC").setLevel(logging.ERROR)
RV = pyabc.RV
N = 16
X = np.column_stack([np.ones(20), np.linspace(-1, 1, 20), np.cos(3 * np.linspace(-1, 1, 20))])
ROOT = np.linalg.cholesky(np.linalg.inv(X.T @ X))


def normal(parameters):
    y = parameters.get("mu", 0.0) + parameters["sigma"] * np.random.standard_normal(N)  # noqa: NPY002
    return {"s": np.array([y.mean(), np.log(y.var(ddof=1))])}


def regression(parameters):
    beta = np.array([parameters["a"], parameters["b"], parameters.get("c", 0.0)])
    return {"s": beta + ROOT @ np.random.standard_normal(3)}  # noqa: NPY002


UNIT = ("norm", 0, 1)
PROBLEMS = {
    "normal": (normal, [{"sigma": ("uniform", 0.5, 1.5)}, {"mu": UNIT, "sigma": ("uniform", 0.5, 1.5)}]),
    "regression": (regression, [{"a": UNIT, "b": UNIT}, {"a": UNIT, "b": UNIT, "c": UNIT}]),
}


def first(parameters):
    return PROBLEMS[sys.argv[1]][0](parameters)


def second(parameters):
    return PROBLEMS[sys.argv[1]][0](parameters)


def distance(x, observed):
    return float(np.sqrt(np.square(x["s"] - observed["s"]).sum()))


def main(problem, observed, budget, seed):
    np.random.seed(seed)  # noqa: NPY002
    priors = [pyabc.Distribution(**{k: RV(*one) for k, one in part.items()}) for part in PROBLEMS[problem][1]]
    inference = pyabc.ABCSMC([first, second], priors, distance, population_size=200, sampler=pyabc.SingleCoreSampler())
    with tempfile.TemporaryDirectory() as folder:
        inference.new("sqlite:///" + os.path.join(folder, "run.db"), {"s": np.array(observed)})
        began = time.perf_counter()
        history = inference.run(max_total_nr_simulations=budget)
        seconds = time.perf_counter() - began
        table = history.get_model_probabilities(history.max_t)
        found = {int(row): float(value) for row, value in zip(table.index, table.iloc[:, 0], strict=True)}
        simulations = int(history.total_nr_simulations)
    print(json.dumps({"probability": found.get(1, 0.0), "simulations": simulations, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
