"""pyABC's sequential sampler on the toy, one process: arguments eps, y_obs, samples, seed."""

import json
import logging
import os
import sys
import tempfile
import time

import numpy as np
import pyabc

logging.getLogger("ABC").setLevel(logging.ERROR)


def simulate(parameters):
    return {"y": parameters["theta"] + np.random.standard_normal()}  # noqa: NPY002 (pyABC seeds no generator)


def distance(x, observed):
    return abs(x["y"] - observed["y"])


def main(eps, y_obs, samples, seed):
    np.random.seed(seed)  # noqa: NPY002
    steps = [eps]
    while steps[0] < y_obs / 2:
        steps.insert(0, 2 * steps[0])
    inference = pyabc.ABCSMC(
        simulate,
        pyabc.Distribution(theta=pyabc.RV("norm", 0, 1)),
        distance,
        population_size=samples,
        eps=pyabc.ListEpsilon(steps),
        sampler=pyabc.SingleCoreSampler(),
    )
    with tempfile.TemporaryDirectory() as folder:
        inference.new("sqlite:///" + os.path.join(folder, "run.db"), {"y": y_obs})
        began = time.perf_counter()
        history = inference.run(max_nr_populations=len(steps))
        seconds = time.perf_counter() - began
        frame, weights = history.get_distribution()
        simulations = int(history.total_nr_simulations)
    theta = [float(value) for value in frame["theta"]]
    weights = [float(value) for value in weights]
    print(json.dumps({"theta": theta, "weights": weights, "simulations": simulations, "seconds": seconds}))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
